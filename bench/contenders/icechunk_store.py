"""Icechunk: versioned Zarr arrays. An entry is a row of bytes, and rows lie in chunks about as large as our leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.contenders.base import Contender

PACKAGES = ("icechunk", "zarr", "numpy")
ROWS_PER_CHUNK = 64


class IcechunkStore(Contender):
    """A local repository. Its local storage does not sync files, so its commits are cheaper than durable ones."""

    name = "icechunk, not synced"

    def __init__(self, place: Path) -> None:
        import icechunk

        storage = icechunk.local_filesystem_storage(str(place))
        self._repository: Any = icechunk.Repository.create(storage)
        self._versions: list[str] = []
        self._numbers: dict[str, int] = {}
        self._width = 0

    def fill(self, texts: dict[str, str]) -> None:
        import numpy
        import zarr

        self._numbers = {key: number for number, key in enumerate(texts)}
        self._width = max([len(text.encode()) for text in texts.values()])
        session = self._repository.writable_session("main")
        array: Any = zarr.create_array(
            store=session.store,
            name="entries",
            shape=(len(texts), self._width),
            chunks=(ROWS_PER_CHUNK, self._width),
            dtype="uint8",
        )
        array[:] = numpy.stack([self._row(text) for text in texts.values()])
        self._versions.append(session.commit("version"))

    def change(self, key: str, text: str) -> None:
        import zarr

        session = self._repository.writable_session("main")
        array: Any = zarr.open_array(session.store, path="entries", mode="r+")
        array[self._numbers[key]] = self._row(text)
        self._versions.append(session.commit("version"))

    def log(self, count: int) -> int:
        rows = []
        for snapshot in self._repository.ancestry(branch="main"):
            rows.append((snapshot.id, snapshot.message, snapshot.written_at))
            if len(rows) == count:
                break
        return len(rows)

    def read_one(self, version: int, key: str) -> str:
        row = self._array(version)[self._numbers[key]]
        return bytes(row).rstrip(b"\0").decode()

    def read_all(self, version: int) -> int:
        rows = self._array(version)[:]
        return len([bytes(row).rstrip(b"\0").decode() for row in rows])

    def diff(self, old: int, new: int) -> int:
        """The chunks that differ: it knows no smaller part."""
        diff = self._repository.diff(from_snapshot_id=self._versions[old], to_snapshot_id=self._versions[new])
        return sum([len(chunks) for chunks in diff.updated_chunks.values()])

    def _array(self, version: int) -> Any:
        import zarr

        session = self._repository.readonly_session(snapshot_id=self._versions[version])
        return zarr.open_array(session.store, path="entries", mode="r")

    def _row(self, text: str) -> Any:
        import numpy

        return numpy.frombuffer(text.encode()[: self._width].ljust(self._width, b"\0"), dtype="uint8")
