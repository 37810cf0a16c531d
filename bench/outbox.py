"""Delivering events that need nothing done: beside bare SQL on the same rows, and beside queues on the same server.

The peers keep no order, so they are compared with events that are alone in their aggregate, which is the dearest case
for us: each needs a lane of its own. The rows with ten events per aggregate show what order costs then."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import orjson
import psycopg

import analemma
from analemma.catalog.outbox.lanes import enqueue
from analemma.catalog.port import OutboxEvent
from analemma.settings import Settings
from bench.contenders import pgqueuer_jobs, procrastinate_jobs
from bench.contenders.base import missing
from bench.harness import Row, temporary_folder
from tests.raw_rows import connect
from tests.servers import PostgresServer, postgres_missing

CONCURRENCY = 2
FLOOR_BATCH = 500
TYPE = "Nothing"
SLOW_PEER_SHARE = 20
"""A peer that is so much slower gets so many fewer jobs."""

Drain = Callable[[list[bytes]], float]


def run(quick: bool) -> Iterator[Row]:
    """Draining on PostgreSQL and on SQLite."""
    events, rounds = (10_000, 3) if quick else (50_000, 5)
    reason = postgres_missing()
    if reason is not None:
        yield Row.skip("outbox drain, PostgreSQL", reason)
    else:
        server = PostgresServer(durable=True)
        try:
            yield from on_postgres(server, events, rounds)
        finally:
            server.stop()
    yield from on_sqlite(events, rounds)


def on_postgres(server: PostgresServer, events: int, rounds: int) -> Iterator[Row]:
    """Beside the floor, and beside each peer."""
    with closing(Ours(server.create_database())) as ours:
        floor = Floor(ours.url)
        for each in (1, 10):
            took = in_turns(ours.drainer(each), floor.drain, payloads(events), rounds)
            name = f"outbox drain, PostgreSQL, {each} per aggregate"
            yield rate_row(name, took, events, events, "bare SQL", None)
        floor.close()
    yield from _beside(
        server, pgqueuer_jobs.PACKAGES, pgqueuer_jobs.NAME, pgqueuer_jobs.PgqueuerJobs, events, rounds, 1.2
    )
    few = events // SLOW_PEER_SHARE
    yield from _beside(
        server,
        procrastinate_jobs.PACKAGES,
        procrastinate_jobs.NAME,
        procrastinate_jobs.ProcrastinateJobs,
        events,
        rounds,
        10,
        peer_events=few,
    )


def _beside(
    server: PostgresServer,
    packages: Sequence[str],
    peer: str,
    open_peer: Callable[[str], Any],
    events: int,
    rounds: int,
    goal: float,
    peer_events: int | None = None,
) -> Iterator[Row]:
    name = "outbox drain, PostgreSQL, 1 per aggregate"
    reason = missing(packages)
    if reason is not None:
        yield Row.skip(f"{name}, beside {peer}", reason)
        return
    theirs = open_peer(server.create_database())
    few = peer_events or events
    with closing(Ours(server.create_database())) as ours:
        drain_ours, made = ours.drainer(1), payloads(events)
        took = in_turns(lambda some: drain_ours(some), lambda some: theirs.drain(some[:few]), made, rounds)
        yield rate_row(name, took, events, few, peer, goal)


def on_sqlite(events: int, rounds: int) -> Iterator[Row]:
    """How fast it is embedded; no peer has that."""
    with temporary_folder() as folder, closing(Ours(str(folder / "store"))) as ours:
        for each in (1, 10):
            rate = statistics.median([events / ours.drainer(each)(payloads(events)) for _ in range(rounds)])
            yield Row(f"outbox drain, SQLite, {each} per aggregate", rate, "events/s")


class Ours:
    """A store whose events do nothing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._app = analemma.open(url, settings=Settings(), migrate=True)
        self._tenant = self._app.catalog.tenant("default")
        self._number = 0

    def drainer(self, each: int) -> Drain:
        """Drains events of which so many are in one aggregate."""

        def drain(made: list[bytes]) -> float:
            self._produce(made, each)
            worker = self._app.worker(CONCURRENCY, handlers={TYPE: lambda event, settle: None})
            started = time.perf_counter()
            counts = worker.drain()
            took = time.perf_counter() - started
            assert counts.delivered == len(made), f"{counts} of {len(made)}"
            return took

        return drain

    def close(self) -> None:
        """Give back connections."""
        self._app.close()

    def _produce(self, made: list[bytes], each: int) -> None:
        catalog = self._app.catalog
        for start in range(0, len(made), 1000):
            events = []
            for payload in made[start : start + 1000]:
                self._number += 1
                lane = f"shop:BOOK#shop#{self._number // each}"
                events.append(OutboxEvent(f"event-{self._number:010}", "RAW_DATA", lane, TYPE, payload))
            self._commit(events, catalog.clock.now_us())

    def _commit(self, events: list[OutboxEvent], now_us: int) -> None:
        self._app.catalog.engine.write(lambda tx: enqueue(tx, self._tenant, events, now_us=now_us))


