"""Ours beside peers on the same machine, in turns: a large state, forks, and the verbs of a version control system. A
ratio says how many times less we take; a peer that is not here gives a row that says why. (An agent at work has a
module of its own.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg

from bench.contenders import dbos_forks, doltlite_process, git_repository, icechunk_store, langgraph_savers
from bench.contenders.base import Contender, Opened, missing
from bench.contenders.ours import Ours
from bench.harness import Row, less, temporary_folder, time_row
from bench.workload import agent_start, agent_step, entries, prose
from tests.servers import PostgresServer, postgres_missing

LARGE_ENTRIES = 10_000
LARGE_ENTRY_BYTES = 1000
TABLE_ENTRY_BYTES = 200

TABLE_PEERS: tuple[Opened, ...] = (
    ("doltlite", doltlite_process.PACKAGES, doltlite_process.Doltlite),
    ("pygit2", git_repository.PACKAGES, git_repository.GitRepository),
    ("icechunk", icechunk_store.PACKAGES, icechunk_store.IcechunkStore),
)


def run(quick: bool) -> Iterator[Row]:
    """Every comparison."""
    yield from large_state_on_sqlite(puts=4 if quick else 10)
    yield from large_state_on_postgres(puts=4 if quick else 10)
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
    yield time_row(name, took, peer_name)
    yield less(f"{name}, disk per put", "KB", written[0], written[1], peer_name, limit=1)


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
            yield time_row(name, took, peer.name)


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
    yield time_row("10,000 entries, change one", changed, peer.name)
    for name, verb, arguments in _reads(versions, rounds):
        took = []
        for given in arguments:
            (mine, answer), (theirs, other) = ours.timed(verb, *given), peer.timed(verb, *given)
            assert answer == other or verb == "diff", f"{peer.name} answers {verb}{given} with {other}, not {answer}"
            took.append((mine, theirs))
        yield time_row(name, took, peer.name)
    if hasattr(peer, "branch") or peer.name == doltlite_process.Doltlite.name:
        took = [_both(ours, "branch", (number,), peer, "branch", (number,), number) for number in range(rounds)]
        yield time_row("10,000 entries, branch from an old version", took, peer.name)


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
