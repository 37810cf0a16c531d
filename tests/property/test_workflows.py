"""What holds for every workflow: each node is in one segment, order respects edges, and a run ends."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from analemma.flows.document import Workflow
from analemma.flows.loading import parse_workflow
from analemma.flows.partitioning import partition, task_plans
from analemma.flows.reading import read_workflow
from analemma.flows.segments import GROUPS, Plan, Segment, plan_of
from analemma.flows.structure import structure_of
from analemma.flows.walking import DONE, Again, Outcome, Took, advance, begin, iterations_at, position_from

LOOP_TURNS = 2


class _Maker:
    """Makes documents at random: groups of every kind inside one another, and any acyclic graph at the top."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.nodes: list[dict[str, Any]] = []
        self.room = 30

    def document(self) -> dict[str, Any]:
        top = [self.node(depth=0, apart=False) for _ in range(self.choose.randint(1, 7))]
        self.choose.shuffle(self.nodes)
        self.nodes.sort(key=lambda node: top.index(node["id"]) if node["id"] in top else -1)
        made: dict[str, Any] = {"workflow": "random", "nodes": self.nodes}
        if self.choose.random() < 0.6 and len(top) > 1:
            made["edges"] = self.edges(top)
        if self.choose.random() < 0.3:
            made["checkpoints"] = "node"
        return made

    def edges(self, top: list[str]) -> list[dict[str, str]]:
        """Every node but the first follows at least one before it; some follow several."""
        pairs = [
            (top[before], top[place])
            for place in range(1, len(top))
            for before in self.choose.sample(range(place), self.choose.randint(1, min(3, place)))
        ]
        self.choose.shuffle(pairs)
        return [{"from": one, "to": other} for one, other in pairs]

    def sequence(self, depth: int, apart: bool, least: int = 1) -> list[str]:
        return [self.node(depth + 1, apart) for _ in range(self.choose.randint(least, 3))]

    def node(self, depth: int, apart: bool) -> str:
        self.room -= 1
        name = f"n{self.room + 100}"
        plain = ["python", "python", "python", "llm_chat", "http_request", "aggregator", "subflow"]
        groups = ["loop", "branch", "parallel_group", "for_each"]
        kinds = plain + ([] if apart else ["human"]) + (groups if depth < 3 and self.room > 6 else [])
        self.nodes.append({"id": name, **self.body(self.choose.choice(kinds), depth, apart)})
        if self.choose.random() < 0.2:
            self.nodes[-1]["checkpoint"] = True
        return name

    def body(self, kind: str, depth: int, apart: bool) -> dict[str, Any]:
        match kind:
            case "python":
                ring = 3 if apart else self.choose.choice([3, 3, 3, 1])
                return {"type": kind, "function": "random.step", "ring": ring}
            case "llm_chat":
                return {"type": kind, "model": "m", "messages": [{"role": "user", "content": "{{x}}"}]}
            case "http_request":
                return {"type": kind, "url": "https://example.com"}
            case "human":
                return {"type": kind, "choices": ["yes"]}
            case "subflow":
                return {"type": kind, "workflow": "other"}
            case "loop":
                return {"type": kind, "times": LOOP_TURNS, "body": self.sequence(depth, apart)}
            case "branch":
                whens = [{"path": "x", "is": "equals", "value": each} for each in range(self.choose.randint(1, 3))]
                cases = [{"when": when, "then": self.sequence(depth, apart, 0)} for when in whens]
                return {"type": kind, "cases": cases, "default": self.sequence(depth, apart, 0)}
            case "for_each":
                return {"type": kind, "over": "xs", "body": self.sequence(depth, True)}
            case "parallel_group":
                names = self.choose.sample(["one", "two", "three"], self.choose.randint(1, 3))
                return {"type": kind, "branches": {name: self.sequence(depth, True) for name in names}}
        return {"type": kind}


documents = st.integers(0, 2**32).map(lambda seed: _Maker(random.Random(seed)).document())
seeds = st.integers(0, 2**32)


def shuffled(value: Any, choose: random.Random) -> Any:
    """The same data with its keys in another order."""
    if isinstance(value, dict):
        keys = list(value)
        choose.shuffle(keys)
        return {key: shuffled(value[key], choose) for key in keys}
    return [shuffled(each, choose) for each in value] if isinstance(value, list) else value


def every_plan(plan: Plan) -> list[Plan]:
    """A plan, and those of the tasks inside it."""
    inner = [
        each for segment in plan.segments if segment.type in GROUPS for each in task_plans(segment.config).values()
    ]
    return [plan, *(each for found in inner for each in every_plan(found))]


@given(documents)
@settings(max_examples=150)
def test_every_node_is_in_exactly_one_segment(document: dict[str, Any]) -> None:
    workflow = read_workflow(document)
    plan = partition(workflow)
    placed = [node for segment in plan.segments if not segment.automatic for node in segment.nodes]
    assert sorted(placed) == sorted(node.id for node in workflow.nodes)
    assert len({segment.id for segment in plan.segments}) == plan.total_segments
    assert all(len(segment.nodes) == 1 for segment in plan.segments if segment.automatic)


