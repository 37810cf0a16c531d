"""Ours beside peers on the same machine, in turns: a large state, an agent at work, forks, and the verbs of a version
control system. A ratio says how many times less we take; a peer that is not here gives a row that says why."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg

from bench.contenders import dbos_forks, doltlite_process, git_repository, icechunk_store, langgraph_savers
from bench.contenders.base import Contender, missing
from bench.contenders.ours import Ours
from bench.harness import Row, temporary_folder
from bench.workload import agent_start, agent_step, entries, prose
from tests.servers import PostgresServer, postgres_missing

LARGE_ENTRIES = 10_000
LARGE_ENTRY_BYTES = 1000
TABLE_ENTRY_BYTES = 200
LOADS = 7
TURN = 10
"""Steps that one contender makes before the next one's turn."""

Opened = tuple[str, Sequence[str], Callable[[Path], Contender]]
"""A peer's name, the packages it needs, and how to open it."""

AGENT_PEERS: tuple[Opened, ...] = (
    ("SqliteSaver", langgraph_savers.SQLITE_PACKAGES, langgraph_savers.SqliteThread),
    ("SqliteSaver, DeltaChannel", langgraph_savers.DELTA_PACKAGES, langgraph_savers.DeltaThread),
    ("doltlite", doltlite_process.PACKAGES, doltlite_process.Doltlite),
)
TABLE_PEERS: tuple[Opened, ...] = (
    ("doltlite", doltlite_process.PACKAGES, doltlite_process.Doltlite),
    ("pygit2", git_repository.PACKAGES, git_repository.GitRepository),
    ("icechunk", icechunk_store.PACKAGES, icechunk_store.IcechunkStore),
)


def run(quick: bool) -> Iterator[Row]:
    """Every comparison."""
    yield from large_state_on_sqlite(puts=4 if quick else 10)
    yield from large_state_on_postgres(puts=4 if quick else 10)
    yield from agent_at_work(steps=200 if quick else 1000)
    versions, rounds = (200, 7) if quick else (1000, 15)
    yield from forks(steps=versions, rounds=rounds)
    yield from table_of_entries(versions=versions, rounds=rounds)


def large_state_on_sqlite(puts: int) -> Iterator[Row]:
    """One entry of 10 MB, against a saver that stores the whole state each time."""
    reason = missing(langgraph_savers.SQLITE_PACKAGES)
    for shape in _SHAPES:
        if reason is not None:
            yield Row.skip(f"{shape} of 10 MB, change 1 KB, SQLite", reason)
            continue
        with temporary_folder() as folder:
            ours, peer = folder / "ours", folder / "peer"
            yield from _large_state(
                f"{shape} of 10 MB, change 1 KB, SQLite",
                shape,
                lambda ours=ours: Ours(ours),  # type: ignore[misc]
                lambda peer=peer: langgraph_savers.SqliteThread(peer),  # type: ignore[misc]
                puts=puts,
            )


def large_state_on_postgres(puts: int) -> Iterator[Row]:
    """The same on a durable server."""
    reason = postgres_missing() or missing(langgraph_savers.POSTGRES_PACKAGES)
    if reason is not None:
        yield from [Row.skip(f"{shape} of 10 MB, change 1 KB, PostgreSQL", reason) for shape in _SHAPES]
        return
    server = PostgresServer(durable=True)
    try:
        for shape in _SHAPES:
            ours, peer = _database(server), _database(server)
            yield from _large_state(
                f"{shape} of 10 MB, change 1 KB, PostgreSQL",
                shape,
                lambda ours=ours: _OursInDatabase(ours),  # type: ignore[misc]
                lambda peer=peer: _PostgresThread(peer),  # type: ignore[misc]
                puts=puts,
            )
    finally:
        server.stop()


_SHAPES = ("dict", "dict handed over whole", "string")


class _OursInDatabase(Ours):
    def disk_bytes(self) -> int:
        return _database_bytes(str(self._where))


class _PostgresThread(langgraph_savers.PostgresThread):
    def __init__(self, url: str) -> None:
        self._url = url
        super().__init__(url)

    def disk_bytes(self) -> int:
        """What the database holds."""
        return _database_bytes(self._url)


def _database(server: PostgresServer) -> str:
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
        ).fetchone()
        if found is not None and found[0]:
            # Several times faster on large values than the default.
            connection.execute("ALTER ROLE ALL SET default_toast_compression = 'lz4'")
    return url


