"""`AnalemmaSaver`: LangGraph's checkpoints as versions of workflows, which `threads.Threads` stores and reads."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice, takewhile
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, cast, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from analemma.catalog.langgraph.carried_writes import INTERRUPT, RESUME
from analemma.catalog.langgraph.threads import ANSWERED, CheckpointRow, Fence, Written
from analemma.catalog.port import RowChange
from analemma.clock import Entropy, SystemEntropy
from analemma.errors import HeadMoved, Invalid
from analemma.langgraph import prune
from analemma.langgraph.threads import Place, Threads, branch_of, checkpoint_of, config_of, pack_write, place_of
from analemma.state.removal import remove_workflow
from analemma.store.open import open_app
from analemma.store.store import App

log = logging.getLogger(__name__)

OWNER = "langgraph"
CACHE_BYTES = 64 << 20
PAGE = 8
"""Tuples of a listing that are fetched in one hop to a thread."""

FENCE = "__analemma_fence"
"""Names that begin like this do not get into the metadata of checkpoints."""
RUNTIME = "__pregel_runtime"
TASK = "__pregel_task_id"
"""What LangGraph has in the config of every run, and in that of a graph inside of a task."""

OnConflict = Literal["raise", "branch", "last"]
P = ParamSpec("P")
T = TypeVar("T")


class CheckpointSummary(NamedTuple):
    """A checkpoint without its state: what history shows, and costs no blocks."""

    config: RunnableConfig
    metadata: CheckpointMetadata
    parent_config: RunnableConfig | None
    manifest_id: str
    """The version that it is, for `analemma show`, `diff` and the kernel."""


def _hop(
    verb: Callable[Concatenate[AnalemmaSaver, P], T],
) -> Callable[Concatenate[AnalemmaSaver, P], Coroutine[Any, Any, T]]:
    """The verb in a thread, since a store's input and output is synchronous. Giving up waiting does not stop it."""

    @functools.wraps(verb)
    async def awaited(self: AnalemmaSaver, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, await asyncio.to_thread(getattr(self, verb.__name__), *args, **kwargs))

    return awaited


