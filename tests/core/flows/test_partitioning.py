"""Where workflows are cut, and what their segments are told."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import load_workflow
from analemma.bag.rings import visible_fields
from analemma.errors import Conflict, Invalid
from analemma.flows.document import hash_of
from analemma.flows.partitioning import nodes_of, partition, task_plans
from analemma.flows.segments import Plan, plan_of, segment_of
from tests.core.flows.workflows import TRIAGE, branch, human, loop, plan_of_nodes, python, walk, workflow
from tests.stores import Store


def cut(plan: Plan) -> list[tuple[str, ...]]:
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
    assert list(walk(plan)) == ["a", "b", "c", "d"]


def test_of_nodes_that_could_come_next_the_first_of_the_document_does() -> None:
    plan = plan_of_nodes(*map(human, "abcd"), edges=[("a", "d"), ("a", "b"), ("b", "c")])
    assert list(walk(plan)) == ["a", "b", "c", "d"]


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


def test_what_a_node_takes_from_the_state_is_what_its_segment_may_see() -> None:
    plan = partition(load_workflow(TRIAGE))
    seen = {each.id: visible_fields(each.config, each.ring) for each in plan.segments}
    assert seen["classify"] == {"ticket", "label", "questions", "tools", "tool_schemas"}
    assert seen["route"] == {"label", "ticket"}
    assert seen["polish"] == {"score"}
    assert seen["rewrite"] == {"answers", "reply", "node", "config"}
    assert seen["answer"] >= {"questions", "answers", "customer", "item"}
    assert "credentials" not in set().union(*seen.values())


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


def test_tasks_are_planned_from_the_configuration_alone() -> None:
    group = {"id": "g", "type": "parallel_group", "branches": {"two": ["l"], "one": ["a", "p"]}}
    inner = {"id": "p", "type": "parallel_group", "branches": {"deep": ["e"]}}
    plan = plan_of_nodes(group, python("a"), inner, python("e"), loop("l", "c", times=5), python("c"))
    config: Any = plan.segment("g").config
    assert plan.segment("g").nodes == ("g", "a", "p", "e", "l", "c")
    tasks = task_plans(config)
    assert list(tasks) == ["one", "two"]
    assert cut(tasks["one"]) == [("a",), ("p", "e"), ("p.merge",)]
    assert cut(tasks["two"]) == [("l",), ("c",)]
    assert cut(task_plans(tasks["one"].segment("p").config)["deep"]) == [("e",)]
    assert list(walk(tasks["two"])) == ["l", "c", "l", "c", "l"]
    with pytest.raises(Invalid, match="has no tasks"):
        task_plans(plan.segment("g.merge").config)


@pytest.mark.parametrize(
    ("nodes", "limit"),
    [
        ([python("a")], 100),
        ([loop("l", "a", times=10), python("a")], 100),
        ([loop("l", "a", times=100), python("a")], 322),
        ([loop("l", "a", while_=None, max_iterations=100, times=200), python("a")], 322),
        ([loop("l", "m", times=10), loop("m", "a", times=10), python("a")], 352),
    ],
    ids=["one step", "few", "many", "at most", "inside another"],
)
def test_the_limit_follows_from_how_often_loops_say_they_run(nodes: list[dict[str, Any]], limit: int) -> None:
    nodes = [{key: value for key, value in node.items() if key != "while_"} for node in nodes]
    assert plan_of_nodes(*nodes).iteration_limit == limit


def test_the_document_may_set_the_limit() -> None:
    assert plan_of_nodes(python("a"), limits={"max_iterations": 3}).iteration_limit == 3


def test_a_plan_is_what_its_configurations_say() -> None:
    plan = partition(load_workflow(TRIAGE))
    again = plan_of([segment.config for segment in plan.segments], plan.iteration_limit)
    assert again == plan
    assert plan_of(plan.segment_manifest(), plan.iteration_limit) == plan


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "of no format that is known"),
        ({"type": "other"}, "of no format that is known"),
        ({"next": ["nowhere"]}, "names nowhere"),
        ({"loop": "b"}, "does not stand in the body"),
        ({"id": 5}, "lacks"),
        ({"nodes": None}, "lacks"),
        ({"id": "b"}, "the same id"),
    ],
    ids=["format", "type", "next", "loop", "id", "nodes", "twice"],
)
def test_configurations_that_make_no_plan_are_refused(change: dict[str, Any], reason: str) -> None:
    plan = plan_of_nodes(python("a"), human("b"), loop("c", "d"), python("d"))
    configs = [dict(segment.config) for segment in plan.segments]
    with pytest.raises(Invalid, match=reason):
        plan_of([configs[0] | change, *configs[1:]], 100)


def test_a_segment_injected_into_a_manifest_is_run_before_what_it_stands_before(store: Store) -> None:
    with store.open() as app:
        known = workflow(python("a"), human("b"), loop("c", "d"), python("d"), python("e"))
        plan = partition(known)
        made = app.kernel.create_manifest("w", known.to_document(), plan.segment_manifest(), owner_id="me")
        for name, before in (("first", "a"), ("more", "b"), ("often", "d"), ("once", "c"), ("late", None)):
            position = plan.total_segments if before is None else plan.numbers[before]
            made = app.kernel.inject_dynamic_segment(made.manifest_id, python(name), position)
            plan = plan_of(app.kernel.load_segment_manifest(made.manifest_id), plan.iteration_limit)
            assert app.kernel.verify_segment_config(plan.segments[position].config, made.manifest_id, position)
        assert list(walk(plan)) == [
            *("first", "a", "more", "b", "once", "c"),
            *("often", "d", "c", "often", "d", "c"),
            *("e", "late"),
        ]
        assert made.hash_version == 6
        with pytest.raises(Conflict):
            app.kernel.inject_dynamic_segment(made.manifest_id, python("other"), 0, expected_hash_version=1)


def test_the_same_document_is_cut_the_same() -> None:
    one, other = (partition(load_workflow(TRIAGE)) for _ in range(2))
    assert one == other
    assert [hash_of(dict(each.config)) for each in one.segments] == [
        hash_of(dict(each.config)) for each in other.segments
    ]


def test_a_configuration_can_be_read_alone() -> None:
    segment = plan_of_nodes(human("h")).segments[0]
    assert segment_of(segment.config) == segment
    assert list(nodes_of(segment.config)) == ["h"]
    with pytest.raises(Invalid, match="segment h has nodes that are none"):
        nodes_of({**segment.config, "nodes": [{"id": "h", "type": "human"}]})
