"""LangGraph's checkpoint savers, called as LangGraph's own loop calls them: one `put` per step with the whole state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.contenders.base import Contender, disk_bytes

SQLITE_PACKAGES = ("langgraph.checkpoint.sqlite",)
POSTGRES_PACKAGES = ("langgraph.checkpoint.postgres",)
DELTA_PACKAGES = ("langgraph.checkpoint.sqlite", "langgraph.channels.delta")
SNAPSHOT_EVERY = 100
"""How many updates of a DeltaChannel make a snapshot unless told otherwise."""

Values = dict[str, Any]


class Saver(Contender):
    """One thread of checkpoints."""

    def __init__(self, open_saver: Callable[[], AbstractContextManager[Any]]) -> None:
        self._open_saver = open_saver
        self._open()
        self._values: Values = {}
        self._versions: dict[str, Any] = {}
        self._number = 0
        self._config: dict[str, Any] = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
        self._configs: list[dict[str, Any]] = []

    def begin(self, state: Values) -> None:
        self._values = dict(state)
        self.put(list(state))

    def replace(self, field: str, value: Any) -> None:
        """Give a channel a new value, and store the checkpoint."""
        self._values[field] = value
        self.put([field])

    def step(self, messages: list[dict[str, Any]], scratch: str) -> None:
        """A step of the agent."""
        self._values["messages"].extend(messages)
        self._values["scratch"] = scratch
        self.put(["messages", "scratch"])

    def put(self, changed: list[str]) -> None:
        """Store a checkpoint in which these channels are new."""
        self._put(self._values, changed)

    def load(self) -> int:
        """The newest checkpoint; the number of messages."""
        return self._message_count(self._newest())

    def load_version(self, number: int) -> int:
        """The checkpoint after that many steps; the number of messages."""
        return self._message_count(self.saver.get_tuple(self._configs[number]))

    def _message_count(self, found: Any) -> int:
        return len(found.checkpoint["channel_values"]["messages"])

    def resume(self, state: Values) -> None:
        """Go on from a state that is stored already."""
        self._values = dict(state)
        newest = self._newest()
        self._config = newest.config
        self._versions = dict(newest.checkpoint["channel_versions"])

    def reopen(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self._opened.__exit__(None, None, None)

    def _open(self) -> None:
        self._opened = self._open_saver()
        self.saver: Any = self._opened.__enter__()
        self.saver.setup()

    def _newest(self) -> Any:
        return self.saver.get_tuple({"configurable": {"thread_id": "bench", "checkpoint_ns": ""}})

    def _put(self, values: Values, changed: list[str]) -> None:
        from langgraph.checkpoint.base import empty_checkpoint

        fresh = {channel: self.saver.get_next_version(self._versions.get(channel), None) for channel in changed}
        self._versions.update(fresh)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = values
        checkpoint["channel_versions"] = dict(self._versions)
        metadata = {"source": "loop", "step": self._number, "parents": {}}
        self._config = self.saver.put(self._config, checkpoint, metadata, fresh)
        self._configs.append(self._config)
        self._number += 1


class SqliteThread(Saver):
    """SqliteSaver: write-ahead log, synced at every commit, as it sets itself up."""

    name = "SqliteSaver"

    def __init__(self, place: Path) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver

        place.mkdir(exist_ok=True)
        self._place = place
        super().__init__(lambda: SqliteSaver.from_conn_string(str(place / "checkpoints.sqlite")))

    def disk_bytes(self) -> int:
        """What the directory holds."""
        return disk_bytes(self._place)


class DeltaThread(SqliteThread):
    """SqliteSaver with messages in a DeltaChannel (beta): a step stores its writes, every hundredth a snapshot."""

    name = "SqliteSaver, DeltaChannel"

    def begin(self, state: Values) -> None:
        self._messages: list[Any] = list(state["messages"])
        self._values = {name: value for name, value in state.items() if name != "messages"}
        self._put(self._values, list(state))

    def step(self, messages: list[dict[str, Any]], scratch: str) -> None:
        from langgraph.checkpoint.serde.types import _DeltaSnapshot

        self._messages.extend(messages)
        self._values["scratch"] = scratch
        values = dict(self._values)
        if self._number % SNAPSHOT_EVERY == 0:
            values["messages"] = _DeltaSnapshot(list(self._messages))
        # Writes belong to the checkpoint that the step started from.
        self.saver.put_writes(self._config, [("messages", messages)], f"task-{self._number}")
        self._put(values, ["messages", "scratch"])

    def _message_count(self, found: Any) -> int:
        # The newest snapshot, and the writes since.
        held = found.checkpoint["channel_values"].get("messages")
        if held is not None:
            return len(held.value)
        history = self.saver.get_delta_channel_history(config=found.config, channels=["messages"])["messages"]
        messages = list(history["seed"].value) if "seed" in history else []
        for _, _, value in history["writes"]:
            messages.extend(value)
        return len(messages)


class PostgresThread(Saver):
    """PostgresSaver on its recommended connection: autocommit, prepared statements, pipelines."""

    name = "PostgresSaver"

    def __init__(self, url: str) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver

        super().__init__(lambda: PostgresSaver.from_conn_string(url))
