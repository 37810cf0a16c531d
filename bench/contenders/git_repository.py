"""Git through libgit2: an entry is a file, a version is a commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.contenders.base import Contender

PACKAGES = ("pygit2",)
REFERENCE = "refs/heads/main"
FILE_MODE = 0o100644
FOLDER_MODE = 0o40000


class GitRepository(Contender):
    """A bare repository whose objects are synced. Entries lie in a hundred folders: one flat folder of all of them
    would be written whole at every commit."""

    name = "pygit2"

    def __init__(self, place: Path) -> None:
        import pygit2

        pygit2.option(pygit2.enums.Option.ENABLE_FSYNC_GITDIR, True)
        self._repository: Any = pygit2.init_repository(str(place), bare=True)
        self._author = pygit2.Signature("bench", "bench@example.org")
        self._versions: list[Any] = []

    def fill(self, texts: dict[str, str]) -> None:
        folders: dict[str, list[tuple[str, str]]] = {}
        for key, text in texts.items():
            folders.setdefault(key[-2:], []).append((key, text))
        root = self._repository.TreeBuilder()
        for folder, inside in folders.items():
            builder = self._repository.TreeBuilder()
            for key, text in inside:
                builder.insert(key, self._repository.create_blob(text.encode()), FILE_MODE)
            root.insert(folder, builder.write(), FOLDER_MODE)
        self._commit(root.write())

    def change(self, key: str, text: str) -> None:
        tree = self._repository[self._versions[-1]].tree
        folder = self._repository.TreeBuilder(tree[key[-2:]])
        folder.insert(key, self._repository.create_blob(text.encode()), FILE_MODE)
        root = self._repository.TreeBuilder(tree)
        root.insert(key[-2:], folder.write(), FOLDER_MODE)
        self._commit(root.write())

    def log(self, count: int) -> int:
        rows = []
        for commit in self._repository.walk(self._versions[-1]):
            rows.append((commit.id, commit.message, commit.commit_time))
            if len(rows) == count:
                break
        return len(rows)

    def read_one(self, version: int, key: str) -> str:
        return str(self._repository[self._versions[version]].tree[key[-2:]][key].data.decode())

    def read_all(self, version: int) -> int:
        tree = self._repository[self._versions[version]].tree
        return len({entry.name: entry.data.decode() for folder in tree for entry in folder})

    def diff(self, old: int, new: int) -> int:
        trees = [self._repository[self._versions[version]].tree for version in (old, new)]
        return len(list(trees[0].diff_to_tree(trees[1]).deltas))

    def close(self) -> None:
        self._repository.free()

    def _commit(self, tree: Any) -> None:
        parents = self._versions[-1:]
        self._versions.append(
            self._repository.create_commit(REFERENCE, self._author, self._author, "version", tree, parents)
        )
