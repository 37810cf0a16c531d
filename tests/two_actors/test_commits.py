"""Two who write to one branch at the same moment: neither is lost, done twice or put in the wrong place."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict, Expired, HeadMoved
from analemma.testing import failpoints
from tests.actors import Actor
from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


def late(app: analemma.App, **options: Any) -> Any:
    """A save that stands where everything is made and nothing is written."""
    save = lambda: app.kernel.save_state_delta({"late": 1}, **PLACE, **options)  # noqa: E731
    return failpoints.paused("commit.before_transaction", save)


def messages(app: analemma.App) -> list[str | None]:
    """Of all versions, newest first."""
    return [each.message for each in app.kernel.history(**PLACE)]


@pytest.mark.parametrize("begun", [True, False], ids=["a branch", "no branch yet"])
def test_whoever_comes_second_builds_on_the_first_or_is_told(store: Store, begun: bool) -> None:
    """Guard: the head is moved by compare-and-set, and made only if there is none."""
    with store.open() as app, store.open() as other:
        first = app.kernel.save_state_delta({"n": 1}, **PLACE).manifest_id if begun else None
        with late(app) as held:
            other.kernel.save_state_delta({"quick": 1}, **PLACE)
            held.go_on()
        state = {**({"n": 1} if begun else {}), "quick": 1, "late": 1}
        assert app.kernel.load_latest_state(**PLACE) == state
        with pytest.raises(HeadMoved):
            app.kernel.save_state_delta({"n": 2}, **PLACE, previous_manifest_id=first)
        with late(app, previous_manifest_id=app.kernel.history(**PLACE)[0].manifest_id) as held:
            other.kernel.save_state_delta({"quick": 2}, **PLACE)
            with pytest.raises(HeadMoved):
                held.go_on()
        assert app.kernel.load_latest_state(**PLACE) == {**state, "quick": 2}
        assert app.kernel.verify(**PLACE).ok


Mark = Callable[[analemma.App, str], object]
MARKS: dict[str, Mark] = {
    "tag": lambda app, manifest: app.kernel.tag(manifest, "good", owner_id="ann"),
    "pin": lambda app, manifest: app.kernel.pin(manifest, owner_id="ann"),
    "decide": lambda app, manifest: app.kernel.decide(manifest, "approved", actor="eve"),
}


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "once"}], ids=["save", "save with a key"])
def test_a_commit_follows_what_was_noted_of_the_branch_meanwhile(store: Store, options: dict[str, Any]) -> None:
    """Guard: the head's place in the journal is compared too: a mark moves that, and no version."""
    with store.open() as app, store.open() as other:
        manifest = app.kernel.save_state_delta({"n": 1}, **PLACE).manifest_id
        with late(app, **options) as held:
            other.kernel.tag(manifest, "good", owner_id="ann")
            held.go_on()
        assert app.kernel.verify(**PLACE).ok


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_a_note_on_the_branch_follows_what_was_noted_meanwhile(store: Store, mark: Mark) -> None:
    """Guard: the same for whoever notes something."""
    with store.open() as app, store.open() as other:
        manifest = app.kernel.save_state_delta({"n": 1}, **PLACE).manifest_id
        with failpoints.paused("record.before_transaction", lambda: mark(app, manifest)) as held:
            other.kernel.tag(manifest, "other", owner_id="ann")
            held.go_on()
        assert app.kernel.verify(**PLACE).ok


@pytest.mark.parametrize("mark", ["tag", "pin"])
def test_a_version_that_is_marked_when_it_is_about_to_expire_stays(store: Store, mark: str) -> None:
    """Guard: who keeps a version is looked at again in the transaction that removes it."""
    with store.open() as app, store.open() as other:
        versions = [app.kernel.save_state_delta({"n": number}, **PLACE) for number in range(4)]
        app.kernel.set_retention(owner_id="ann", keep_last=1)
        expire = lambda: app.kernel.expire(**PLACE)  # noqa: E731
        with failpoints.paused("record.before_transaction", expire) as held:
            MARKS[mark](other, versions[1].manifest_id)
            assert [each.version for each in held.go_on().expired] == [3, 1]
        assert [each.version for each in app.kernel.history(**PLACE)] == [4, 2]
        assert app.kernel.verify(**PLACE).ok


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_no_mark_is_put_on_a_version_that_expired_meanwhile(store: Store, mark: Mark) -> None:
    """Guard: the version that a record names has to be there."""
    with store.open() as app, store.open() as other:
        first, *_ = [app.kernel.save_state_delta({"n": number}, **PLACE).manifest_id for number in range(3)]
        app.kernel.set_retention(owner_id="ann", keep_last=1)
        with failpoints.paused("record.before_transaction", lambda: mark(app, first)) as held:
            other.kernel.expire(**PLACE)
            with pytest.raises(Expired):
                held.go_on()
        assert app.kernel.verify(**PLACE).ok


@pytest.mark.parametrize("begun", [True, False], ids=["a branch", "no branch yet"])
@pytest.mark.parametrize("same", [True, False], ids=["the same request", "another request"])
def test_one_key_is_one_request_also_if_two_ask_at_once(store: Store, same: bool, begun: bool) -> None:
    """Guard: a commit looks for its idempotency key in its own transaction."""
    with store.open() as app, store.open() as other:
        if begun:
            app.kernel.save_state_delta({"n": 1}, **PLACE)
        with late(app, idempotency_key="once") as held:
            made = other.kernel.save_state_delta({"late" if same else "other": 1}, **PLACE, idempotency_key="once")
            if same:
                assert held.go_on().manifest_id == made.manifest_id
            else:
                with pytest.raises(Conflict):
                    held.go_on()
        assert app.kernel.history(**PLACE)[0].manifest_id == made.manifest_id
        assert len(app.kernel.history(**PLACE)) == 1 + begun