def _database_bytes(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert found is not None
    return int(found[0])


def _large_state(
    name: str, shape: str, open_ours: Callable[[], Any], open_peer: Callable[[], Any], *, puts: int
) -> Iterator[Row]:
    state = entries(LARGE_ENTRIES, LARGE_ENTRY_BYTES)
    text = prose(3, LARGE_ENTRIES * LARGE_ENTRY_BYTES)
    begin: dict[str, Any] = {"document": text} if shape == "string" else {"document": state}
    sizes = []
    for opened in (open_ours, open_peer):
        # Closed in between: what a log still holds is not yet where it will stay.
        with closing(opened()) as contender:
            contender.begin(begin)
        with closing(opened()) as contender:
            sizes.append(contender.disk_bytes())
    took: list[tuple[float, float]] = []
    with closing(open_ours()) as ours, closing(open_peer()) as peer:
        peer.resume(begin)
        for number in range(puts):
            fresh = prose(1000 + number, LARGE_ENTRY_BYTES)
            if shape == "string":
                place = number * len(text) // puts
                text = text[:place] + fresh + text[place + len(fresh) :]
                whole: Any = text
            else:
                key = f"entry-{number * LARGE_ENTRIES // puts:07}"
                state = {**state, key: fresh}
                whole = state
            delta = {f"/document/{key}": fresh} if shape == "dict" else {"document": whole}
            took.append(_both(ours, "save", (delta,), peer, "replace", ("document", whole), number))
        peer_name = peer.name
    written = []
    for opened, before in zip((open_ours, open_peer), sizes, strict=True):
        with closing(opened()) as contender:
            written.append((contender.disk_bytes() - before) / puts / 1000)
    yield _time_row(name, took, peer_name)
    yield _less(f"{name}, disk per put", "KB", written[0], written[1], peer_name, limit=1)


def agent_at_work(steps: int) -> Iterator[Row]:
    """Two messages of 1.4 KB more and 4.7 KB replaced at each step, beside 48 KB that never change."""
    title = f"agent, {steps:,} steps"
    with temporary_folder() as folder, ExitStack() as opened:
        peers: dict[str, Any] = {}
        for name, packages, open_peer in AGENT_PEERS:
            reason = missing(packages)
            if reason is None:
                peers[name] = opened.enter_context(closing(open_peer(folder / name.replace(", ", "-"))))
            else:
                yield Row.skip(f"{title}: {name}", reason)
        ours = opened.enter_context(closing(Ours(folder / "ours")))
        contenders: dict[str, Any] = {ours.name: ours, **peers}
        took: dict[str, list[float]] = {name: [] for name in contenders}
        for contender in contenders.values():
            contender.timed("begin", agent_start())
        for first in range(0, steps, TURN):
            turn = [agent_step(number) for number in range(first, first + TURN)]
            for name, contender in _rotated(contenders, first // TURN):
                took[name] += [contender.timed("step", step.messages, step.scratch)[0] for step in turn]
        loads: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(LOADS):
            for name, contender in _rotated(contenders, number):
                contender.reopen()
                seconds, count = contender.timed("load")
                assert count == 2 * steps, f"{name} lost messages: {count}"
                loads[name].append(seconds)
        for contender in contenders.values():
            contender.compact()
        opened.close()
        disk = {name: contender.disk_bytes() / 1e6 for name, contender in contenders.items()}
        tenth = max(TURN, steps // 10)
        for name in peers:
            early = list(zip(took[ours.name][:tenth], took[name][:tenth], strict=True))
            late = list(zip(took[ours.name][-tenth:], took[name][-tenth:], strict=True))
            yield _time_row(f"{title}: put, first tenth", early, name)
            yield _time_row(f"{title}: put, last tenth", late, name)
            yield _less(f"{title}: disk", "MB", disk[ours.name], disk[name], name, limit=1)
            yield _time_row(f"{title}: load all", list(zip(loads[ours.name], loads[name], strict=True)), name)


def forks(steps: int, rounds: int) -> Iterator[Row]:
    """A new line of history from the newest version."""
    name = f"fork at {steps:,} versions"
    reason = missing(dbos_forks.PACKAGES)
    if reason is not None:
        yield Row.skip(name, reason)
        return
    with temporary_folder() as folder, closing(Ours(folder / "ours")) as ours:
        try:
            peer = dbos_forks.DbosForks(folder / "dbos", steps=steps)
        except Exception as exc:
            yield Row.skip(name, f"DBOS does not run here: {exc}")
            return
        with closing(peer):
            ours.begin(agent_start())
            for number in range(steps - 1):
                step = agent_step(number)
                ours.step(step.messages, step.scratch)
            took = [_both(ours, "branch", (steps - 1,), peer, "branch", (steps,), turn) for turn in range(rounds)]
            yield _time_row(name, took, peer.name)


def table_of_entries(versions: int, rounds: int) -> Iterator[Row]:
    """10,000 entries, and as many versions that change one of them."""
    texts = entries(LARGE_ENTRIES, TABLE_ENTRY_BYTES)
    for name, packages, open_peer in TABLE_PEERS:
        reason = missing(packages)
        if reason is not None:
            yield Row.skip(f"10,000 entries: {name}", reason)
            continue
        with (
            temporary_folder() as folder,
            closing(Ours(folder / "ours")) as ours,
            closing(open_peer(folder / "peer")) as peer,
        ):
            yield from _table(ours, peer, texts, versions=versions, rounds=rounds)


def _table(ours: Contender, peer: Contender, texts: dict[str, str], *, versions: int, rounds: int) -> Iterator[Row]:
    for contender in (ours, peer):
        contender.timed("fill", texts)
    changed: list[tuple[float, float]] = []
    for number in range(1, versions):
        key = f"entry-{number * 7919 % LARGE_ENTRIES:07}"
        text = prose(number, TABLE_ENTRY_BYTES)
        changed.append(_both(ours, "change", (key, text), peer, "change", (key, text), number))
    yield _time_row("10,000 entries, change one", changed, peer.name)
    for name, verb, arguments in _reads(versions, rounds):
        took = []
        for given in arguments:
            (mine, answer), (theirs, other) = ours.timed(verb, *given), peer.timed(verb, *given)
            assert answer == other or verb == "diff", f"{peer.name} answers {verb}{given} with {other}, not {answer}"
            took.append((mine, theirs))
        yield _time_row(name, took, peer.name)
    if hasattr(peer, "branch") or peer.name == doltlite_process.Doltlite.name:
        took = [_both(ours, "branch", (number,), peer, "branch", (number,), number) for number in range(rounds)]
        yield _time_row("10,000 entries, branch from an old version", took, peer.name)


def _reads(versions: int, rounds: int) -> list[tuple[str, str, list[tuple[Any, ...]]]]:
    # Never the same version twice, so that no cache has the answer.
    old = [number * (versions - 2) // rounds for number in range(rounds)]
    keys = [f"entry-{number * 104_729 % LARGE_ENTRIES:07}" for number in range(rounds)]
    return [
        (f"10,000 entries, log of {versions:,} versions", "log", [(versions,)] * rounds),
        ("10,000 entries, one entry of an old version", "read_one", list(zip(old, keys, strict=True))),
        ("10,000 entries, all of an old version", "read_all", [(number,) for number in old]),
        ("10,000 entries, diff to the next version", "diff", [(number, number + 1) for number in old]),
        ("10,000 entries, diff across all versions", "diff", [(0, versions - 1)] * rounds),
    ]


def _both(
    ours: Contender,
    verb: str,
    given: Sequence[Any],
    peer: Contender,
    peer_verb: str,
    peer_given: Sequence[Any],
    turn: int,
) -> tuple[float, float]:
    """Seconds of both; who goes first changes from turn to turn."""
    if turn % 2:
        theirs = peer.timed(peer_verb, *peer_given)[0]
        return ours.timed(verb, *given)[0], theirs
    return ours.timed(verb, *given)[0], peer.timed(peer_verb, *peer_given)[0]


def _rotated(contenders: dict[str, Any], turn: int) -> list[tuple[str, Any]]:
    pairs = list(contenders.items())
    shift = turn % len(pairs)
    return pairs[shift:] + pairs[:shift]


def _time_row(name: str, took: Sequence[tuple[float, float]], peer: str, limit: float = 1) -> Row:
    """Median milliseconds of ours; the ratio is the median over neighbours in time."""
    ours = statistics.median([mine for mine, _ in took]) * 1000
    theirs = statistics.median([other for _, other in took]) * 1000
    ratio = statistics.median([other / mine for mine, other in took])
    return Row.at_least(name, ours, "ms", ratio=ratio, against=f"{peer} ({theirs:.3g} ms)", limit=limit)


def _less(name: str, unit: str, ours: float, theirs: float, peer: str, *, limit: float) -> Row:
    against = f"{peer} ({theirs:,.3g} {unit})"
    return Row.at_least(name, ours, unit, ratio=theirs / ours, against=against, limit=limit)