class Floor:
    """The same rows in a table like the outbox, drained by two statements in a transaction: no lanes, so no order, no
    leases, and no telling who has what."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._connection.execute("CREATE TABLE floor (LIKE outbox INCLUDING ALL)")
        self._connection.execute("CREATE INDEX floor_pending ON floor (seq) WHERE status = 'PENDING'")
        self._connection.commit()
        self._number = 0

    def drain(self, made: list[bytes]) -> float:
        """Fill it, then settle everything in batches."""
        connection: psycopg.Connection[Any] = self._connection
        with connection.cursor() as cursor:
            rows = []
            for payload in made:
                self._number += 1
                rows.append((f"event-{self._number:010}", f"shop:BOOK#shop#{self._number}", self._number, payload))
            with cursor.copy(
                "COPY floor (id, aggregateid, seq, payload, tenant, aggregatetype, type, created_at) FROM STDIN"
            ) as copy:
                for row in rows:
                    copy.write_row((*row, 1, "RAW_DATA", TYPE, 0))
        connection.commit()
        started = time.perf_counter()
        done = 0
        while True:
            found = connection.execute(
                "SELECT id, aggregatetype, aggregateid, seq, type, payload, trace FROM floor WHERE status = 'PENDING' "
                "ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED",
                (FLOOR_BATCH,),
                prepare=True,
            ).fetchall()
            if not found:
                connection.commit()
                break
            for row in found:
                orjson.loads(row[5])
            connection.execute(
                "UPDATE floor SET status = 'PROCESSED', processed_at = 1 WHERE tenant = 1 AND id = ANY (%s)",
                ([row[0] for row in found],),
                prepare=True,
            )
            connection.commit()
            done += len(found)
        took = time.perf_counter() - started
        assert done == len(made)
        return took

    def close(self) -> None:
        """Give back the connection."""
        self._connection.close()


def payloads(count: int) -> list[bytes]:
    """References, as events of the view pipeline have them."""
    return [
        orjson.dumps(
            {
                "payloadVersion": "1.0",
                "tenantId": "shop",
                "entityKey": f"BOOK#shop#{number}",
                "version": f"0HZX{number:09}",
            }
        )
        for number in range(count)
    ]


def in_turns(ours: Drain, theirs: Drain, made: list[bytes], rounds: int) -> list[tuple[float, float]]:
    """Seconds of both; who goes first changes from round to round, and a first round warms both up."""
    took: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        if number % 2:
            other = theirs(made)
            took.append((ours(made), other))
        else:
            mine = ours(made)
            took.append((mine, theirs(made)))
    return took[1:]


def rate_row(name: str, took: list[tuple[float, float]], mine: int, theirs: int, peer: str, goal: float | None) -> Row:
    """Events per second of ours; how many times that of the other."""
    rates = [(mine / ours, theirs / other) for ours, other in took]
    ratio = statistics.median([ours / other for ours, other in rates])
    other = statistics.median([other for _, other in rates])
    value = statistics.median([ours for ours, _ in rates])
    against = f"{peer} ({other:,.0f}/s)"
    if goal is None:
        return Row(name, value, "events/s", ratio=ratio, against=against)
    return Row.at_least(name, value, "events/s", ratio=ratio, against=against, limit=goal)
