"""What holds for every workflow: each node is in one segment, order respects edges, and a run ends."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import analemma
from analemma import App
from tests.core.entry_points.flows import partition, plan_of, read_workflow, task_plans
from tests.depth import count

LOOP_TURNS = 2
EXAMPLES = count(test=60, deep=200)
PLAIN = ["python", "python", "python", "llm_chat", "http_request", "aggregator", "subflow"]


class _Maker:
    """Makes documents at random: groups of every kind inside one another, and any acyclic graph at the top."""

    def __init__(self, choose: random.Random, *, plain: list[str] = PLAIN, waits: bool = True) -> None:
        self.choose = choose
        self.plain = plain + (["human"] if waits else [])
        self.waits = waits
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
        groups = ["loop", "branch", "parallel_group", "for_each"]
        kinds = [kind for kind in self.plain if not (apart and kind == "human")]
        kinds += groups if depth < 3 and self.room > 6 else []
        self.nodes.append({"id": name, **self.body(name, self.choose.choice(kinds), depth, apart)})
        if self.choose.random() < 0.2:
            self.nodes[-1]["checkpoint"] = True
        return name

    def body(self, name: str, kind: str, depth: int, apart: bool) -> dict[str, Any]:
        match kind:
            case "python":
                ring = 3 if apart or not self.waits else self.choose.choice([3, 3, 3, 1])
                noted = {} if apart else {"reads": ["did"], "writes": ["did"]}
                return {"type": kind, "function": f"random.{name}", "ring": ring, **noted}
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


def every_plan(plan: Any) -> list[Any]:
    """A plan, and those of the tasks inside it."""
    inner = [
        each
        for segment in plan.segments
        if segment.type in ("parallel", "for_each")
        for each in task_plans(segment.config).values()
    ]
    return [plan, *(each for found in inner for each in every_plan(found))]


@given(documents)
@settings(max_examples=EXAMPLES)
def test_every_node_is_in_exactly_one_segment(document: dict[str, Any]) -> None:
    workflow = read_workflow(document)
    plan = partition(workflow)
    placed = [node for segment in plan.segments if not segment.automatic for node in segment.nodes]
    assert sorted(placed) == sorted(node.id for node in workflow.nodes)
    assert len({segment.id for segment in plan.segments}) == plan.total_segments
    assert all(len(segment.nodes) == 1 for segment in plan.segments if segment.automatic)


@given(documents)
@settings(max_examples=EXAMPLES)
def test_what_a_segment_leads_to_stands_behind_it_but_for_the_loop_around_it(document: dict[str, Any]) -> None:
    for plan in every_plan(partition(read_workflow(document))):
        for number, segment in enumerate(plan.segments):
            for target in (*segment.next, *(each for arm in segment.arms for each in arm)):
                assert plan.numbers[target] > number or target == segment.loop
            if segment.body is not None:
                assert plan.numbers[segment.body] == number + 1


@given(documents)
@settings(max_examples=EXAMPLES)
def test_the_order_of_segments_respects_every_edge(document: dict[str, Any]) -> None:
    plan = partition(read_workflow(document))
    place = {
        node: (at, segment.nodes.index(node)) for at, segment in enumerate(plan.segments) for node in segment.nodes
    }
    pairs = [(edge["from"], edge["to"]) for edge in document.get("edges", [])]
    bodies = {node["id"]: _sequences(node) for node in document["nodes"]}
    if "edges" not in document:
        pairs += itertools.pairwise(_top(document))
    for node in document["nodes"]:
        if node["type"] in ("loop", "branch") and node["id"] in place:
            for sequence in bodies[node["id"]]:
                pairs += itertools.pairwise([node["id"], *sequence])
    assert [pair for pair in pairs if set(pair) <= set(place) and place[pair[0]] >= place[pair[1]]] == []


def _sequences(node: dict[str, Any]) -> list[list[str]]:
    """What stands inside a node, one after the other."""
    match node["type"]:
        case "loop" | "for_each":
            return [node["body"]]
        case "branch":
            return [*[case["then"] for case in node["cases"]], node["default"]]
        case "parallel_group":
            return list(node["branches"].values())
    return []


def _top(document: dict[str, Any]) -> list[str]:
    """The nodes that stand in no other."""
    inner = {each for node in document["nodes"] for sequence in _sequences(node) for each in sequence}
    return [node["id"] for node in document["nodes"] if node["id"] not in inner]


@given(documents)
@settings(max_examples=EXAMPLES)
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
@settings(max_examples=count(test=20, deep=100))
def test_another_order_of_keys_and_another_way_of_writing_change_nothing(document: dict[str, Any], seed: int) -> None:
    workflow = read_workflow(document)
    turned = shuffled(document, random.Random(seed))
    assert read_workflow(turned) == workflow
    assert partition(read_workflow(turned)) == partition(workflow)
    assert read_workflow(json.loads(json.dumps(turned))).hash == workflow.hash
    canonical = workflow.to_document()
    assert read_workflow(canonical).to_document() == canonical
    assert read_workflow(shuffled(canonical, random.Random(seed))).hash == workflow.hash


@given(documents)
@settings(max_examples=EXAMPLES)
def test_a_plan_is_what_its_configurations_say(document: dict[str, Any]) -> None:
    for plan in every_plan(partition(read_workflow(document))):
        assert plan_of(json.loads(json.dumps(plan.segment_manifest())), plan.iteration_limit) == plan


ITEMS = [1, 2]
NUMBERS = itertools.count(1)
runs = st.integers(0, 2**32).map(lambda seed: _Maker(random.Random(seed), plain=["python"], waits=False).document())


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with analemma.open("sqlite:///:memory:") as app:
        yield app


@given(runs, st.integers(0, 3))
@settings(max_examples=count(test=15, deep=200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_does_what_the_document_says_whichever_way_it_goes(app: App, document: dict[str, Any], way: int) -> None:
    apart: list[str] = []

    def handler(name: str, notes: bool) -> Any:
        def step(state: Any, ctx: Any) -> Any:
            if notes:
                return {"did": [*state["did"], name]}
            apart.append(name)
            return None

        return step

    for node in document["nodes"]:
        if node["type"] == "python":
            app.flows.handlers.add(node["function"], handler(node["id"], "writes" in node))
    place: dict[str, Any] = {"workflow_id": f"run {next(NUMBERS)}", "owner_id": "ann"}
    done = app.flows.run(read_workflow(document), {"did": [], "x": way, "xs": ITEMS}, **place)
    assert (done.status, done.error) == ("COMPLETED", None)
    nodes = {node["id"]: node for node in document["nodes"]}
    ran = {name: _ran(nodes, name, way) for name in _top(document)}
    noted = {name: [each for each in made if "writes" in nodes[each]] for name, made in ran.items()}
    assert Counter([*done.state["did"], *apart]) == Counter([each for made in ran.values() for each in made])
    if "edges" not in document:
        assert done.state["did"] == [each for made in noted.values() for each in made]
    for edge in document.get("edges", []):
        before, after = [
            [at for at, name in enumerate(done.state["did"]) if name in noted[edge[side]]] for side in ("from", "to")
        ]
        assert not before or not after or max(before) < min(after), edge


def _ran(nodes: dict[str, dict[str, Any]], name: str, way: int) -> list[str]:
    """The functions that run for a node, straight from the document."""
    node = nodes[name]
    if node["type"] == "python":
        return [name]
    sequences = [[each for inner in ids for each in _ran(nodes, inner, way)] for ids in _sequences(node)]
    match node["type"]:
        case "loop":
            return sequences[0] * LOOP_TURNS
        case "for_each":
            return sequences[0] * len(ITEMS)
        case "branch":
            return sequences[min(way, len(sequences) - 1)]
    return [each for sequence in sequences for each in sequence]
