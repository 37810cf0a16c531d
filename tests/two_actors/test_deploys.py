"""Two deploy one entity at once, or one deploy is gone on with by two: what is served never goes back, each deploy goes
through its states once, and an answer of a sink counts for what the sink was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import DeployState, Parcel, Shipped, refused, retry
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.actors import Actor
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, select
from tests.scripted_sink import Script, install
from tests.stores import Store

VIEW = "view.note"
CONTRACTS: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "fields": [{"name": "text", "type": "string", "required": True}],
    },
    {
        "kind": "RULESET",
        "id": "ruleset.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "slices": [{"type": "TEXT", "buildRules": {"type": "PassThrough", "fields": ["text"]}}],
    },
    {
        "kind": "VIEW_DEFINITION",
        "id": VIEW,
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "requiredSlices": ["TEXT"],
        "ruleSetRef": {"id": "ruleset.note", "version": "1.0.0"},
    },
]
STEPS = ["QUEUED", "RUNNING", "READY", "SINKING", "DONE"]


def sink_rule(name: str) -> dict[str, Any]:
    return {
        "kind": "SINKRULE",
        "id": f"sink.{name}",
        "version": "1.0.0",
        "status": "ACTIVE",
        "input": {"type": "SLICE", "entityTypes": ["NOTE"]},
        "target": {"type": "SCRIPTED", "script": name},
    }


class Sinks:
    """What two sinks took, and what happens when one is called next."""

    def __init__(self, **scripts: Script) -> None:
        self.taken: dict[str, list[str]] = {name: [] for name in scripts}
        self.before: dict[str, Callable[[str], object]] = {}
        for name, script in scripts.items():
            script.answering = self._answering(name, script.answering)

    def _answering(self, name: str, usual: Callable[[Sequence[Parcel]], list[Shipped]]) -> Any:
        def answer(parcels: Sequence[Parcel]) -> list[Shipped]:
            for parcel in parcels:
                text = (parcel.document.body or {}).get("text", "")
                self.before.get(name, len)(text)
                self.taken[name].append(text)
            return usual(parcels)

        return answer


@pytest.fixture
def sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sinks:
    one, two = install(tmp_path, monkeypatch, "one", "two")
    return Sinks(one=one, two=two)


@contextmanager
def two_openers(store: Store, *names: str) -> Iterator[tuple[analemma.App, analemma.App]]:
    with store.open() as app, store.open() as other:
        app.contracts.load([*CONTRACTS, *map(sink_rule, names)])
        yield app, other


def deploying(app: analemma.App, text: str, **options: Any) -> Callable[[], Any]:
    return lambda: app.default.deploy("NOTE", "1", {"text": text}, **options)


def drain(app: analemma.App) -> None:
    app.worker(1).drain()


def ship(app: analemma.App) -> None:
    """Deliver what is for sinks, and compile nothing."""
    app.worker(1, handlers={"RawDataIngested": lambda event, settle: None}).drain()


def served(app: analemma.App) -> object:
    return app.default.view(VIEW).get("1").data["TEXT"]["text"]


def steps(app: analemma.App, id: str) -> list[str]:
    return [step.state.value for step in app.default.deploys.explain(id).steps]


def versions(store: Store) -> int:
    (row,) = select(store, "SELECT count(*) FROM raw")
    return int(row[0])


def test_two_deploys_under_one_key_are_one(store: Store) -> None:
    """Guard: an idempotency key is taken in the transaction that stores the document."""
    with two_openers(store) as (app, other):
        with failpoints.paused("ingest.before_transaction", deploying(app, "text", idempotency_key="k")) as held:
            first = deploying(other, "text", idempotency_key="k")()
            assert held.go_on().id == first.id
        assert versions(store) == 1 and len(app.deploys.list().deploys) == 1


def test_a_key_that_was_taken_for_something_else_meanwhile_is_refused(store: Store) -> None:
    """Guard: whoever finds his key taken in the transaction gets the deploy of it only if he asked for the same."""
    with two_openers(store) as (app, other):
        with failpoints.paused("ingest.before_transaction", deploying(app, "mine", idempotency_key="k")) as held:
            deploying(other, "yours", idempotency_key="k")()
            with pytest.raises(Conflict, match="was used for another deploy"):
                held.go_on()
        assert versions(store) == 1 and served(app) == "yours"


@pytest.mark.parametrize("place", ["ingest.after_commit", "compile.before_transaction"])
def test_the_older_of_two_deploys_at_once_is_not_served_last(store: Store, place: str) -> None:
    """Guard: what is served goes to no version below the newest that is compiled."""
    with two_openers(store) as (app, other):
        with failpoints.paused(place, deploying(app, "older")) as held:
            newer = deploying(other, "newer")()
            older = held.go_on()
        assert (older.state, older.served, older.superseded_by) == (DeployState.DONE, False, newer.version)
        assert newer.served and served(app) == "newer"


def test_a_deploy_whose_sink_answers_after_a_newer_one_came_is_not_served(store: Store, sinks: Sinks) -> None:
    """Guard: the same, at the cutover of a deploy that waited for its sinks."""
    with two_openers(store, "one") as (app, other):
        older = deploying(app, "older", cutover="done")()
        with failpoints.paused("ship.after_answer", lambda: drain(app)) as held:
            newer = deploying(other, "newer")()
            held.go_on()
        drain(app)
        found = app.deploys.get(older.id)
        assert (found.state, found.served, found.superseded_by) == (DeployState.DONE, False, newer.version)
        assert served(app) == "newer"


def test_a_cutover_waits_for_a_compile_that_is_not_committed(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: on PostgreSQL a cutover locks its entity before it looks which version is the newest."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    (script,) = install(tmp_path, monkeypatch, "one")
    usual, script.answering = script.answering, lambda parcels: [retry("down", 60, is_down=True)] * len(parcels)
    with two_openers(store, "one") as (app, other):
        older = deploying(app, "older", cutover="done")()
        drain(other)
        # Nothing is left to do but to ship, and to hear the answer.
        script.answering = usual
        assert other.sinks.wake("sink.one")
        with (
            failpoints.paused("deploy.moved", deploying(app, "newer", ship=[])) as held,
            beside(lambda: ship(other)) as answering,
        ):
            wait_for_waiting(store.url, answering)
            held.go_on()
        found = app.deploys.get(older.id)
        assert (found.state, found.served) == (DeployState.DONE, False)
        assert served(app) == "newer"


def test_a_deploy_that_a_worker_went_on_with_goes_through_its_states_once(store: Store, sinks: Sinks) -> None:
    """Guard: a transition is a compare-and-set of the state that it leaves."""
    with two_openers(store, "one") as (app, other):
        with failpoints.paused("compile.before_transaction", deploying(app, "text")) as held:
            drain(other)
            deploy = held.go_on()
        drain(app)
        assert app.deploys.get(deploy.id).state is DeployState.DONE
        assert steps(app, deploy.id) == STEPS
        assert sinks.taken["one"] == ["text"]


def test_a_deploy_that_failed_again_meanwhile_is_not_retried_once_more(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: of two who retry a deploy at once, the second finds it in another attempt."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    (script,) = install(tmp_path, monkeypatch, "one")
    script.answering = lambda parcels: [refused("never")] * len(parcels)
    with two_openers(store, "one") as (app, other):
        deploy = deploying(app, "text")()
        drain(app)
        assert app.deploys.get(deploy.id).state is DeployState.FAILED
        failures: list[Exception] = []

        def try_again() -> None:
            try:
                other.default.deploys.retry(deploy.id)
            except Conflict as exc:
                failures.append(exc)

        with (
            failpoints.paused("deploy.retried", lambda: app.default.deploys.retry(deploy.id)) as held,
            beside(try_again) as second,
        ):
            wait_for_waiting(store.url, second)
            held.go_on()
        assert ["being retried by somebody else" in str(each) for each in failures] == [True]
        assert app.deploys.get(deploy.id).attempt == 2


def test_a_deploy_that_is_retried_this_moment_is_not_forgotten(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: housekeeping on PostgreSQL deletes what is over by then. It waits for whoever is at a deploy."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    (script,) = install(tmp_path, monkeypatch, "one")
    usual, script.answering = script.answering, lambda parcels: [refused("never")] * len(parcels)
    with two_openers(store, "one") as (app, other):
        deploy = deploying(app, "text")()
        drain(app)
        script.answering = usual
        # Of a version that is not the newest, and so nobody would miss it.
        newest = deploying(app, "newer")()
        drain(app)
        assert [app.deploys.get(each.id).state.value for each in (deploy, newest)] == ["FAILED", "DONE"]
        dropped: list[int] = []
        with (
            failpoints.paused("deploy.retried", lambda: app.default.deploys.retry(deploy.id)) as held,
            beside(lambda: dropped.append(other.deploys.housekeep(older_than_s=-1))) as second,
        ):
            wait_for_waiting(store.url, second)
            held.go_on()
        assert dropped == [1]
        assert [each.id for each in app.deploys.list().deploys] == [deploy.id]
        assert app.deploys.get(deploy.id).attempt == 2


def drain_elsewhere(url: str, objects: str | None) -> None:
    with Store(url, objects).open() as app:
        drain(app)


def test_whoever_comes_late_does_not_end_another_attempt(store: Store) -> None:
    """Guard: a transition is a compare-and-set of the attempt that it belongs to, too."""
    with two_openers(store) as (app, other):
        with failpoints.paused("compile.before_transaction", deploying(app, "text")) as held:
            (deploy,) = other.deploys.list().deploys
            # Its event is gone, so that nobody would go on with it: it has failed, and is retried.
            assert change(store, "DELETE FROM outbox") == 1
            assert change(store, "UPDATE lane SET done_seq = next_seq - 1, due_at = NULL") == 1
            assert other.deploys.await_(deploy.id, timeout_s=0).state is DeployState.FAILED
            other.default.deploys.retry(deploy.id)
            with Actor(drain_elsewhere, store.url, store.objects, at="deploy.begun") as second:
                second.wait_until_stopped()
                held.go_on()
                found = app.deploys.get(deploy.id)
                assert (found.state, found.attempt) == (DeployState.RUNNING, 2)
                second.thaw()
                assert second.wait() == 0, second.errors
        done = app.deploys.get(deploy.id)
        assert (done.state, done.attempt, served(app)) == (DeployState.DONE, 2, "text")
        assert steps(app, deploy.id) == ["QUEUED", "RUNNING", "FAILED", "QUEUED", "RUNNING", "READY", "DONE"]


def test_an_answer_to_something_older_is_none_to_a_deploy(store: Store, sinks: Sinks) -> None:
    """Guard: a sink has answered a deploy when it has what the deploy asked for, or something newer."""
    with two_openers(store, "one") as (app, other):
        app.default.ingest("NOTE", "1", {"text": "older"})
        app.default.compile("NOTE", "1")
        deploys: list[Any] = []
        told: list[DeployState] = []
        # While the sink takes the newer text, the deploy waits for just that.
        sinks.before["one"] = lambda text: (
            told.append(other.deploys.get(deploys[0].id).state) if text == "newer" else None
        )
        with failpoints.paused("ship.after_answer", lambda: drain(app)) as held:
            deploys.append(deploying(other, "newer", cutover="done")())
            held.go_on()
        drain(app)
        assert sinks.taken["one"][-1] == "newer"
        assert set(told) == {DeployState.SINKING}
        assert app.deploys.get(deploys[0].id).state is DeployState.DONE and served(app) == "newer"


def test_of_two_sinks_that_answer_at_once_the_second_knows_of_the_first(
    migrated_url: str, tmp_path: Path, sinks: Sinks
) -> None:
    """Guard: on PostgreSQL, whoever hears a sink locks what the deploys of its entity wait for."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with two_openers(store, "one", "two") as (app, other):
        deploy = deploying(app, "text", cutover="done")()
        with (
            failpoints.paused("deploy.answered", lambda: drain(app)) as held,
            beside(lambda: drain(other)) as second,
        ):
            wait_for_waiting(store.url, second)
            held.go_on()
        drain(app)
        assert app.deploys.get(deploy.id).state is DeployState.DONE
        assert steps(app, deploy.id) == STEPS and served(app) == "text"
