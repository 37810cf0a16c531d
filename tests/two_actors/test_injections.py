"""Somebody injects a segment while somebody else runs, decides or injects: it is run once, or refused, never lost."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.actors import Actor
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
NODE = {"id": "check", "type": "python", "function": "trip.check", "reads": ["did"], "writes": ["did"]}
LAST = 3


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


def noting(name: str) -> Any:
    def note(state: Any, ctx: Any) -> dict[str, list[str]]:
        return {"did": [*state["did"], name]}

    note.__name__ = name
    return note


def look(state: Any, ctx: Any) -> None:
    """Changes nothing, so that its segment ends without a version."""


def trip() -> analemma.Flow:
    flow = analemma.Flow("trip", checkpoints="node")
    flow.step(noting("plan"), reads=["did"], writes=["did"])
    flow.step(look)
    flow.step(noting("book"), reads=["did"], writes=["did"])
    return flow


def known(app: analemma.App) -> analemma.Flow:
    app.flows.register(trip())
    app.flows.handlers.add("trip.check", noting("check"))
    return trip()


def newest(app: analemma.App) -> str:
    return app.kernel.history(**PLACE)[0].manifest_id


def run_slowly(url: str, objects: str | None, folder: str) -> None:
    """Run the trip; before it books, wait for a file."""

    def book(state: Any, ctx: Any) -> dict[str, list[str]]:
        (Path(folder) / "booking").touch()
        wait_for(Path(folder) / "book")
        return {"did": [*state["did"], "book"]}

    with Store(url, objects).open() as app:
        known(app)
        app.flows.handlers.add("trip.book", book)
        print(app.flows.run(trip().workflow(), {"did": []}, **PLACE).execution_id)


def wait_for(file: Path) -> None:
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.002)


def inject(url: str, objects: str | None, manifest: str, position: int) -> None:
    with Store(url, objects).open() as app:
        app.kernel.inject_dynamic_segment(manifest, NODE, position)


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("point", ["run.before_segment", "run.after_segment"])
@pytest.mark.parametrize("position", range(LAST + 1))
def test_a_segment_is_run_once_or_refused_wherever_the_run_is(
    store: Store, point: str, turn: int, position: int
) -> None:
    with store.open() as app, store.open() as other:
        flow = known(app)
        with failpoints.paused(point, lambda: app.flows.run(flow, {"did": []}, **PLACE), time=turn) as held:
            stands = turn - 1
            comes = position > stands and not (stands == LAST - 1 and position == LAST)
            if comes:
                other.kernel.inject_dynamic_segment(newest(other), NODE, position)
            else:
                with pytest.raises(Conflict, match="would not come to"):
                    other.kernel.inject_dynamic_segment(newest(other), NODE, position)
            done = held.go_on()
        assert (done.status, done.error) == ("COMPLETED", None)
        order = ["plan", "look", "book"]
        order[position:position] = ["check"] if comes else []
        assert [each.segment_id for each in done.segments] == order
        assert done.state["did"] == [each for each in order if each != "look"]
        assert app.kernel.verify(**PLACE).ok


def test_a_run_that_moves_on_while_a_segment_is_injected_is_looked_at_again(store: Store, tmp_path: Path) -> None:
    """The injector saw the run before its third segment, and commits when that is under way; no version was made."""
    store.open().close()
    with (
        Actor(run_slowly, store.url, store.objects, str(tmp_path), at="run.after_segment", turn=2) as runner,
        store.open() as app,
    ):
        runner.wait_until_stopped()
        manifest = newest(app)

        def move_on() -> None:
            runner.thaw()
            wait_for(tmp_path / "booking")

        with (
            failpoints.call("commit.before_transaction", move_on),
            pytest.raises(Conflict, match="stands at book, and would not come to"),
        ):
            app.kernel.inject_dynamic_segment(manifest, NODE, 2)
        assert newest(app) == manifest
        (tmp_path / "book").touch()
        assert runner.wait() == 0, runner.errors
        done = app.flows.get(runner.output.strip())
        assert (done.status, done.state["did"]) == ("COMPLETED", ["plan", "book"])


def test_a_decision_takes_notice_of_what_was_injected_behind_the_last_segment_meanwhile(store: Store) -> None:
    with store.open() as app, store.open() as other:
        flow = analemma.Flow("trip")
        flow.step(noting("plan"), reads=["did"], writes=["did"])
        flow.human("approve", choices=["yes", "no"])
        app.flows.handlers.add("trip.check", noting("check"))
        run = app.flows.run(flow, {"did": []}, **PLACE)
        decide = lambda: app.flows.approve(run.execution_id, "yes", "bob")  # noqa: E731
        with failpoints.paused("commit.before_transaction", decide) as held:
            other.kernel.inject_dynamic_segment(run.manifest_id, NODE, 2)
            done = held.go_on()
        assert (done.status, done.state["did"]) == ("COMPLETED", ["plan", "check"])
        assert [each.segment_id for each in done.segments] == ["plan", "approve", "check"]


def test_of_two_who_inject_at_once_one_is_told(store: Store) -> None:
    with store.open() as app, store.open() as other:
        flow = known(app)
        pending = app.flows.start(flow, {"did": []}, **PLACE)
        late = lambda: app.kernel.inject_dynamic_segment(pending.manifest_id, NODE, 0, 1)  # noqa: E731
        with failpoints.paused("commit.before_transaction", late) as held:
            other.kernel.inject_dynamic_segment(pending.manifest_id, {**NODE, "id": "first"}, 1, 1)
            with pytest.raises(Conflict, match="not those of hash version 1") as told:
                held.go_on()
            assert told.value.facts["found"] == 2
        done = app.flows.resume(pending.execution_id)
        assert [each.segment_id for each in done.segments] == ["plan", "first", "look", "book"]


@pytest.mark.parametrize(("point", "made"), [("commit.before_commit", False), ("commit.after_commit", True)])
def test_an_injector_that_dies_has_injected_all_or_nothing(store: Store, point: str, made: bool) -> None:
    with store.open() as app:
        flow = known(app)
        pending = app.flows.start(flow, {"did": []}, **PLACE)
        with Actor(inject, store.url, store.objects, pending.manifest_id, 1, at=point, then="kill") as injector:
            assert injector.wait() == -signal.SIGKILL
        done = app.flows.resume(pending.execution_id)
        assert done.state["did"] == (["plan", "check", "book"] if made else ["plan", "book"])
        assert app.kernel.verify(**PLACE).ok