@pytest.mark.parametrize("begun", [True, False], ids=["a branch", "no branch yet"])
def test_one_key_is_one_request_also_on_two_branches(store: Store, begun: bool) -> None:
    """Guard: a commit looks for its key though nobody has touched its branch: keys are those of the workflow."""
    with store.open() as app, store.open() as other:
        if begun:
            app.kernel.save_state_delta({"n": 1}, **PLACE)
        with late(app, idempotency_key="once") as held:
            other.kernel.save_state_delta({"late": 1}, **PLACE, branch="draft", idempotency_key="once")
            with pytest.raises(Conflict):
                held.go_on()
        assert select(store, "SELECT version FROM head WHERE branch = 'main'") == [(1,)] * begun


def checkpoint(url: str, objects: str | None) -> None:
    with Store(url, objects).open() as app:
        app.kernel.checkpoint_async({"text": "checkpoint"}, **PLACE, message="checkpoint")


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "once"}], ids=["save", "save with a key"])
def test_no_save_overtakes_a_checkpoint_that_was_accepted_before_it(store: Store, options: dict[str, Any]) -> None:
    """Guard: the head is not moved past deltas that wait to move it."""
    with store.open() as app, ExitStack() as stack:
        app.kernel.save_state_delta({"text": ""}, **PLACE, message="first")

        def accept() -> None:
            other = Actor(checkpoint, store.url, store.objects, at="ledger.after_insert")
            stack.enter_context(other).wait_until_stopped()

        with failpoints.call("commit.before_transaction", accept):
            app.kernel.save_state_delta({"text": "save"}, **PLACE, message="save", **options)
        assert messages(app) == ["save", "checkpoint", "first"]
        assert app.kernel.load_latest_state(**PLACE) == {"text": "save"}


def three_steps(last: Callable[[Any, Any], dict[str, int]]) -> analemma.Flow:
    """A run that has made two versions in a row expects to make the next one, and looks at the head no more: then its
    last step but one is called."""

    def plan(state: Any, ctx: Any) -> dict[str, int]:
        return {"plan": 1}

    def check(state: Any, ctx: Any) -> dict[str, int]:
        return {"checked": 1}

    def rest(state: Any, ctx: Any) -> None:
        """Changes nothing."""

    last.__name__ = "book"
    flow = analemma.Flow("trip", checkpoints="node")
    flow.step(plan, writes=["plan"])
    flow.step(check, writes=["checked"])
    flow.step(last, writes=["booked"])
    flow.step(rest)
    return flow


def test_a_segment_of_a_run_follows_what_somebody_saved_meanwhile(store: Store) -> None:
    """Guard: a run moves the head by compare-and-set, too."""
    with store.open() as app, store.open() as other:

        def book(state: Any, ctx: Any) -> dict[str, int]:
            other.kernel.save_state_delta({"text": "save"}, **PLACE, message="save")
            return {"booked": 1}

        done = app.flows.run(three_steps(book), {}, **PLACE)
        assert (done.status, done.state) == ("COMPLETED", {"plan": 1, "checked": 1, "booked": 1, "text": "save"})
        assert messages(app).index("save") == 1
        assert app.kernel.verify(**PLACE).ok


def test_no_segment_of_a_run_overtakes_a_checkpoint_that_was_accepted_before_it(store: Store) -> None:
    """Guard: a run does not move it past deltas that wait to move it, either."""
    with store.open() as app, ExitStack() as stack:

        def book(state: Any, ctx: Any) -> dict[str, int]:
            other = Actor(checkpoint, store.url, store.objects, at="ledger.after_insert")
            stack.enter_context(other).wait_until_stopped()
            return {"booked": 1}

        done = app.flows.run(three_steps(book), {}, **PLACE)
        assert (done.status, done.state) == ("COMPLETED", {"plan": 1, "checked": 1, "booked": 1, "text": "checkpoint"})
        assert messages(app).index("checkpoint") == 1


def test_no_commit_names_an_upload_that_was_collected_meanwhile(store: Store) -> None:
    """Guard: a commit finishes its uploads, and only if nobody has claimed them."""
    blob = random.Random(1).randbytes(90_000)
    settings: dict[str, Any] = {"pack_threshold_bytes": 20_000, "gc_object_delay_s": 0}
    with store.open(**settings) as app, store.open(**settings) as other:

        def save() -> object:
            return app.kernel.save_state_delta({"blob": blob}, **PLACE)

        with failpoints.paused("commit.before_transaction", save) as held:
            assert change(store, "UPDATE upload SET created_at = 0 WHERE state = 'temp'") == 1
            assert other.gc.run(grace_s=0).objects == 1
            with pytest.raises(Conflict):
                held.go_on()
        assert select(store, "SELECT count(*) FROM head") == [(0,)]
        save()
    with store.open(**settings) as app:
        assert app.gc.run(grace_s=0).ok
        assert app.kernel.load_latest_state(**PLACE) == {"blob": blob}
