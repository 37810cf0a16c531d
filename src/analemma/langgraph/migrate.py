"""Copying threads from the databases of LangGraph's own savers: checkpoints, writes, namespaces and parents.

What is stored there is taken over without making objects of it: custom types stay the bytes they are, so nothing is
imported. A thread that was copied before is gone through again and only what is new is copied."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from analemma.catalog.langgraph.foreign import ForeignPlace, ForeignThreads, open_foreign
from analemma.errors import Corrupt, Invalid, Unavailable
from analemma.langgraph.saver import OWNER, AnalemmaSaver
from analemma.langgraph.threads import Serialized, branch_of, config_of, pack_write
from analemma.store.store import App

Progress = Callable[[int, int], None]
"""Told how many checkpoints are done, and of how many."""


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What was copied."""

    threads: int
    checkpoints: int
    skipped: int
    """Checkpoints that were there already."""
    writes: int
    """Writes of the checkpoints that were gone through, there already or not."""


def migrate_threads(
    source: str,
    app: App,
    *,
    owner: str = OWNER,
    tenant: str | None = None,
    threads: Collection[str] = (),
    serde: SerializerProtocol | None = None,
    progress: Progress | None = None,
) -> MigrationReport:
    """Copy threads (all, or those named) of a SqliteSaver file or a PostgresSaver database into a store. A source that
    was written with another serializer than LangGraph's own needs that as `serde`."""
    chosen = serde or opaque_serializer()
    saver = AnalemmaSaver(app, owner=owner, tenant=tenant, serde=chosen)
    with open_foreign(source) as foreign:
        reader = _reader(foreign, chosen)
        places = [place for place in foreign.places() if not threads or place.thread in threads]
        missing = set(threads) - {place.thread for place in places}
        if missing:
            raise Invalid(f"there is no thread {min(missing)!r} in {source}", hint="check --thread")
        total = sum(place.checkpoints for place in places)
        done = copied = written = 0
        for place in places:
            known = {row.checkpoint for row in saver._threads.rows.every(place.thread, branch_of(place.namespace))}
            for checkpoint in foreign.checkpoints(place):
                if checkpoint not in known:
                    _copy(reader, saver, place, checkpoint)
                    copied += 1
                written += _copy_writes(foreign, saver, place, checkpoint)
                done += 1
                if progress is not None:
                    progress(done, total)
    return MigrationReport(len({place.thread for place in places}), copied, done - copied, written)


def opaque_serializer() -> JsonPlusSerializer:
    """LangGraph's serializer, which leaves custom types as the bytes they are."""
    return JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: ormsgpack.Ext(code, data))


def _reader(foreign: ForeignThreads, serde: SerializerProtocol) -> BaseCheckpointSaver[Any]:
    """The saver that wrote the database."""
    try:
        if foreign.is_file:
            from langgraph.checkpoint.sqlite import SqliteSaver

            return SqliteSaver(foreign.connection, serde=serde)
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver(foreign.connection, serde=serde)
    except ModuleNotFoundError as exc:
        package = "langgraph-checkpoint-sqlite" if foreign.is_file else "langgraph-checkpoint-postgres"
        raise Unavailable(f"reading this database needs {package}", hint=f"pip install {package}") from exc


def _copy(reader: BaseCheckpointSaver[Any], saver: AnalemmaSaver, place: ForeignPlace, checkpoint: str) -> None:
    try:
        found = reader.get_tuple(config_of(place.thread, place.namespace, checkpoint))
    except NotImplementedError as exc:
        raise Invalid(
            f"checkpoint {checkpoint} of thread {place.thread!r} cannot be read: {exc}",
            hint="an encrypted thread is migrated by migrate_threads(serde=...), with its own serializer",
        ) from exc
    if found is None:
        raise Corrupt(f"checkpoint {checkpoint} of thread {place.thread!r} is gone", hint="run it again")
    parent = found.parent_config or config_of(place.thread, place.namespace, None)
    # All versions count as new: what is the same as in the parent is found by its bytes.
    saver.put(parent, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])


def _copy_writes(foreign: ForeignThreads, saver: AnalemmaSaver, place: ForeignPlace, checkpoint: str) -> int:
    writes = [
        pack_write(checkpoint, task, number, path, channel, Serialized(kind, data))
        for task, number, path, channel, kind, data in foreign.writes(place, checkpoint)
    ]
    if writes:
        saver._threads.rows.add_writes(place.thread, branch_of(place.namespace), writes)
    return len(writes)
