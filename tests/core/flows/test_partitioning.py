"""Where workflows are cut, and what their segments are told."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import load_workflow
from analemma.errors import Invalid
from tests.core.entry_points.flows import partition, plan_of
from tests.core.flows.workflows import TRIAGE, branch, human, loop, plan_of_nodes, python


def cut(plan: Any) -> list[tuple[str, ...]]:
    return [segment.nodes for segment in plan.segments]


def test_steps_that_follow_one_another_are_one_segment() -> None:
    assert cut(plan_of_nodes(*map(python, "abcd"))) == [("a", "b", "c", "d")]


def test_every_node_is_a_segment_where_the_document_says_so() -> None:
    assert cut(plan_of_nodes(*map(python, "abc"), checkpoints="node")) == [("a",), ("b",), ("c",)]


def test_a_node_may_ask_for_a_cut_behind_it() -> None:
    assert cut(plan_of_nodes(python("a", checkpoint=True), python("b"), python("c"))) == [("a",), ("b", "c")]


def test_no_segment_is_of_two_rings() -> None:
    plan = plan_of_nodes(python("a"), python("b", ring=1), python("c", ring=1), python("d"))
    assert [(each.nodes, each.ring) for each in plan.segments] == [
        (("a",), "ring_3"),
        (("b", "c"), "ring_1"),
        (("d",), "ring_3"),
    ]


def test_a_fork_ends_a_segment_and_steps_in_between_do_not_join_others() -> None:
    plan = plan_of_nodes(*map(python, "abcd"), edges=[("a", "b"), ("a", "c"), ("b", "d")])
    assert cut(plan) == [("a",), ("b",), ("c",), ("d",)]


def test_ways_that_meet_are_merged_before_the_node() -> None:
    plan = plan_of_nodes(*map(python, "abcd"), edges=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    assert [(each.id, each.automatic, each.next) for each in plan.segments] == [
        ("a", False, ("b", "c")),
        ("b", False, ("d.join",)),
        ("c", False, ("d.join",)),
        ("d.join", True, ("d",)),
        ("d", False, ()),
    ]


def test_a_group_that_several_ways_lead_to_is_merged_before_and_behind() -> None:
    group = {"id": "g", "type": "parallel_group", "branches": {"x": ["d"]}}
    edges = [("a", "b"), ("a", "c"), ("b", "g"), ("c", "g")]
    plan = plan_of_nodes(*map(python, "abc"), group, python("d"), edges=edges)
    assert [each.id for each in plan.segments] == ["a", "b", "c", "g.join", "g", "g.merge"]


def test_an_arm_without_steps_leads_to_what_follows() -> None:
    plan = plan_of_nodes(branch("b", ["x"], [], default=[]), python("x"), python("z"))
    assert plan.segment("b").arms == (("x",), ("z.join",), ("z.join",))
    last = plan_of_nodes(branch("b", ["x"], default=[]), python("x"))
    assert last.segment("b").arms == (("x",), ())


def test_a_branch_that_ends_a_body_leads_back_to_the_loop() -> None:
    plan = plan_of_nodes(loop("l", "b"), branch("b", ["x"], default=[]), python("x"), python("z"))
    assert plan.segment("b").arms == (("x",), ("l",))
    assert plan.segment("x").next == ("l",)
    assert plan.segment("l").next == ("z",)


def test_a_merge_segment_knows_what_and_how() -> None:
    merge = {"strategy": "deep_merge", "strategies": {"/a": "append", "/b": "collect"}}
    group = {"id": "g", "type": "parallel_group", "branches": {"x": ["d"]}}
    plan = plan_of_nodes(group, python("d"), merge=merge)
    assert plan.segment("g.merge").config["merge"] == {"of": "g", **merge}
    own = {"id": "m", "type": "aggregator", "of": "g", "strategies": {"/b": "ours"}, "function": "test.m"}
    chosen = plan_of_nodes(group, python("d"), own, merge=merge).segment("m").config["merge"]
    assert chosen == {
        "of": "g",
        "function": "test.m",
        "strategy": "deep_merge",
        "strategies": {"/a": "append", "/b": "ours"},
    }


def test_the_limit_follows_from_how_often_loops_say_they_run() -> None:
    for limit, nodes in (
        (100, [python("a")]),
        (100, [loop("l", "a", times=10), python("a")]),
        (322, [loop("l", "a", times=100), python("a")]),
        (322, [loop("l", "a", max_iterations=100, times=200), python("a")]),
        (352, [loop("l", "m", times=10), loop("m", "a", times=10), python("a")]),
    ):
        assert plan_of_nodes(*nodes).iteration_limit == limit, nodes


def test_the_document_may_set_the_limit() -> None:
    assert plan_of_nodes(python("a"), limits={"max_iterations": 3}).iteration_limit == 3


def test_a_plan_is_what_its_configurations_say() -> None:
    plan = partition(load_workflow(TRIAGE))
    again = plan_of([segment.config for segment in plan.segments], plan.iteration_limit)
    assert again == plan
    assert plan_of(plan.segment_manifest(), plan.iteration_limit) == plan


def test_configurations_that_make_no_plan_are_refused() -> None:
    plan = plan_of_nodes(python("a"), human("b"), loop("c", "d"), python("d"))
    configs = [dict(segment.config) for segment in plan.segments]
    changes: list[tuple[dict[str, Any], str]] = [
        ({"format": 2}, "of no format that is known"),
        ({"type": "other"}, "of no format that is known"),
        ({"next": ["nowhere"]}, "names nowhere"),
        ({"loop": "b"}, "does not stand in the body"),
        ({"id": 5}, "lacks"),
        ({"nodes": None}, "lacks"),
        ({"id": "b"}, "the same id"),
    ]
    for change, reason in changes:
        with pytest.raises(Invalid, match=reason):
            plan_of([configs[0] | change, *configs[1:]], 100)


def test_the_same_document_is_cut_the_same() -> None:
    one, other = (partition(load_workflow(TRIAGE)) for _ in range(2))
    assert one == other
