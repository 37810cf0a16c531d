"""Which run a call comes from. A run of a graph is known by what LangGraph puts into its config; what the run has read
is put beside it, since LangGraph hands the same config to `put` and `put_writes`.

Whoever calls a saver by hand, reads a state or edits it has no such config, and is never refused anything."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal, get_args

from analemma.catalog.langgraph.threads import Fence, ThreadRows
from analemma.clock import Entropy
from analemma.errors import Invalid
from analemma.langgraph.places import Place
from analemma.langgraph.snapshots import Recent

OnConflict = Literal["raise", "branch", "last"]

KEY = "__analemma_fence"
"""Names that begin like this do not get into the metadata of checkpoints."""
RUNTIME = "__pregel_runtime"
TASK = "__pregel_task_id"
"""What LangGraph has in the config of every run, and in that of a graph inside of a task."""
REMEMBERED_RUNS = 4096


class Fences:
    """The fences of the runs that use one saver. Safe to share between threads."""

    def __init__(self, on_conflict: OnConflict, rows: ThreadRows, entropy: Entropy) -> None:
        if on_conflict not in get_args(OnConflict):
            raise Invalid(f"there is no on_conflict {on_conflict!r}", hint="use 'raise', 'branch' or 'last'")
        self.on_conflict = on_conflict
        self._rows = rows
        self._entropy = entropy
        self._lock = threading.Lock()
        self._branched: Recent[str, set[str]] = Recent(REMEMBERED_RUNS)

    def begin(self, config: Mapping[str, Any], place: Place, read: str | None, *, chosen: bool) -> None:
        """A run has read a checkpoint, the newest or a chosen one, or that there is none."""
        configurable = config["configurable"]
        if self.on_conflict == "last" or RUNTIME not in configurable:
            return
        around = configurable.get(KEY) if configurable.get(TASK) else None
        run = around.run if isinstance(around, Fence) else self._entropy.random_bytes(16).hex()
        seen = frozenset() if read is None else self._rows.writers(place.thread, place.branch, read)
        configurable[KEY] = Fence(place.thread, place.branch, read or "", run, seen, chosen)

    def of(self, config: Mapping[str, Any], place: Place) -> Fence | None:
        """The fence of the run that stores something here, if it is one."""
        found = (config.get("configurable") or {}).get(KEY)
        if not isinstance(found, Fence) or (found.thread, found.branch) != (place.thread, place.branch):
            return None
        return found

    def elsewhere(self, config: Mapping[str, Any], place: Place) -> Place:
        """Where a run stands: in a thread of its own, once it was passed and goes on in one."""
        found = (config.get("configurable") or {}).get(KEY)
        if not isinstance(found, Fence) or self._branched.get(found.run) is None:
            return place
        return self._own_thread(Fence(place.thread, place.branch, "", found.run), place)

    def branch_off(self, fence: Fence, place: Place) -> Place:
        """Have a run that was passed go on in a thread of its own."""
        if self._branched.get(fence.run) is None:
            self._branched.put(fence.run, set())
        return self._own_thread(fence, place)

    def _own_thread(self, fence: Fence, place: Place) -> Place:
        target = f"{fence.thread}~{fence.run[:8]}"
        with self._lock:
            copied = self._branched.get(fence.run)
            if copied is not None and fence.branch not in copied:
                self._rows.branch_off(fence, target)
                copied.add(fence.branch)
        return place._replace(thread=target)
