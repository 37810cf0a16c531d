"""Two use one idempotency key at the same moment, one that counts no more or a new one: it is one request."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.testing import failpoints
from tests.actors import Actor
from tests.postgres_locks import beside, held_behind_a_row_of, wait_for_waiting
from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
MONTH_US = 31 * 86_400 * 1_000_000
KEY = "order-1"


@pytest.fixture
def old(store: Store) -> Store:
    """A store in which the key was used a month ago, and the version of that expired."""
    with store.open() as app:
        save(app, "main")
        app.kernel.fork(app.kernel.history(**PLACE)[0].manifest_id, owner_id="ann", branch="side")
        for branch in ("main", "side"):
            app.kernel.save_state_delta({"later": True}, branch=branch, **PLACE)
        app.kernel.set_retention(keep_last=1, **PLACE)
        for branch in ("main", "side"):
            app.kernel.expire(branch=branch, **PLACE)
    assert change(store, "UPDATE idempotency SET created_at = created_at - ?", [MONTH_US]) == 1
    return store


def save(app: analemma.App, branch: str) -> analemma.Commit:
    return app.kernel.save_state_delta({"place": "Oslo"}, idempotency_key=KEY, branch=branch, **PLACE)


def save_elsewhere(url: str, objects: str | None, branch: str) -> None:
    with Store(url, objects).open() as app:
        try:
            print(json.dumps(save(app, branch).manifest_id))
        except analemma.errors.Conflict as exc:
            print(json.dumps(str(exc)))


def checkpoint_elsewhere(url: str, objects: str | None, branch: str) -> None:
    with Store(url, objects).open() as app:
        ticket = app.kernel.checkpoint_async({"place": "Oslo"}, idempotency_key=KEY, branch=branch, **PLACE)
        try:
            print(json.dumps(app.kernel.wait_for(ticket).manifest_id))
        except analemma.errors.Conflict as exc:
            print(json.dumps(str(exc)))


def version(app: analemma.App, branch: str) -> int:
    return app.kernel.history(branch=branch, **PLACE)[0].version


ELSEWHERE = pytest.mark.parametrize(
    ("elsewhere", "at"),
    [(save_elsewhere, "commit.before_transaction"), (checkpoint_elsewhere, "apply.before_transaction")],
    ids=["save", "checkpoint"],
)


@ELSEWHERE
def test_of_two_equal_requests_under_an_old_key_one_makes_a_version_and_both_have_it(
    old: Store, elsewhere: Any, at: str
) -> None:
    with old.open() as app, Actor(elsewhere, old.url, old.objects, "main", at=at) as actor:
        actor.wait_until_stopped()
        before = version(app, "main")
        if elsewhere is save_elsewhere:
            first = save(app, "main").manifest_id
        actor.thaw()
        assert actor.wait() == 0, actor.errors
        if elsewhere is checkpoint_elsewhere:
            first = save(app, "main").manifest_id
        assert version(app, "main") == before + 1
        if elsewhere is save_elsewhere:
            assert json.loads(actor.output) == first
        assert select(old, "SELECT count(*) FROM idempotency") == [(1,)]


@ELSEWHERE
def test_of_two_branches_under_an_old_key_one_gets_it_and_the_other_is_told(
    old: Store, elsewhere: Any, at: str
) -> None:
    with old.open() as app, Actor(elsewhere, old.url, old.objects, "side", at=at) as actor:
        actor.wait_until_stopped()
        before = version(app, "side")
        first = save(app, "main")
        actor.thaw()
        assert actor.wait() == 0, actor.errors
        assert "another request" in json.loads(actor.output) and version(app, "side") == before
        assert save(app, "main").manifest_id == first.manifest_id


def test_the_other_is_told_too_when_it_comes_before_the_first_is_done(old: Store) -> None:
    with old.open() as app, Actor(save_elsewhere, old.url, old.objects, "main", at="commit.after_commit") as actor:
        actor.wait_until_stopped()
        with pytest.raises(analemma.errors.Conflict, match="another request"):
            save(app, "side")
        actor.thaw()
        assert actor.wait() == 0, actor.errors
        assert save(app, "main").manifest_id == json.loads(actor.output)


def test_a_collector_that_found_an_old_key_leaves_the_one_that_was_made_of_it_meanwhile(old: Store) -> None:
    with old.open() as app, old.open() as other:
        made: list[str] = []
        with failpoints.call("gc.before_forget", lambda: made.append(save(other, "main").manifest_id)):
            report = app.gc.run()
        assert report.ok and [each.keys for each in report.tenants] == [0]
        assert save(app, "main").manifest_id == made[0]


def collect_elsewhere(url: str, objects: str | None) -> None:
    with Store(url, objects).open(gc_lease_s=1) as app:
        app.gc.run()


def test_a_collector_that_is_killed_before_it_forgets_keys_leaves_them_to_the_next(old: Store) -> None:
    with Actor(collect_elsewhere, old.url, old.objects, at="gc.before_forget", then="kill") as actor:
        assert actor.wait() == -signal.SIGKILL
    assert select(old, "SELECT count(*) FROM idempotency") == [(1,)]
    change(old, "UPDATE gc SET lease_until = 0")
    with old.open() as app:
        assert [each.keys for each in app.gc.run().tenants] == [1]
    assert select(old, "SELECT count(*) FROM idempotency") == [(0,)]


def plan(state: Any, ctx: Any) -> dict[str, Any]:
    return {"did": state["did"] + 1}


def run(app: analemma.App) -> str:
    flow = analemma.Flow("trip")
    flow.step(plan, reads=["did"], writes=["did"])
    return app.flows.run(flow, {"did": 0}, idempotency_key=KEY, workflow_id="runs", owner_id="ann").execution_id


def run_elsewhere(url: str, objects: str | None) -> None:
    with Store(url, objects).open() as app:
        print(run(app))


def test_of_two_runs_under_an_old_key_one_is_begun_and_both_have_it(store: Store) -> None:
    runs: dict[str, Any] = {"workflow_id": "runs", "owner_id": "ann"}
    with store.open() as app:
        first = run(app)
        app.kernel.set_retention(keep_last=1, **runs)
        assert app.kernel.expire(**runs).expired
        assert change(store, "UPDATE run SET ended_at = ended_at - ?", [MONTH_US]) == 1
        with Actor(run_elsewhere, store.url, store.objects, at="commit.before_transaction") as actor:
            actor.wait_until_stopped()
            second = run(app)
            actor.thaw()
            assert actor.wait() == 0, actor.errors
            assert actor.output.strip() == second != first
        assert len(list(app.flows.runs())) == 2


def take_away(app: analemma.App) -> Callable[[], analemma.Commit]:
    gone = analemma.DeltaUpdate((analemma.Operation("remove", ("place",)),))
    return lambda: app.kernel.save_state_delta(gone, idempotency_key=KEY, **PLACE)


def save_bag(app: analemma.App) -> Callable[[], analemma.Commit]:
    bag = app.kernel.load_latest_state(lazy=True, **PLACE)
    bag["place"] = {"town": "Bergen"}
    return lambda: app.kernel.save(bag, rebase=True, idempotency_key=KEY)


@pytest.mark.parametrize("prepare", [take_away, save_bag])
def test_a_request_that_can_be_done_only_once_is_answered_to_both_who_make_it(
    prepare: Callable[[analemma.App], Callable[[], analemma.Commit]], migrated_url: str, tmp_path: Path
) -> None:
    server = Store(migrated_url, str(tmp_path / "objects"))
    made: list[analemma.Commit] = []
    with server.open() as app, server.open() as other:
        app.kernel.save_state_delta({"place": {"town": "Oslo"}}, **PLACE)
        first, second = prepare(other), prepare(app)
        app.kernel.save_state_delta({"later": True}, **PLACE)
        with held_behind_a_row_of(server.url, "manifest") as go_on, beside(lambda: made.append(first())) as one:
            wait_for_waiting(server.url, one)
            assert one.is_alive()
            with beside(lambda: made.append(second())) as two:
                wait_for_waiting(server.url, one, two)
                assert two.is_alive()
                go_on()
    assert [commit.version for commit in made] == [3, 3]
