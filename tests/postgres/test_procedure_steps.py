"""A function of PostgreSQL that is cut off at any of its statements has done nothing: it is done again, or can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from analemma import App
from analemma.errors import Unavailable
from analemma.testing import failpoints
from tests.depth import some
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import connect
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
CUT_OFF = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND NOT granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


Verb = Callable[[App], object]


def versions(app: App) -> int:
    return len(app.kernel.history(**AT))


def tags(app: App) -> int:
    return len(app.kernel.tags(**AT))


def save(app: App) -> object:
    return app.kernel.save_state_delta({"n": versions(app)}, **AT)


def save_under_a_key(app: App) -> object:
    return app.kernel.save_state_delta({"n": versions(app)}, **AT, idempotency_key=f"key {versions(app)}")


def insist(app: App, verb: Verb) -> object:
    """What is a transaction of more than one call fails if it is cut off before its COMMIT, and nothing was done."""
    try:
        return verb(app)
    except Unavailable:
        return verb(app)


def tag(app: App) -> object:
    return app.kernel.tag(app.kernel.history(**AT)[0].manifest_id, f"tag-{tags(app)}", owner_id="ann")


def checkpoint(app: App) -> object:
    ticket = app.kernel.checkpoint_async({"n": versions(app)}, **AT)
    return insist(app, lambda app: app.kernel.wait_for(ticket))


VERBS: list[tuple[str, Verb, Callable[[App], int]]] = [
    ("commit_versions", save, versions),
    ("commit_versions", save_under_a_key, versions),
    ("put_ref", tag, tags),
    ("settle_pending", checkpoint, versions),
]


@contextmanager
def held(url: str, step: str) -> Iterator[psycopg.Connection]:
    with connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [step])
        yield connection


@pytest.mark.parametrize(("procedure", "verb", "count"), some(VERBS, test=[VERBS[0], VERBS[2]]))
def test_what_is_cut_off_at_a_step_is_done_once(
    procedure: str, verb: Verb, count: Callable[[App], int], migrated_url: str
) -> None:
    failpoints.wait_at_steps(migrated_url)
    steps = [name for name in failpoints.steps() if name.startswith(f"{procedure}.")]
    reached = []
    with Store(migrated_url).open() as app:
        for n in range(2):
            app.kernel.save_state_delta({"n": n}, **AT)
        for step in steps:
            before = count(app)
            with held(migrated_url, step) as holder, beside(lambda: insist(app, verb)) as doing:
                wait_for_waiting(migrated_url, doing)
                if doing.is_alive():
                    reached.append(step)
                    assert count(app) == before
                    holder.execute(CUT_OFF)
                    wait_for_waiting(migrated_url, doing)
                holder.execute("SELECT pg_advisory_unlock_all()")
            assert count(app) == before + 1, step
        assert app.kernel.verify(**AT).problems == []
    assert len(reached) > 2