class AnalemmaSaver(BaseCheckpointSaver[str]):
    """Keeps the checkpoints of LangGraph's threads in an Analemma store: each is a version of a workflow, and shares
    with the others what did not change.

    `where` is an open `App`, or what `analemma.open` takes; a store that was opened here is closed by `close()`.
    Threads are workflows of `owner` in `tenant` (that of the settings, unless told otherwise). Sync and async methods
    are on this one class, which is safe to share between threads.

    Reading makes objects only of types that LangGraph holds for safe and of those in `allowed_types` (classes, or
    pairs of module and name); others come back as plain data, with a warning. Another `serde` decides that for itself.

    Of two runs that go on from the same checkpoint of a thread, the one that comes later is told, with HeadMoved and
    nothing stored (`on_conflict="raise"`), goes on in a thread of its own (`"branch"`), or takes the thread over as if
    the other had not been (`"last"`). Naming a checkpoint in the config is no conflict.
    """

    def __init__(
        self,
        where: App | str | os.PathLike[str],
        *,
        owner: str = OWNER,
        tenant: str | None = None,
        allowed_types: Iterable[type | tuple[str, ...]] = (),
        serde: SerializerProtocol | None = None,
        cache_bytes: int = CACHE_BYTES,
        entropy: Entropy | None = None,
        on_conflict: OnConflict = "raise",
    ) -> None:
        allowed = list(allowed_types)
        if serde is not None and allowed:
            raise Invalid("allowed_types are for the serializer that comes with the saver", hint="tell your own serde")
        if on_conflict not in get_args(OnConflict):
            raise Invalid(f"there is no on_conflict {on_conflict!r}", hint="use 'raise', 'branch' or 'last'")
        # None, unlike nothing at all, is strict whatever the environment says.
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=allowed or None))
        self._entropy = entropy or SystemEntropy()
        self._on_conflict = on_conflict
        self._branching = threading.Lock()
        with ExitStack() as opened:
            app = where if isinstance(where, App) else opened.enter_context(open_app(where))
            chosen = app.default if tenant is None else app.tenant(tenant)
            self._threads = Threads(chosen, owner, self.serde, cache_bytes=cache_bytes)
            self._rows = self._threads.rows
            self._opened = opened.pop_all()

    def __enter__(self) -> AnalemmaSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store, if it was opened here; safe to call twice."""
        self._opened.close()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the newest of its thread and namespace."""
        place = self._place(config)
        checkpoint = self._named(place, config)
        for _ in range(3):
            if checkpoint is None:
                row = self._threads.newest(place.thread, place.branch)
            else:
                row = self._rows.find(place.thread, place.branch, checkpoint)
            writes = [] if row is None else self._rows.writes(row.thread, row.branch, row.checkpoint)
            read = None if row is None else row.checkpoint
            self._begin_run(config, place, read, writes, chosen=checkpoint is not None)
            if row is None:
                return None
            found = self._tuple(row, writes)
            if found is not None:
                return found
        return None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first: of a namespace, of a thread, or of all threads; with these values in their
        metadata, and below the id of another."""
        for row, _ in self._listed(config, filter, before, limit):
            found = self._tuple(row, self._rows.writes(row.thread, row.branch, row.checkpoint))
            if found is not None:
                yield found

    def history(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointSummary]:
        """The same without the states: reads rows and no blocks."""
        for row, metadata in self._listed(config, filter, before, limit):
            own, parent = _configs(row)
            yield CheckpointSummary(own, metadata, parent, row.manifest.hex())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, atomically and durably; one with the same id is replaced. The checkpoint that the config
        names is its parent."""
        place = self._place(config)
        parent = self._named(place, config)
        told: dict[str, Any] = {**get_checkpoint_metadata(config, metadata)}
        if place.thread != place_of(config).thread:
            told["branched_from"] = place_of(config).thread
        fence = self._fence(config, place)
        try:
            self._threads.save(place, parent, checkpoint, told, new_versions, fence)
        except HeadMoved as exc:
            own = self._go_on(fence, place, exc)
            self._threads.save(own, parent, checkpoint, {**told, "branched_from": place.thread}, new_versions)
            place = own
        return config_of(place.thread, place.namespace, str(checkpoint["id"]))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote on top of a checkpoint, which may itself be stored later."""
        place = self._place(config)
        checkpoint = self._named(place, config)
        if checkpoint is None:
            raise Invalid("the config names no checkpoint that was written on", hint="pass its checkpoint_id")
        stored = [
            pack_write(
                checkpoint,
                str(task_id),
                WRITES_IDX_MAP.get(channel, number),
                task_path,
                channel,
                self._threads.dumps(value),
            )
            for number, (channel, value) in enumerate(writes)
        ]
        told = {written.channel: written for written in stored}
        if INTERRUPT in told and RESUME in told:
            # A task that asks once more: what it was answered before is a part of the question.
            stored.append(told[RESUME]._replace(place=ANSWERED))
        if not stored:
            return
        fence = self._fence(config, place)
        try:
            self._rows.add_writes(place.thread, place.branch, stored, fence)
        except HeadMoved as exc:
            self._rows.add_writes(self._go_on(fence, place, exc).thread, place.branch, stored)

    def check_run(self, config: RunnableConfig) -> None:
        """HeadMoved if the run whose config this is has been passed by another on its thread: for a node to ask right
        before it does something that must not be done twice."""
        fence = _fence_in(config)
        if fence is not None and fence.holds(None) and self._on_conflict == "raise":
            self._rows.check_fence(fence, fence.read)

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its namespaces, checkpoints, writes and versions, tagged and pinned ones too; its
        blocks go by collection."""
        key = self._rows.key(str(thread_id))
        checkpoints = RowChange("drop_checkpoints", {**key, "branch": None}, None)
        dropped = [checkpoints, RowChange("drop_writes_of_thread", key, None)]
        remove_workflow(self._threads.kernel, self._threads.owner, str(thread_id), dropped)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove what these runs stored; tagged and pinned versions stay in the workflow's history. Conflict, with
        nothing changed, if a checkpoint that stays has delta channels which could not be put together any more."""
        prune.delete_for_runs(self._threads, [str(run) for run in run_ids])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Give a new thread all checkpoints and writes of another: rows only, no state is copied. It becomes a workflow
        of its own with its first own checkpoint."""
        self._threads.adopt(str(source_thread_id))
        self._rows.copy(str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of these threads but the newest of each namespace (`keep_latest`), or all (`delete`).
        Ancestors that the newest needs to put its delta channels together are kept with it."""
        if strategy == "delete":
            for thread in thread_ids:
                self.delete_thread(thread)
        elif strategy == "keep_latest":
            for thread in thread_ids:
                prune.keep_latest(self._threads, str(thread))
        else:
            raise Invalid(f"there is no strategy {strategy!r}", hint="use 'keep_latest' or 'delete'")

    def set_retention(
        self, thread_id: str | None = None, *, keep_last: int | None = None, ttl_s: int | None = None
    ) -> None:
        """Say which checkpoints of each namespace stay: so many of the newest, and those younger than that; of one
        thread, or of all that have no policy of their own. It is the policy of `kernel.set_retention` and `analemma
        retention`, and done by the collector. The newest always stays, with what its delta channels are made of."""
        owner, workflow = self._threads.owner, None if thread_id is None else str(thread_id)
        kernel = self._threads.kernel
        kernel.set_retention(owner_id=owner, workflow_id=workflow, keep_last=keep_last, keep_newer_than_s=ttl_s)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What was written to delta channels since each was last stored whole, along the parents of a checkpoint."""
        place = place_of(config)
        checkpoint = self._named(place, config)
        if checkpoint is None and channels:
            row = self._threads.newest(place.thread, place.branch)
            checkpoint = None if row is None else row.checkpoint
        return self._threads.lines(place.thread, place.branch, checkpoint, channels)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while page := await asyncio.to_thread(lambda: [*islice(found, PAGE)]):
            for each in page:
                yield each

    aget_tuple = _hop(get_tuple)
    aput = _hop(put)
    aput_writes = _hop(put_writes)
    acheck_run = _hop(check_run)
    adelete_thread = _hop(delete_thread)
    adelete_for_runs = _hop(delete_for_runs)
    acopy_thread = _hop(copy_thread)
    aprune = _hop(prune)
    aset_retention = _hop(set_retention)
    aget_delta_channel_history = _hop(get_delta_channel_history)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """A greater version, which no other branch of the same history gives to its own writes."""
        # Numbers without a fraction come from savers that count in integers.
        before = 0 if current is None else int(str(current).split(".")[0])
        return f"{before + 1:032}.{int.from_bytes(self._entropy.random_bytes(7), 'big') / 2**56:016}"

    def with_allowlist(self, extra_allowlist: Iterable[tuple[str, ...]]) -> AnalemmaSaver:
        """The same saver, on the same store, that also makes objects of these types."""
        twin = cast(AnalemmaSaver, super().with_allowlist(tuple(extra_allowlist)))
        twin._threads = self._threads.using(twin.serde)
        return twin

    def __copy__(self) -> AnalemmaSaver:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        # Whoever opened the store closes it.
        twin._opened = ExitStack()
        return twin

    def _listed(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[tuple[CheckpointRow, CheckpointMetadata]]:
        """Rows that were asked for, with their metadata."""
        rows = self._candidates(config, checkpoint_of(before), None if filter else limit)
        wanted = (filter or {}).items()
        told = ((row, self._metadata(row)) for row in rows)
        matching = (each for each in told if all(each[1].get(name) == value for name, value in wanted))
        return islice(matching, limit if limit is None else max(limit, 0))

    def _candidates(
        self, config: RunnableConfig | None, before: str | None, limit: int | None
    ) -> Iterator[CheckpointRow]:
        if config is None or (config.get("configurable") or {}).get("thread_id") is None:
            self._threads.adopt()
            yield from self._rows.every(before=before, limit=limit)
            return
        place = place_of(config)
        namespace = config["configurable"].get("checkpoint_ns")
        branch = None if namespace is None else branch_of(str(namespace))
        checkpoint = self._named(place, config)
        if checkpoint is None:
            if branch is None:
                self._threads.adopt(place.thread)
            else:
                self._threads.newest(place.thread, branch)
            yield from self._rows.every(place.thread, branch, before=before, limit=limit)
            return
        if before is None or checkpoint < before:
            # Nothing stands between an id and itself with this character behind it.
            rows = self._rows.every(place.thread, branch, before=f"{checkpoint}\x01")
            yield from takewhile(lambda row: row.checkpoint == checkpoint, rows)

    def _tuple(self, row: CheckpointRow, writes: Sequence[Written]) -> CheckpointTuple | None:
        """The checkpoint of a row; None if it was removed meanwhile."""
        snapshot = self._threads.read_row(row)
        if snapshot is None:
            return None
        loads, channels = self._threads.loads, snapshot.channels
        checkpoint: Checkpoint = loads(snapshot.checkpoint)
        # The row's: a version that was rolled back to is a checkpoint of its own, and has tasks of the same ids.
        checkpoint["id"] = row.alias or row.checkpoint
        # In the order of their versions, which the checkpoint keeps: that of a stored map is another.
        names = dict.fromkeys((*checkpoint.get("channel_versions", ()), *channels))
        stored = [(name, channels[name]) for name in names if name in channels]
        checkpoint["channel_values"] = {name: loads((channel.kind, channel.data)) for name, channel in stored}
        pending = [self._threads.pending(written) for written in writes if written.place != ANSWERED]
        config, parent = _configs(row)
        return CheckpointTuple(config, checkpoint, self._metadata(row), parent, pending)

    def _metadata(self, row: CheckpointRow) -> CheckpointMetadata:
        metadata: CheckpointMetadata = self._threads.loads((row.metadata_kind, row.metadata))
        # What LangGraph says of a checkpoint that repeats another. The step is that one's: ids of tasks follow from it.
        return metadata if row.alias is None else {**metadata, "source": "fork"}

    def _named(self, place: Place, config: RunnableConfig | None) -> str | None:
        """The checkpoint that a config names, if it does: by its id, or as it calls itself."""
        checkpoint = checkpoint_of(config)
        if checkpoint is None or not checkpoint.endswith("-"):
            return checkpoint
        known = self._rows.key(place.thread, place.branch)
        return self._rows.engine.row(str, "checkpoint_of_alias", **known, alias=checkpoint) or checkpoint

    def _begin_run(
        self, config: RunnableConfig, place: Place, read: str | None, writes: Iterable[Written], *, chosen: bool
    ) -> None:
        """A run has read a checkpoint, the newest or a chosen one, and what was written on top of it; or that there is
        none. It is known by what LangGraph puts into its config, and this is put beside that, since `put` and
        `put_writes` are handed the same config. Whoever calls a saver by hand, reads a state or edits it has no such
        config, and is never refused anything."""
        configurable = config["configurable"]
        if self._on_conflict == "last" or RUNTIME not in configurable:
            return
        around = _fence_in(config) if configurable.get(TASK) else None
        run, own = (os.urandom(16).hex(), set()) if around is None else (around.run, around.own)
        seen = frozenset(written.writer for written in writes if written.writer is not None)
        configurable[FENCE] = Fence(place.thread, place.branch, read or "", run, own, seen, chosen)

    def _fence(self, config: RunnableConfig, place: Place) -> Fence | None:
        """The fence of the run that stores something here, if it is one."""
        found = _fence_in(config)
        return found if found is not None and (found.thread, found.branch) == (place.thread, place.branch) else None

    def _place(self, config: RunnableConfig) -> Place:
        """The place that a config names; in a thread of the run's own, once it was passed and goes on in one."""
        place, fence = place_of(config), _fence_in(config)
        if fence is None or not fence.own:
            return place
        return self._own(Fence(place.thread, place.branch, "", fence.run, fence.own), place)

    def _go_on(self, fence: Fence | None, place: Place, exc: HeadMoved) -> Place:
        """Where a run goes on that another has passed, if it does."""
        if fence is None or self._on_conflict != "branch":
            raise exc
        own = self._own(fence, place)
        log.warning("%s: the run goes on in a thread of its own, %r", exc.message, own.thread)
        return own

    def _own(self, fence: Fence, place: Place) -> Place:
        """The same in a thread of the run's own, which is made if it is not there."""
        target = f"{fence.thread}~{fence.run[:8]}"
        with self._branching:
            if fence.branch not in fence.own:
                self._rows.branch_off(fence, target)
                fence.own.add(fence.branch)
        return place._replace(thread=target)


def _fence_in(config: RunnableConfig) -> Fence | None:
    """What the run whose config this is has read, if it is one that is told of others."""
    found = (config.get("configurable") or {}).get(FENCE)
    return found if isinstance(found, Fence) else None


def _configs(row: CheckpointRow) -> tuple[RunnableConfig, RunnableConfig | None]:
    """That of a checkpoint, and its parent's."""
    parent = None if row.parent is None else config_of(row.thread, row.namespace, row.parent)
    return config_of(row.thread, row.namespace, row.checkpoint), parent
