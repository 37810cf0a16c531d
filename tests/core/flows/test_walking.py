"""Where a run goes, and when it is complete."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from analemma import load_workflow
from analemma.errors import Invalid, Limit
from analemma.flows.injection import injected_config
from analemma.flows.partitioning import partition
from analemma.flows.segments import Plan, Segment, plan_of
from analemma.flows.walking import (
    DONE,
    Again,
    Outcome,
    Position,
    Took,
    advance,
    begin,
    entered,
    iterations_at,
    position_from,
)
from tests.core.flows.workflows import TRIAGE, branch, decide_simply, human, loop, plan_of_nodes, python, walk, workflow


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_run_of_human_steps_is_complete_after_the_last_and_not_before(count: int) -> None:
    plan = plan_of_nodes(*(human(f"h{number}") for number in range(count)))
    position = begin(plan)
    for number in range(count):
        assert not position.complete
        assert (position.at, position.executed) == (f"h{number}", number)
        assert plan.total_segments == count
        position = advance(plan, position)
    assert position.complete and position.executed == count and position.marked == frozenset()
    with pytest.raises(Invalid, match="complete"):
        advance(plan, position)


@pytest.mark.parametrize(
    ("arm", "way"), [(0, ["b", "x", "y", "z.join", "z"]), (1, ["b", "w", "z.join", "z"]), (2, ["b", "z.join", "z"])]
)
def test_only_the_arm_that_was_taken_runs(arm: int, way: list[str]) -> None:
    nodes = [branch("b", ["x", "y"], ["w"], default=[]), python("x"), human("y"), python("w"), python("z")]
    taken = walk(plan_of_nodes(*nodes), lambda segment, _: Took(arm) if segment.type == "branch" else DONE)
    assert list(taken) == way


def test_a_branch_at_the_end_completes_either_way() -> None:
    plan = plan_of_nodes(branch("b", ["x"], default=[]), python("x"))
    assert advance(plan, begin(plan), Took(1)).complete
    assert advance(plan, advance(plan, begin(plan), Took(0))).complete


def test_what_follows_only_what_was_skipped_is_skipped() -> None:
    nodes = [branch("b", ["i"], default=[]), branch("i", ["x"], default=["y"]), python("x"), python("y"), python("z")]
    assert list(walk(plan_of_nodes(*nodes))) == ["b", "z.join", "z"]


def test_a_loop_goes_back_until_it_is_left() -> None:
    plan = plan_of_nodes(python("a"), loop("l", "x", "h"), python("x"), human("h"), python("z"))
    assert list(walk(plan)) == ["a", "l", "x", "h", "l", "x", "h", "l", "z"]


def test_a_loop_that_does_not_begin_is_passed() -> None:
    plan = plan_of_nodes(loop("l", "x"), python("x"), python("z"))
    assert list(walk(plan, lambda segment, _: Again(False) if segment.type == "loop" else DONE)) == ["l", "z"]


def test_a_loop_inside_another_begins_anew_each_time() -> None:
    plan = plan_of_nodes(loop("o", "i"), loop("i", "x"), python("x"))
    assert list(walk(plan)) == ["o", "i", "x", "i", "x", "i", "o", "i", "x", "i", "x", "i", "o"]


def test_a_branch_in_a_body_does_not_remember_the_way_it_took_before() -> None:
    plan = plan_of_nodes(loop("l", "b", "e"), branch("b", ["x"], default=["y"]), python("x"), python("y"), python("e"))
    arms = iter([0, 1])
    ran = walk(plan, lambda segment, count: Took(next(arms)) if segment.type == "branch" else _twice(segment, count))
    assert list(ran) == ["l", "b", "x", "e.join", "e", "l", "b", "y", "e.join", "e", "l"]


def _twice(segment: Segment, count: int) -> Outcome:
    return Again(count < 2) if segment.type == "loop" else DONE


def test_every_execution_of_a_segment_has_iterations_of_its_own() -> None:
    plan = plan_of_nodes(loop("o", "i"), loop("i", "x"), python("x"))
    position, seen = begin(plan), []
    while position.at is not None:
        segment = plan.segment(position.at)
        seen.append((segment.id, iterations_at(plan, position)))
        position = advance(plan, position, _twice(segment, dict(position.iterations).get(segment.id, 0)))
    assert len(set(seen)) == len(seen)
    assert [each for each in seen if each[0] == "x"] == [("x", each) for each in ((1, 1), (1, 2), (2, 1), (2, 2))]


def test_a_run_that_does_not_end_meets_its_limit() -> None:
    plan = plan_of_nodes(loop("l", "x", times=3), python("x"))
    with pytest.raises(Limit, match="100 segments ran") as caught:
        list(walk(plan, lambda segment, _: Again(True) if segment.type == "loop" else DONE))
    assert caught.value.limit == plan.iteration_limit == 100


def test_the_limit_may_be_used_up_exactly() -> None:
    plan = plan_of_nodes(human("a"), human("b"), limits={"max_iterations": 2})
    assert list(walk(plan)) == ["a", "b"]
    short = plan_of_nodes(human("a"), human("b"), limits={"max_iterations": 1})
    with pytest.raises(Limit):
        list(walk(short))


def test_a_position_is_plain_data() -> None:
    plan = partition(load_workflow(TRIAGE))
    for position in _positions(plan_of(plan.segment_manifest(), plan.iteration_limit)):
        kept = json.loads(json.dumps(position.to_value()))
        assert position_from(kept) == position


def _positions(plan: Plan) -> Iterator[Position]:
    position = begin(plan)
    yield position
    while position.at is not None:
        segment = plan.segment(position.at)
        position = advance(plan, position, decide_simply(segment, dict(position.iterations).get(segment.id, 0)))
        yield position


@pytest.mark.parametrize("outcome", [Took(0), Again(True)], ids=repr)
def test_an_outcome_that_a_segment_cannot_have_is_refused(outcome: Outcome) -> None:
    plan = plan_of_nodes(python("a"))
    with pytest.raises(Invalid, match="is no outcome of"):
        advance(plan, begin(plan), outcome)


@pytest.mark.parametrize("arm", [-1, 2])
def test_an_arm_that_there_is_not_is_refused(arm: int) -> None:
    plan = plan_of_nodes(branch("b", ["x"], default=[]), python("x"))
    with pytest.raises(Invalid, match="is no outcome of"):
        advance(plan, begin(plan), Took(arm))
    with pytest.raises(Invalid, match="is no outcome of"):
        advance(plan, begin(plan))


def test_a_run_begins_with_the_trigger_that_set_it_off() -> None:
    nodes = [{"id": name, "type": "trigger"} for name in ("t", "u")]
    edges = [("t", "a"), ("u", "a"), ("u", "b")]
    plan = plan_of_nodes(*nodes, python("a"), python("b"), edges=edges)
    assert list(walk(plan)) == ["t", "a.join", "a"]
    assert list(walk(plan, start="u")) == ["u", "a.join", "a", "b"]
    with pytest.raises(Invalid, match="runs begin at t, u"):
        begin(plan, "a")


def test_what_is_injected_before_the_segment_at_hand_comes_first() -> None:
    plan = plan_of_nodes(human("a"), human("b"))
    position = advance(plan, begin(plan))
    config = injected_config(workflow(human("a"), human("b")), plan, python("new"), 1)
    grown = plan_of([plan.segments[0].config, config, plan.segments[1].config], 100, 2)
    there = entered(grown, position, 1)
    assert (position.at, there.at) == ("b", "new")
    assert advance(grown, there).at == "b"
    assert entered(grown, position, 2) == position
