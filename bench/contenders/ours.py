"""Analemma, by its public verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import analemma
from analemma.canon.pointer import Operation
from analemma.state.arguments import DeltaUpdate
from analemma.state.records import Commit
from bench.contenders.base import Contender, disk_bytes

OWNER = "ann"
WORKFLOW = "bench"


class Ours(Contender):
    """One workflow in a store of its own: a directory, or a database's URL."""

    name = "Analemma"

    def __init__(self, where: Path | str) -> None:
        self._where = where
        self._open()
        self.versions: list[str] = []
        self._forks = 0

    def reopen(self) -> None:
        self.app.close()
        self._open()

    def begin(self, state: dict[str, Any]) -> None:
        self.save(state)

    def save(self, delta: dict[str, Any] | DeltaUpdate) -> Commit:
        """One version."""
        commit = self.kernel.save_state_delta(delta, workflow_id=WORKFLOW, owner_id=OWNER)
        self.versions.append(commit.manifest_id)
        return commit

    def step(self, messages: list[dict[str, Any]], scratch: str) -> None:
        """A step of the agent."""
        added = [Operation("add", ("messages", "-"), message) for message in messages]
        self.save(DeltaUpdate((*added, Operation("put", ("scratch",), scratch))))

    def load(self) -> int:
        """All of the agent's state; the number of messages."""
        return len(self.kernel.load_latest_state(workflow_id=WORKFLOW, owner_id=OWNER)["messages"])

    def load_version(self, number: int) -> int:
        """All of the agent's state after that many steps; the number of messages."""
        return len(self.kernel.load_state(self.versions[number])["messages"])

    def fill(self, texts: dict[str, str]) -> None:
        """The first version of a table."""
        self.save({"entries": texts})

    def change(self, key: str, text: str) -> None:
        """One entry of the table, as a version."""
        self.save({f"/entries/{key}": text})

    def log(self, count: int) -> int:
        """The newest versions."""
        return len(self.kernel.history(workflow_id=WORKFLOW, owner_id=OWNER, limit=count))

    def read_one(self, version: int, key: str) -> str:
        """One entry of an old version."""
        pointer = f"/entries/{key}"
        return str(self.kernel.load_fields(self.versions[version], [pointer])[pointer])

    def read_all(self, version: int) -> int:
        """All entries of an old version."""
        return len(self.kernel.load_state(self.versions[version])["entries"])

    def diff(self, old: int, new: int) -> int:
        """How many entries differ."""
        return len(self.kernel.diff(self.versions[old], self.versions[new]))

    def branch(self, version: int) -> None:
        """A new branch from an old version."""
        self._forks += 1
        self.kernel.fork(self.versions[version], owner_id=OWNER, branch=f"fork-{self._forks}")

    def disk_bytes(self) -> int:
        """What the directory holds."""
        assert isinstance(self._where, Path)
        return disk_bytes(self._where)

    def close(self) -> None:
        self.app.close()

    def _open(self) -> None:
        self.app = analemma.open(self._where, migrate=True)
        self.kernel = self.app.kernel


class OursInABag(Ours):
    """The same through a bag, which finds out by itself what changed."""

    name = "Analemma with a bag"

    def begin(self, state: dict[str, Any]) -> None:
        super().begin(state)
        self._bag = self.kernel.load_latest_state(workflow_id=WORKFLOW, owner_id=OWNER, lazy=True)

    def step(self, messages: list[dict[str, Any]], scratch: str) -> None:
        # Copies, because the other contenders keep the messages: a bag compares what others hold at every save.
        self._bag["messages"].extend([dict(message) for message in messages])
        self._bag["scratch"] = scratch
        self.versions.append(self.kernel.save(self._bag).manifest_id)