@given(documents)
@settings(max_examples=150)
def test_what_a_segment_leads_to_stands_behind_it_but_for_the_loop_around_it(document: dict[str, Any]) -> None:
    for plan in every_plan(partition(read_workflow(document))):
        for number, segment in enumerate(plan.segments):
            for target in (*segment.next, *(each for arm in segment.arms for each in arm)):
                assert plan.numbers[target] > number or target == segment.loop
            if segment.body is not None:
                assert plan.numbers[segment.body] == number + 1


@given(documents)
@settings(max_examples=150)
def test_the_order_of_segments_respects_every_edge(document: dict[str, Any]) -> None:
    workflow = read_workflow(document)
    plan = partition(workflow)
    place = {node: at for at, segment in enumerate(plan.segments) for node in segment.nodes}
    for node, after in structure_of(workflow).successors.items():
        assert all((place[node], _index(plan, node)) < (place[each], _index(plan, each)) for each in after)


def _index(plan: Plan, node: str) -> int:
    return next(segment.nodes.index(node) for segment in plan.segments if node in segment.nodes)


@given(documents)
@settings(max_examples=100)
def test_where_several_ways_meet_there_is_a_merge(document: dict[str, Any]) -> None:
    for plan in every_plan(partition(read_workflow(document))):
        arriving: dict[str, int] = {}
        for segment in plan.segments:
            ways = segment.arms if segment.type == "branch" else (segment.next,)
            for way in ways:
                for target in way:
                    if target != segment.loop:
                        arriving[target] = arriving.get(target, 0) + 1
        assert all(plan.segment(target).type == "merge" for target, count in arriving.items() if count > 1)
        for segment in plan.segments:
            if segment.type == "parallel":
                assert [plan.segment(each).type for each in segment.next] == ["merge"]


@given(documents, seeds)
@settings(max_examples=100)
def test_another_order_of_keys_and_another_way_of_writing_change_nothing(document: dict[str, Any], seed: int) -> None:
    workflow = read_workflow(document)
    turned = shuffled(document, random.Random(seed))
    assert read_workflow(turned) == workflow
    assert partition(read_workflow(turned)) == partition(workflow)
    assert parse_workflow(json.dumps(turned)).hash == workflow.hash
    canonical = workflow.to_document()
    assert read_workflow(canonical).to_document() == canonical
    assert read_workflow(shuffled(canonical, random.Random(seed))).hash == workflow.hash


@given(documents)
@settings(max_examples=50)
def test_a_plan_is_what_its_configurations_say(document: dict[str, Any]) -> None:
    for plan in every_plan(partition(read_workflow(document))):
        assert plan_of(json.loads(json.dumps(plan.segment_manifest())), plan.iteration_limit) == plan


@given(documents, seeds)
@settings(max_examples=200)
def test_a_run_does_what_the_document_says_whichever_way_it_goes(document: dict[str, Any], seed: int) -> None:
    workflow = read_workflow(document)
    plan = partition(workflow)
    taken: list[int] = []
    choose = random.Random(seed)

    def decide(segment: Segment, count: int) -> Outcome:
        if segment.type == "branch":
            taken.append(choose.randrange(len(segment.arms)))
            return Took(taken[-1])
        return Again(count < LOOP_TURNS) if segment.type == "loop" else DONE

    position, ran, seen = begin(plan), [], set()
    while position.at is not None:
        segment = plan.segment(position.at)
        execution = (segment.id, iterations_at(plan, position))
        assert execution not in seen
        seen.add(execution)
        ran += (
            []
            if segment.automatic
            else [node for node in segment.nodes if node == segment.id or segment.type == "steps"]
        )
        count = dict(position.iterations).get(segment.id, 0)
        # What was kept is where the run goes on.
        kept = position_from(json.loads(json.dumps(position.to_value())))
        position = advance(plan, kept, decide(segment, count))
    assert position.marked == frozenset() and position.iterations == ()
    assert ran == list(_expected(workflow, iter(taken)))
    assert position.executed == len(seen)


def _expected(workflow: Workflow, taken: Any) -> list[str]:
    """The nodes that run, straight from the document: what partitioning and walking together have to come to."""

    def sequence(ids: Any) -> list[str]:
        return [each for name in ids for each in one(name)]

    def one(name: str) -> list[str]:
        node = workflow.by_id[name]
        if node.type == "loop":
            return [each for _ in range(LOOP_TURNS) for each in (name, *sequence(node.body))] + [name]
        if node.type == "branch":
            return [name, *sequence(node.sequences()[next(taken)][1])]
        return [name]

    return sequence(structure_of(workflow).order())
