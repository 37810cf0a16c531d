"""Deploys that did not go well: what is asked again, what is tried again, and what whoever deployed hears of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analemma import SHIPPED, App, Parcel, Shipped, Tenant, refused, retry
from analemma.errors import AnalemmaError, Conflict, NotFound, OutcomeUnknown, Unavailable
from analemma.testing import failpoints
from tests.api.pipeline.ship_shop import drain, open_ship_shop, rule
from tests.api.pipeline.shop import VIEW, book
from tests.api.pipeline.tables import damaged, query
from tests.scripted_sink import TYPE, Script, install
from tests.stores import Store


def scripted(name: str) -> dict[str, Any]:
    return rule(f"sink.{name}", {"type": TYPE, "script": name})


def always(answer: Shipped) -> Any:
    def answering(parcels: Sequence[Parcel]) -> list[Shipped]:
        return [answer] * len(parcels)

    return answering


def titles(script: Script) -> list[str]:
    """What a sink was given, in order."""
    return [(each.document.body or {})["title"] for each in script.parcels]


def served(shop: Tenant, isbn: str = "1") -> str | None:
    try:
        found: str = shop.view(VIEW).get(isbn).data["CORE"]["title"]
    except NotFound:
        return None
    return found


def recorded(store: Store, id: str) -> tuple[str, int, str]:
    """State, attempt and event as they are recorded: asking for a deploy may fail it."""
    ((state, attempt, event),) = query(store, "SELECT state, attempt, event FROM deploy WHERE id = ?", id)
    return state, attempt, event


def drain_until(app: App, script: Script, count: int) -> None:
    """Until a sink was given so many documents, however often it asks to be left alone; then everything else."""
    deadline = time.monotonic() + 30
    while len(script.parcels) < count and time.monotonic() < deadline:
        drain(app)
        time.sleep(0.02)
    drain(app)


def kill_event(store: Store, event: str) -> None:
    """As if workers had died over it again and again."""
    query(store, "UPDATE outbox SET status = 'DEAD', attempts = 5, failure_reason = 'no' WHERE id = ?", event)
    query(store, "UPDATE lane SET parked = true, due_at = NULL WHERE aggregatetype = 'RAW_DATA'")


def test_a_retry_does_not_wait_for_a_sink_that_answered_while_the_deploy_was_over(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = install(tmp_path, monkeypatch, "a", "b")
    with open_ship_shop(store, tmp_path, scripted("a"), scripted("b")) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Old"))
        drain(app)
        a.answering, b.answering = always(refused("no")), always(retry("later"))
        deploy = shop.deploy("BOOK", "1", book("1", title="New"), cutover="done")
        drain(app)
        assert recorded(store, deploy.id)[0] == "FAILED"
        a.answering, b.answering = always(SHIPPED), always(SHIPPED)
        drain_until(app, b, len(b.parcels) + 1)
        shop.deploys.retry(deploy.id)
        drain(app)
        assert recorded(store, deploy.id)[:2] == ("DONE", 2) and served(shop) == "New"
        assert titles(a)[-1] == titles(b)[-1] == "New"


def test_an_event_that_is_late_is_no_other_attempt_at_what_a_sink_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = install(tmp_path, monkeypatch, "a")
    with open_ship_shop(store, tmp_path, scripted("a")) as (app, shop):
        a.answering = always(refused("no"))
        deploy = shop.deploy("BOOK", "1", book("1", title="New"), compile="sync", cutover="done")
        due = query(store, "SELECT due_at FROM lane WHERE aggregatetype = 'RAW_DATA'")
        query(store, "UPDATE lane SET due_at = 4000000000000000 WHERE aggregatetype = 'RAW_DATA'")
        drain(app)
        assert recorded(store, deploy.id)[:2] == ("FAILED", 1)
        query(store, "UPDATE lane SET due_at = ? WHERE aggregatetype = 'RAW_DATA'", due[0][0])
        assert drain(app).delivered == 1
        assert recorded(store, deploy.id)[:2] == ("FAILED", 1)
        a.answering = always(SHIPPED)
        shop.deploys.retry(deploy.id)
        drain(app)
        assert recorded(store, deploy.id)[:2] == ("DONE", 2) and served(shop) == "New"


def test_what_a_sink_refused_in_an_earlier_attempt_does_not_fail_a_later_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = install(tmp_path, monkeypatch, "a", "b")
    with open_ship_shop(store, tmp_path, scripted("a"), scripted("b")) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Old"))
        drain(app)
        a.answering, b.answering = always(refused("no")), always(retry("later"))
        deploy = shop.deploy("BOOK", "1", book("1", title="New"), cutover="done")
        drain(app)
        # It takes it after all, and nobody has to ask it again.
        a.answering = always(SHIPPED)
        shop.ship("BOOK", "1", sinks=["sink.a"])
        drain_until(app, a, len(a.parcels) + 1)
        shop.deploys.retry(deploy.id)
        drain(app)
        assert recorded(store, deploy.id)[0] == "SINKING"
        b.answering = always(SHIPPED)
        drain_until(app, b, len(b.parcels) + 1)
        assert recorded(store, deploy.id)[:2] == ("DONE", 2) and served(shop) == "New"
        assert [(each.rule, each.asked) for each in shop.deploys.explain(deploy.id).sinks] == [
            ("sink.a", False),
            ("sink.b", True),
        ]


def test_a_sink_that_was_left_out_before_is_asked_though_nothing_changed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = install(tmp_path, monkeypatch, "a", "b")
    titles_only = {**scripted("b"), "input": {"type": "SLICE", "sliceTypes": ["CORE"], "entityTypes": ["BOOK"]}}
    with open_ship_shop(store, tmp_path, scripted("a"), titles_only) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="One"))
        drain(app)
        shop.deploy("BOOK", "1", book("1", title="Two"), ship=["sink.a"])
        drain(app)
        assert (titles(a), titles(b)) == (["One", "Two"], ["One"])
        deploy = shop.deploy("BOOK", "1", book("1", title="Two"))
        assert [(each.asked, each.slices) for each in shop.deploys.explain(deploy.id).sinks] == [
            (False, ()),
            (True, ("CORE",)),
        ]
        drain(app)
        assert shop.deploys.get(deploy.id).state == "DONE" and titles(b) == ["One", "Two"]
        # One whose slices it is not about has nothing to do with that.
        shop.deploy("BOOK", "1", book("1", title="Two", price=5), ship=[])
        again = shop.deploy("BOOK", "1", book("1", title="Two", price=5))
        assert [(each.asked, each.why) for each in shop.deploys.explain(again.id).sinks] == [
            (True, "it was not asked to take what changed before"),
            (False, "none of its slices changed"),
        ]


def test_a_reason_that_no_database_can_hold_fails_the_deploy_and_stops_nobody(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = install(tmp_path, monkeypatch, "a")
    with open_ship_shop(store, tmp_path, scripted("a")) as (app, shop):
        # One call: what is said of the one must not keep the other's answer from being written down.
        a.answering = lambda parcels: [
            replace(refused("bad"), reason="bad \0 and \ud800") if "1" in each.document.doc_id else SHIPPED
            for each in parcels
        ]
        bad = shop.deploy("BOOK", "1", book("1"), cutover="done")
        good = shop.deploy("BOOK", "2", book("2"), cutover="done")
        drain(app)
        failed = shop.deploys.get(bad.id)
        assert failed.state == "FAILED" and failed.error is not None and "bad \\0 and \\ud800" in failed.error.message
        assert shop.deploys.get(good.id).state == "DONE" and len(a.batches) == 1
        (letter,) = app.outbox.dead_letters().entries
        assert letter.failure_reason == "bad \\0 and \\ud800"


def test_a_sink_may_rest_for_any_reason(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (a,) = install(tmp_path, monkeypatch, "a")
    with open_ship_shop(store, tmp_path, scripted("a")) as (app, shop):
        a.answering = always(replace(retry("down", is_down=True), reason="down \0 and \ud800"))
        deploy = shop.deploy("BOOK", "1", book("1"))
        drain(app)
        a.answering = always(SHIPPED)
        drain_until(app, a, 2)
        assert shop.deploys.get(deploy.id).state == "DONE"


def test_one_that_failed_is_kept_until_a_newer_version_is_compiled(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        done = shop.deploy("BOOK", "1", book("1", title="Good"))
        with damaged(store):
            bad = shop.deploy("BOOK", "1", book("1", title="Bad"))
            assert (done.state, bad.state) == ("DONE", "FAILED")
            drain(app)
        # It is all that says that the newest version is not compiled.
        assert app.deploys.housekeep(older_than_s=-1) == 1
        assert [each.id for each in shop.deploys.list().deploys] == [bad.id]
        newer = shop.deploy("BOOK", "1", book("1", title="Better"))
        assert app.deploys.housekeep(older_than_s=-1) == 2
        assert shop.deploys.list().deploys == [] and served(shop) == "Better" and newer.created
        counts = [query(store, f"SELECT count(*) FROM {each}") for each in ("deploy_step", "deploy_sink")]  # noqa: S608
        assert counts == [[(0,)], [(0,)]]


def test_a_deploy_goes_on_when_its_dead_event_is_replayed(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async")
        event = recorded(store, deploy.id)[2]
        kill_event(store, event)
        assert shop.deploys.get(deploy.id).state == "FAILED"
        assert app.outbox.replay(event).revived == 1
        drain(app)
        assert recorded(store, deploy.id) == ("DONE", 2, event) and served(shop) == "Book 1"
        assert shop.deploys.get(deploy.id).error is None


def test_a_deploy_is_tried_again_when_its_settled_event_is_replayed(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        shop.deploy("BOOK", "1", book("1"))
        with damaged(store):
            bad = shop.deploy("BOOK", "1", book("1", title="Bad"), compile="async")
            drain(app)
            state, attempt, event = recorded(store, bad.id)
            assert (state, attempt) == ("FAILED", 1)
            app.outbox.replay(event)
            drain(app)
            state, attempt, other = recorded(store, bad.id)
            assert (state, attempt) == ("FAILED", 2) and other != event


def test_the_event_that_a_failed_call_leaves_behind_is_no_other_attempt(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        for isbn in "1", "2":
            shop.deploy("BOOK", isbn, book(isbn))
        with damaged(store):
            bad = shop.deploy("BOOK", "1", book("1", title="Bad"))
            assert bad.state == "FAILED"
            # Retried while that event waits: it leaves the deploy to the retry's own.
            shop.deploys.retry(bad.id)
            drain(app)
            assert recorded(store, bad.id)[:2] == ("FAILED", 2)
            bad = shop.deploy("BOOK", "2", book("2", title="Bad"))
            drain(app)
            assert recorded(store, bad.id)[:2] == ("FAILED", 1)


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING"])
def test_a_deploy_whose_event_is_gone_has_failed(state: str, store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"), compile="async")
        query(store, "UPDATE deploy SET state = ?", state)
        query(store, "DELETE FROM outbox WHERE id = ?", recorded(store, deploy.id)[2])
        query(store, "UPDATE lane SET done_seq = next_seq - 1, due_at = NULL WHERE aggregatetype = 'RAW_DATA'")
        failed = shop.deploys.await_(deploy.id, timeout_s=0)
        assert failed.state == "FAILED" and "is gone" in str(failed.error)
        shop.deploys.retry(deploy.id)
        drain(app)
        assert shop.deploys.get(deploy.id).state == "DONE"


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [Unavailable("it may pass"), Conflict("it may pass")], ids=lambda error: error.kind)
def test_what_may_pass_is_raised_with_the_deploy_and_a_worker_goes_on(
    error: AnalemmaError, store: Store, tmp_path: Path
) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        with (
            failpoints.call("compile.before_transaction", raising(error)),
            pytest.raises(type(error), match="it may pass") as caught,
        ):
            shop.deploy("BOOK", "1", book("1"))
        (left,) = shop.deploys.list().deploys
        assert (caught.value.deploy, left.state) == (left.id, "RUNNING")
        drain(app)
        assert shop.deploys.get(left.id).state == "DONE"


@pytest.mark.parametrize("compiling", ["sync", "async"])
def test_a_commit_whose_answer_is_lost_is_looked_up(compiling: str, store: Store, tmp_path: Path) -> None:
    lost = raising(OutcomeUnknown("the connection broke"))
    with open_ship_shop(store, tmp_path) as (app, shop):
        with failpoints.call("ingest.after_commit", lost):
            deploy = shop.deploy("BOOK", "1", book("1"), compile=compiling)
        assert deploy.state == ("DONE" if compiling == "sync" else "QUEUED")
        with failpoints.call("ingest.before_transaction", lost), pytest.raises(OutcomeUnknown) as caught:
            shop.deploy("BOOK", "2", book("2"), compile=compiling)
        with pytest.raises(NotFound):
            shop.deploys.get(caught.value.deploy)
        drain(app)
        assert shop.deploys.get(deploy.id).state == "DONE" and served(shop) == "Book 1"


def test_what_a_failed_cutover_did_not_serve_is_served_by_another_deploy_and_not_by_an_ingest(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = install(tmp_path, monkeypatch, "a")
    with open_ship_shop(store, tmp_path, scripted("a")) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Old"))
        drain(app)
        a.answering = always(refused("no"))
        failed = shop.deploy("BOOK", "1", book("1", title="New"), cutover="done")
        drain(app)
        assert shop.deploys.get(failed.id).state == "FAILED"
        assert not shop.ingest("BOOK", "1", book("1", title="New")).created
        drain(app)
        assert served(shop) == "Old"
        again = shop.deploy("BOOK", "1", book("1", title="New"))
        assert (again.created, again.served, again.version) == (False, True, failed.version)
        assert served(shop) == "New"
