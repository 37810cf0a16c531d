"""Segments that are injected into a run: what is taken, what is refused when it is injected, and what the run does."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict, Invalid
from tests.programs import run
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


@pytest.fixture
def app(store: Store) -> Iterator[analemma.App]:
    with store.open() as app:
        for name in ("check", "log"):
            app.flows.handlers.add(f"trip.{name}", _noting(name))
        yield app


def _noting(name: str) -> Any:
    def note(state: Any, ctx: Any) -> dict[str, list[str]]:
        return {"did": [*state["did"], name]}

    note.__name__ = name
    return note


def trip() -> analemma.Flow:
    """Two steps around somebody who decides."""
    flow = analemma.Flow("trip")
    flow.step(_noting("plan"), reads=["did"], writes=["did"])
    flow.human("approve", choices=["yes", "no"])
    flow.step(_noting("book"), reads=["did"], writes=["did"])
    return flow


def node(name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "type": "python",
        "function": f"trip.{name}",
        "reads": ["did"],
        "writes": ["did"],
        **more,
    }


def executed(run: Any) -> list[str]:
    return [each.segment_id for each in run.segments]


def as_shown(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """An entry as `load_segment_manifest` shows it, with other nodes."""
    entry = entries[0]
    return {**entry, "segment_config": {**entry["segment_config"], "id": name, "nodes": [node(name)]}}


GIVEN: dict[str, Any] = {
    "as the manifest shows it": lambda entries: as_shown(entries, "check"),
    "its configuration alone": lambda entries: as_shown(entries, "check")["segment_config"],
    "nodes": lambda entries: {"nodes": [node("check")]},
    "nodes with an id": lambda entries: {"id": "check", "type": "steps", "nodes": [node("check")]},
    "one node": lambda entries: node("check"),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_a_run_executes_what_was_injected_then_the_later_ones(app: analemma.App, given: Any) -> None:
    waiting = app.flows.run(trip(), {"did": []}, **PLACE)
    entries = app.kernel.load_segment_manifest(waiting.manifest_id)
    made = app.kernel.inject_dynamic_segment(waiting.manifest_id, given(entries), 2, expected_hash_version=1)
    assert made.hash_version == 2
    shown = app.kernel.load_segment_manifest(made.manifest_id)
    assert [(each["segment_id"], each["segment_name"], each["total_segments"]) for each in shown] == [
        (0, "plan", 4),
        (1, "approve", 4),
        (2, "check", 4),
        (3, "book", 4),
    ]
    for number, entry in enumerate(shown):
        assert app.kernel.verify_segment_config(entry["segment_config"], made.manifest_id, number)
    done = app.flows.approve(waiting.execution_id, "yes", "bob")
    assert (done.status, done.error) == ("COMPLETED", None)
    assert done.state["did"] == ["plan", "check", "book"]
    assert executed(done) == ["plan", "approve", "check", "book"]
    assert app.kernel.verify(**PLACE).ok


def test_a_segment_as_it_stands_in_the_manifest_is_run_once_more_under_a_number(app: analemma.App) -> None:
    waiting = app.flows.run(trip(), {"did": []}, **PLACE)
    entries = app.kernel.load_segment_manifest(waiting.manifest_id)
    made = app.kernel.inject_dynamic_segment(waiting.manifest_id, entries[0], 2)
    app.kernel.inject_dynamic_segment(made.manifest_id, entries[0], 4)
    done = app.flows.approve(waiting.execution_id, "yes", "bob")
    assert done.state["did"] == ["plan", "plan", "book", "plan"]
    assert executed(done) == ["plan", "approve", "plan.2", "book", "plan.3"]


def test_segments_that_are_injected_at_one_place_run_in_the_order_of_the_manifest(app: analemma.App) -> None:
    waiting = app.flows.run(trip(), {"did": []}, **PLACE)
    made = app.kernel.inject_dynamic_segment(waiting.manifest_id, node("check"), 2)
    app.kernel.inject_dynamic_segment(made.manifest_id, node("log"), 3)
    done = app.flows.approve(waiting.execution_id, "yes", "bob")
    assert done.state["did"] == ["plan", "check", "log", "book"]


def test_what_was_injected_and_has_run_does_not_run_again_when_more_is_injected(app: analemma.App) -> None:
    flow, failing = trip(), [True]

    def book(state: Any, ctx: Any) -> dict[str, Any]:
        if failing:
            raise ValueError(failing.pop())
        return {"did": [*state["did"], "book"]}

    app.flows.register(flow)
    app.flows.handlers.add("trip.book", book)
    waiting = app.flows.run(flow.workflow(), {"did": []}, **PLACE)
    made = app.kernel.inject_dynamic_segment(waiting.manifest_id, node("check"), 2)
    failed = app.flows.approve(waiting.execution_id, "yes", "bob")
    assert (failed.status, executed(failed)[-1]) == ("FAILED", "book")
    newest = app.kernel.history(**PLACE)[0].manifest_id
    assert made.hash_version == app.kernel.get_manifest(newest).hash_version == 2
    app.kernel.inject_dynamic_segment(newest, node("log"), 3)
    done = app.flows.resume(waiting.execution_id)
    assert done.state["did"] == ["plan", "check", "log", "book"]


def test_a_segment_injected_behind_all_others_runs_before_the_run_is_over(app: analemma.App) -> None:
    flow = analemma.Flow("trip")
    flow.step(_noting("plan"), reads=["did"], writes=["did"])
    flow.human("approve", choices=["yes", "no"])
    waiting = app.flows.run(flow, {"did": []}, **PLACE)
    app.kernel.inject_dynamic_segment(waiting.manifest_id, node("log"), 2)
    done = app.flows.approve(waiting.execution_id, "yes", "bob")
    assert (done.status, done.state["did"]) == ("COMPLETED", ["plan", "log"])


def test_a_segment_is_injected_before_a_run_begins(app: analemma.App) -> None:
    flow = trip()
    pending = app.flows.start(flow, {"did": []}, **PLACE)
    app.kernel.inject_dynamic_segment(pending.manifest_id, node("check"), 0)
    app.flows.resume(pending.execution_id)
    done = app.flows.approve(pending.execution_id, "yes", "bob")
    assert done.state["did"] == ["check", "plan", "book"]


def test_a_segment_that_changes_nothing_is_followed_by_what_was_injected_meanwhile(app: analemma.App) -> None:
    flow = analemma.Flow("trip", checkpoints="node")

    def look(state: Any, ctx: Any) -> None:
        app.kernel.inject_dynamic_segment(ctx.manifest_id, node("check"), 1)

    flow.step(look)
    flow.step(_noting("book"), reads=["did"], writes=["did"])
    done = app.flows.run(flow, {"did": []}, **PLACE)
    assert (done.status, done.state["did"]) == ("COMPLETED", ["check", "book"])


def test_a_segment_inside_a_loop_runs_in_every_iteration_to_come(app: analemma.App) -> None:
    flow = analemma.Flow("trip")

    def go(state: Any, ctx: Any) -> dict[str, list[str]]:
        if ctx.iteration == 1:
            app.kernel.inject_dynamic_segment(ctx.manifest_id, node("check"), 1)
        return {"did": [*state["did"], "go"]}

    flow.loop("days", [flow.step(go, reads=["did"], writes=["did"])], times=3)
    done = app.flows.run(flow, {"did": []}, **PLACE)
    assert (done.status, done.state["did"]) == ("COMPLETED", ["go", "check", "go", "check", "go"])


NOT_RUNNABLE: list[tuple[dict[str, Any], str]] = [
    ({}, "/nodes"),
    ({"node": 1}, "/nodes"),
    ({"nodes": []}, "/nodes"),
    ({"nodes": [{"id": "x", "type": "python"}]}, "/nodes/0"),
    ({"nodes": [node("check"), {"id": "x", "type": "dance"}]}, "/nodes/1"),
    ({"nodes": [node("check"), {"id": "ask", "type": "human", "choices": ["a"]}]}, "/nodes"),
    ({"nodes": [node("check", writes=["manifest_id"])]}, "/nodes/0"),
    ({"id": "a/b", "nodes": [node("check")]}, "/id"),
    ({"type": "llm", "nodes": [node("check")]}, "/type"),
    ({"format": 7, "nodes": [node("check")]}, "/format"),
    ({"ring": "ring_0", "nodes": [node("check")]}, "/ring"),
    ({"arms": [["book"]], "nodes": [node("check")]}, "/arms"),
    ({"segment_config": {"nodes": [{"id": "x", "type": "python"}]}}, "/segment_config/nodes/0"),
    ({"segment_config": 3}, "/segment_config"),
]


def test_what_could_not_be_run_is_refused_when_it_is_injected(app: analemma.App) -> None:
    waiting = app.flows.run(trip(), {"did": []}, **PLACE)
    versions = len(app.kernel.history(**PLACE))
    for given, pointer in NOT_RUNNABLE:
        with pytest.raises(Invalid) as refused:
            app.kernel.inject_dynamic_segment(waiting.manifest_id, given, 2)
        assert refused.value.facts["pointer"] == pointer, given
    assert len(app.kernel.history(**PLACE)) == versions
    assert app.flows.approve(waiting.execution_id, "yes", "bob").state["did"] == ["plan", "book"]


@pytest.mark.parametrize("position", [0, 1])
def test_nothing_is_injected_where_the_run_has_been(app: analemma.App, position: int) -> None:
    waiting = app.flows.run(trip(), {"did": []}, **PLACE)
    with pytest.raises(Conflict, match="stands at approve") as refused:
        app.kernel.inject_dynamic_segment(waiting.manifest_id, node("check"), position)
    assert refused.value.hint == "use a position from 2 on"
    done = app.flows.approve(waiting.execution_id, "yes", "bob")
    assert done.state["did"] == ["plan", "book"]
    with pytest.raises(Conflict, match="is COMPLETED"):
        app.kernel.inject_dynamic_segment(done.manifest_id, node("check"), 3)


def test_segments_that_no_run_takes_are_kept_as_they_are_given(app: analemma.App) -> None:
    made = app.kernel.create_manifest(
        "other", {"made": "by hand"}, [{"segment_config": {"n": 1}, "name": "one"}], owner_id="ann"
    )
    entry = {"segment_config": {"n": 2}, "name": "two"}
    wrapped = app.kernel.inject_dynamic_segment(made.manifest_id, entry, 1)
    plain = app.kernel.inject_dynamic_segment(wrapped.manifest_id, {"n": 3}, 0)
    assert app.kernel.load_segment_manifest(plain.manifest_id) == [
        {"n": 3},
        {"segment_config": {"n": 1}, "name": "one"},
        entry,
    ]
    assert app.kernel.verify_segment_config({"n": 2}, plain.manifest_id, 2)


def test_the_command_injects_what_segments_show_prints(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        app.flows.handlers.add("trip.check", _noting("check"))
        waiting = app.flows.run(trip(), {"did": []}, **PLACE)
    place = [
        "-u",
        store.url,
        *(["--objects", store.objects] if store.objects else []),
        "-o",
        "ann",
        "-w",
        "trip",
        "--json",
    ]
    program = [sys.executable, "-m", "analemma", "segments"]
    shown = run([*program, "show", *place], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    segment = tmp_path / "segment.json"
    segment.write_text(json.dumps(as_shown(json.loads(shown.stdout)["segments"], "check")))
    version = str(json.loads(shown.stdout)["manifest"]["version"])
    made = run(
        [*program, "inject", version, *place, "--at", "2", "--config", str(segment)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    with store.open() as app:
        app.flows.register(trip())
        app.flows.handlers.add("trip.check", _noting("check"))
        assert app.flows.approve(waiting.execution_id, "yes", "bob").state["did"] == ["plan", "check", "book"]
