"""Arguments that are odd, and of which no catalog may be asked: every verb says the same of them, on every catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import analemma
from analemma import App, SmartStateBag
from analemma.errors import AnalemmaError, Conflict, Invalid
from tests.stores import Store

TRIP: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
NAN = float("nan")
LONGEST_KEY = 65_536


@pytest.fixture
def app() -> Iterator[App]:
    with analemma.open("sqlite:///:memory:") as opened:
        yield opened


REFUSED: dict[str, Callable[[Any, str], object]] = {
    "branches of a number": lambda k, m: k.branches(workflow_id=5, owner_id="ann"),
    "branches of nobody": lambda k, m: k.branches(workflow_id="trip", owner_id=None),
    "workflow with NUL": lambda k, m: k.get_workflow(workflow_id="trip\0", owner_id="ann"),
    "tags of a number": lambda k, m: k.tags(workflow_id=5, owner_id="ann"),
    "pins of a number": lambda k, m: k.pins(workflow_id=5, owner_id="ann"),
    "untag a number": lambda k, m: k.untag(5, **TRIP),
    "untag NUL": lambda k, m: k.untag("a\0", **TRIP),
    "list of a number": lambda k, m: k.list_workflows(owner_id=5),
    "list by a number": lambda k, m: k.list_workflows(owner_id="ann", name_prefix=5),
    "list by NUL": lambda k, m: k.list_workflows(owner_id="ann", name_prefix="a\0"),
    "list after NUL": lambda k, m: k.list_workflows(owner_id="ann", cursor="AA=="),
    "half a workflow": lambda k, m: k.list_workflows(owner_id="ann", limit=1.5),
    "some workflows": lambda k, m: k.list_workflows(owner_id="ann", limit="5"),
    "retention of a number": lambda k, m: k.get_retention(owner_id=5),
    "keep true": lambda k, m: k.set_retention(owner_id="ann", keep_last=True),
    "keep a half": lambda k, m: k.set_retention(owner_id="ann", keep_last=1.5),
    "keep some": lambda k, m: k.set_retention(owner_id="ann", keep_last="3"),
    "keep NaN": lambda k, m: k.set_retention(owner_id="ann", keep_newer_than_s=NAN),
    "keep newer than a fraction": lambda k, m: k.set_retention(owner_id="ann", keep_newer_than_s=3600.0),
    "expire at a text": lambda k, m: k.expire(**TRIP, now_us="x"),
    "expire at a fraction": lambda k, m: k.expire(**TRIP, now_us=1.0),
    "expire at true": lambda k, m: k.expire(**TRIP, now_us=True),
    "expire all at a text": lambda k, m: k.expire_all(now_us="x"),
    "expire all at true": lambda k, m: k.expire_all(now_us=True, dry_run=True),
    "watch since a text": lambda k, m: k.watch(**TRIP, since="1", timeout_s=0),
    "watch since too far": lambda k, m: k.watch(**TRIP, since=2**70, timeout_s=0),
    "watch every NaN": lambda k, m: k.watch(**TRIP, poll_s=NAN, timeout_s=0),
    "watch for NaN": lambda k, m: k.watch(**TRIP, timeout_s=NAN),
    "watch for a text": lambda k, m: k.watch(**TRIP, timeout_s="1"),
    "score of a text": lambda k, m: k.decide(m, "approved", actor="ann", score="1"),
    "score of true": lambda k, m: k.decide(m, "approved", actor="ann", score=True),
    "score too large": lambda k, m: k.decide(m, "approved", actor="ann", score=10**5000),
    "one field as text": lambda k, m: k.load_fields(m, "plan"),
    "branch without a name": lambda k, m: k.fork(m, owner_id="ann", branch=""),
    "workflow without a name": lambda k, m: k.fork(m, owner_id="ann", workflow_id=""),
    "key of a number": lambda k, m: k.save_state_delta({"n": 2}, **TRIP, idempotency_key=5),
    "bag under a number": lambda k, m: k.save(SmartStateBag(n=1), **TRIP, idempotency_key=5),
    "bag with a text beside it": lambda k, m: k.save(SmartStateBag(n=1), **TRIP, metadata="ab"),
}


def test_odd_arguments_are_refused_and_change_nothing(store: Store) -> None:
    with store.open() as app:
        commit = app.kernel.save_state_delta({"n": 1, "p": 2}, **TRIP)
        found: dict[str, str] = {}
        for name, call in REFUSED.items():
            try:
                found[name] = f"took it: {call(app.kernel, commit.manifest_id)!r}"
            except AnalemmaError as exc:
                found[name] = exc.kind
        assert found == dict.fromkeys(REFUSED, "invalid")
        assert app.kernel.history(**TRIP)[0].manifest_id == commit.manifest_id
        assert app.kernel.decisions(commit.manifest_id) == []
        assert app.kernel.get_retention(owner_id="ann").keep_last is None


def test_a_fork_without_a_name_does_not_become_the_main_branch(store: Store) -> None:
    with store.open() as app:
        begun = app.kernel.save_state_delta({"n": 1}, **TRIP, branch="idea")
        for name in ("branch", "workflow_id"):
            with pytest.raises(Invalid):
                app.kernel.fork(begun.manifest_id, owner_id="ann", **{name: ""})
        assert [branch.name for branch in app.kernel.branches(**TRIP)] == ["idea"]


def test_forgetting_by_an_age_that_no_database_knows_is_refused(store: Store) -> None:
    with store.open() as app:
        for age_s in (NAN, float("inf"), -float("inf"), 1e300, 10**400, 1.1e10):
            with pytest.raises(Invalid, match="cannot forget") as caught:
                app.checkpoints.forget(age_s)
            assert caught.value.hint == "an age is from 0 to 10000000000 s"
        assert app.checkpoints.forget(1e10) == 0


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_what_can_be_stored_can_be_stored_under_an_idempotency_key(store: Store) -> None:
    deep, beside = {"a": nested(127)}, {"m": nested(127)}
    with store.open() as app:
        kernel = app.kernel
        saved = [kernel.save_state_delta(deep, **TRIP, idempotency_key="k", metadata=beside) for _ in range(2)]
        assert saved[0] == saved[1]
        for changed in ({"a": [nested(126), 1]}, {"b": nested(127)}):
            with pytest.raises(Conflict):
                kernel.save_state_delta(changed, **TRIP, idempotency_key="k", metadata=beside)
        with pytest.raises(Conflict):
            kernel.save_state_delta(deep, **TRIP, idempotency_key="k", metadata={"n": nested(127)})
        tickets = [kernel.checkpoint_async(deep, **TRIP, idempotency_key="t") for _ in range(2)]
        assert len({kernel.wait_for(ticket).version for ticket in tickets}) == 1
        bag = kernel.load_latest_state(**TRIP, lazy=True)
        bag["b"] = 1
        assert kernel.save(bag, idempotency_key="bag", metadata=beside).version == 3


def test_what_cannot_be_stored_is_refused_by_its_own_place_under_an_idempotency_key(store: Store) -> None:
    with store.open() as app:
        for verb in (app.kernel.save_state_delta, app.kernel.checkpoint_async):
            with pytest.raises(Invalid) as refused:
                verb({"n": 1, "/plan": {"cost": NAN}}, **TRIP, idempotency_key="k")
            assert refused.value.facts["pointer"] == "/plan/cost"


def test_many_changes_and_many_deletions_go_together(app: App) -> None:
    many = 4000
    app.kernel.save_state_delta({f"gone {n}": n for n in range(many)}, **TRIP)
    app.kernel.save_state_delta(
        {f"set {n}": n for n in range(many)}, **TRIP, deleted=[f"gone {n}" for n in range(many)]
    )
    assert app.kernel.load_latest_state(**TRIP) == {f"set {n}": n for n in range(many)}


def test_what_is_set_below_something_deleted_is_refused(app: App) -> None:
    app.kernel.save_state_delta({"plan": [{"done": False}], "scratch": 1}, **TRIP)
    for deleted in (["scratch", "/plan/0"], ["plan"], ["/plan/0/done"]):
        with pytest.raises(Invalid) as refused:
            app.kernel.save_state_delta({"n": 1, "/plan/0/done": True}, **TRIP, deleted=deleted)
        assert refused.value.facts["pointer"] == "/plan/0/done"
    app.kernel.save_state_delta({"plan": [5]}, **TRIP, deleted=["/plan/0", "/pla"])
    assert app.kernel.load_latest_state(**TRIP) == {"plan": [], "scratch": 1}


def test_a_name_that_a_value_may_not_have_is_refused_however_it_is_put(app: App) -> None:
    kernel = app.kernel
    for number, name in enumerate(["k" * (LONGEST_KEY + 1), "\u00e9" * (LONGEST_KEY // 2 + 1)]):
        place: dict[str, Any] = {"workflow_id": f"trip {number}", "owner_id": "ann"}
        kernel.save_state_delta({"plan": {}}, **place)
        bag = kernel.load_latest_state(**place, lazy=True)
        bag["plan"][name] = 1
        puts: list[Callable[[], object]] = [
            partial(kernel.save_state_delta, {name: 1}, **place),
            partial(kernel.save_state_delta, {f"/plan/{name}": 1}, **place),
            partial(kernel.save_state_delta, {"plan": {name: 1}}, **place),
            partial(kernel.save_state_delta, {name: 1}, workflow_id="new", owner_id="ann"),
            partial(kernel.checkpoint_async, {name: 1}, **place),
            partial(kernel.save, bag),
        ]
        for put in puts:
            with pytest.raises(Invalid, match="key of more than"):
                put()
        longest = name[:-1]
        kernel.save_state_delta({longest: 1, f"/plan/{longest}": 2}, **place)
        kernel.save_state_delta({"copy": kernel.load_latest_state(**place)}, **place, deleted=[longest])
        assert kernel.load_latest_state(**place)["copy"] == {longest: 1, "plan": {longest: 2}}


def test_a_set_of_deletions_of_a_list_does_not_depend_on_its_order(store: Store) -> None:
    even = {f"/plan/{n}" for n in range(0, 24, 2)}
    with store.open() as app:
        app.kernel.save_state_delta({"plan": list(range(24)), "scratch": 1}, **TRIP)
        app.kernel.save_state_delta({}, **TRIP, deleted=even)
        assert app.kernel.load_latest_state(**TRIP)["plan"] == list(range(1, 24, 2))
        # Of a list, one after the other, as the operations of a patch are.
        app.kernel.save_state_delta({}, **TRIP, deleted=["/plan/0", "/plan/0"])
        assert app.kernel.load_latest_state(**TRIP)["plan"] == list(range(5, 24, 2))
