"""Where a run goes, what branches and loops ask of the state, and when it is complete."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analemma import App, Flow, Run
from analemma.errors import Conflict, Invalid
from tests.api.flows.runs import place
from tests.core.flows.workflows import Node, branch, document, human, loop, python


def run(
    app: App, *nodes: Node, edges: list[tuple[str, str]] | None = None, start: str | None = None, **more: Any
) -> Run:
    """Run nodes whose functions do nothing, and decide whatever they ask."""
    for node in nodes:
        if node["type"] == "python":
            app.handlers.add(node["function"], lambda state, ctx: None)
    given = more.pop("given", {})
    trigger = None if start is None else {"node": start}
    made = app.flows.run(document(*nodes, edges=edges, **more), given, trigger=trigger, **place())
    while made.status == "WAITING_HUMAN":
        made = app.flows.approve(made.execution_id, "yes", "me")
    return made


def ran(app: App, *nodes: Node, **more: Any) -> list[str]:
    """The segments that ran, one after the other."""
    made = run(app, *nodes, **more)
    assert made.status == "COMPLETED", made.error
    return [each.segment_id for each in made.segments]


def test_a_run_of_human_steps_is_complete_after_the_last_and_not_before(memory: App) -> None:
    for count in (1, 2, 5):
        names = [f"h{number}" for number in range(count)]
        made = memory.flows.run(document(*map(human, names)), **place())
        for name in names:
            assert (made.status, made.segment_id) == ("WAITING_HUMAN", name)
            made = memory.flows.approve(made.execution_id, "yes", "me")
        assert (made.status, made.segment_id) == ("COMPLETED", None)
        assert [each.segment_id for each in made.segments] == names


def test_only_the_arm_that_was_taken_runs(memory: App) -> None:
    nodes = [branch("b", ["x", "y"], ["w"], default=[]), python("x"), human("y"), python("w"), python("z")]
    for way, expected in (
        (0, ["b", "x", "y", "z.join", "z"]),
        (1, ["b", "w", "z.join", "z"]),
        (2, ["b", "z.join", "z"]),
    ):
        assert ran(memory, *nodes, given={"way": way}) == expected


def test_a_branch_at_the_end_completes_either_way(memory: App) -> None:
    nodes = [branch("b", ["x"], default=[]), python("x")]
    assert [ran(memory, *nodes, given={"way": way}) for way in (0, 1)] == [["b", "x"], ["b"]]


def test_what_follows_only_what_was_skipped_is_skipped(memory: App) -> None:
    nodes = [branch("b", ["i"], default=[]), branch("i", ["x"], default=["y"]), python("x"), python("y"), python("z")]
    assert ran(memory, *nodes, given={"way": 9}) == ["b", "z.join", "z"]


def test_of_nodes_that_could_come_next_the_first_of_the_document_does(memory: App) -> None:
    edges = [("a", "d"), ("a", "b"), ("b", "c")]
    assert ran(memory, *map(human, "abcd"), edges=edges) == ["a", "b", "c", "d"]


def test_loops_go_back_until_they_are_left(memory: App) -> None:
    nodes = [python("a"), loop("l", "x", "h"), python("x"), human("h"), python("z")]
    assert ran(memory, *nodes) == ["a", "l", "x", "h", "l", "x", "h", "l", "z"]
    never = {"while": {"path": "missing", "is": "exists"}, "times": None}
    nodes = [{key: each for key, each in (loop("l", "x") | never).items() if each}, python("x"), python("z")]
    assert ran(memory, *nodes) == ["l", "z"]


def test_a_loop_inside_another_begins_anew_each_time(memory: App) -> None:
    nodes = [loop("o", "i"), loop("i", "x"), python("x")]
    assert ran(memory, *nodes) == ["o", "i", "x", "i", "x", "i", "o", "i", "x", "i", "x", "i", "o"]


def test_a_branch_in_a_body_does_not_remember_the_way_it_took_before(memory: App) -> None:
    turn = {"id": "turn", "type": "python", "function": "turn", "reads": ["way"], "writes": ["way"]}
    nodes = [loop("l", "b", "turn"), branch("b", ["x"], default=["y"]), python("x"), python("y")]
    for name in ("test.x", "test.y"):
        memory.handlers.add(name, lambda state, ctx: None)
    memory.handlers.add("turn", lambda state, ctx: {"way": state["way"] + 1})
    made = memory.flows.run(document(*nodes, turn), {"way": 0}, **place())
    assert [each.segment_id for each in made.segments] == [
        *("l", "b", "x", "turn.join", "turn"),
        *("l", "b", "y", "turn.join", "turn", "l"),
    ]


def test_a_run_that_does_not_end_meets_its_limit(memory: App) -> None:
    made = run(memory, loop("l", "x", times=50), python("x"), limits={"max_iterations": 20})
    assert made.error is not None and (made.status, made.error.kind) == ("FAILED", "limit")
    assert "20 segments ran" in made.error.message


def test_the_limit_may_be_used_up_exactly(memory: App) -> None:
    nodes = [python("a", checkpoint=True), python("b")]
    assert ran(memory, *nodes, limits={"max_iterations": 2}) == ["a", "b"]
    short = run(memory, *nodes, limits={"max_iterations": 1})
    assert short.error is not None and short.error.kind == "limit"


def test_a_run_begins_with_the_trigger_that_set_it_off(memory: App) -> None:
    nodes = [*({"id": name, "type": "trigger"} for name in ("t", "u")), python("a"), python("b")]
    edges = [("t", "a"), ("u", "a"), ("u", "b")]
    assert ran(memory, *nodes, edges=edges) == ["t", "a.join", "a"]
    assert ran(memory, *nodes, edges=edges, start="u") == ["u", "a.join", "a", "b"]
    with pytest.raises(Invalid, match="runs begin at t, u"):
        run(memory, *nodes, edges=edges, start="a")


def test_segments_that_are_injected_run_before_what_they_stand_before(memory: App) -> None:
    flow, where = Flow("grows", checkpoints="node"), place()
    flow.human("a", choices=["yes"])

    def b(state: Any, ctx: Any) -> None: ...
    def d(state: Any, ctx: Any) -> None: ...
    def e(state: Any, ctx: Any) -> None: ...

    flow.step(b)
    flow.loop("c", [d], times=2)
    flow.step(e)
    made = memory.flows.run(flow, **where)
    manifest, numbers = made.manifest_id, dict(flow.plan().numbers)
    names = {"more": "b", "often": "d", "once": "c", "late": None}
    for added, (name, before) in enumerate(names.items()):
        memory.handlers.add(f"test.{name}", lambda state, ctx: None)
        order = list(numbers)
        at = len(order) if before is None else order.index(before)
        manifest = memory.kernel.inject_dynamic_segment(manifest, python(name), at).manifest_id
        order.insert(at, name)
        numbers = {each: number for number, each in enumerate(order)}
        assert len(memory.kernel.load_segment_manifest(manifest)) == len(flow.plan().segments) + added + 1
    with pytest.raises(Conflict):
        memory.kernel.inject_dynamic_segment(manifest, python("other"), 1, expected_hash_version=1)
    made = memory.flows.approve(made.execution_id, "yes", "me")
    assert made.status == "COMPLETED", made.error
    assert [each.segment_id for each in made.segments] == [
        *("a", "more", "b", "once", "c"),
        *("often", "d", "c", "often", "d", "c"),
        *("e", "late"),
    ]


STATE: dict[str, Any] = {
    "n": 3,
    "zero": 0,
    "label": "bug",
    "flag": True,
    "none": None,
    "list": [1, {"a": 2.0}],
    "object": {"key": {"inner": "x"}},
}

where = Flow.where
CONDITIONS: list[tuple[Any, bool]] = [
    (where("label").equals("bug"), True),
    (where("label").equals("Bug"), False),
    (where("n").equals(3.0), True),
    (where("flag").equals(1), False),
    (where("zero").equals(False), False),
    (where("none").equals(None), True),
    (where("missing").equals(None), False),
    (where("missing").not_equals(None), True),
    (where("list").equals([1, {"a": 2}]), True),
    (where("list").equals([True, {"a": 2}]), False),
    (where("/object/key/inner").equals("x"), True),
    (where("/list/1/a").equals(2), True),
    (where("/list/2").exists(), False),
    (where("/label/0").exists(), False),
    (where("n").less_than(4), True),
    (where("n").less_than(3), False),
    (where("n").at_most(3), True),
    (where("n").more_than(2.5), True),
    (where("n").at_least(4), False),
    (where("label").more_than("a"), True),
    (where("label").less_than(5), False),
    (where("flag").at_least(1), False),
    (where("missing").less_than(1), False),
    (where("label").one_of("bug", "crash"), True),
    (where("flag").one_of(1, "true"), False),
    (where("list").contains(1), True),
    (where("list").contains(True), False),
    (where("object").contains("key"), True),
    (where("label").contains("u"), True),
    (where("label").contains(1), False),
    (where("n").contains(3), False),
    (where("none").exists(), True),
    (where("missing").missing(), True),
    ({"function": "test.yes"}, True),
    ({"not": {"function": "test.yes"}}, False),
    ({"all": [where("n").exists(), where("label").exists()]}, True),
    ({"all": [where("n").exists(), where("label").missing()]}, False),
    ({"any": [where("n").missing(), where("label").exists()]}, True),
]


def test_conditions_hold_or_do_not(memory: App) -> None:
    memory.handlers.add("test.yes", lambda state, ctx: True)
    memory.handlers.add("test.hold", lambda state, ctx: {ctx.node_id: True})
    nodes: list[Node] = []
    for number, (condition, _) in enumerate(CONDITIONS):
        name = f"c{number}"
        nodes.append(
            {"id": f"b{number}", "type": "branch", "cases": [{"when": condition, "then": [name]}], "default": []}
        )
        nodes.append({"id": name, "type": "python", "function": "test.hold", "writes": [name]})
    made = memory.flows.run(document(*nodes), STATE, **place())
    assert made.status == "COMPLETED", made.error
    wrong = [condition for number, (condition, holds) in enumerate(CONDITIONS) if (f"c{number}" in made.state) != holds]
    assert wrong == []


TEXTS = [
    ("Dear {{name}}", "Dear Ada"),
    ("{{ name }}{{/ticket/id}}", "Ada7"),
    ("{{/ticket/tags}}", '["a","b"]'),
    ("{{/ticket/tags/1}}", "b"),
    ("{{/odd~1name}}", "true"),
    ("{{text}}", "{{name}}"),
    (r"\{{name}}", "{{name}}"),
    ("{name} {} }}", "{name} {} }}"),
    (json.dumps({"a": {"b": 1}}), json.dumps({"a": {"b": 1}})),
]


def test_texts_are_filled_from_the_state_once(memory: App) -> None:
    given = {"name": "Ada", "ticket": {"id": 7, "tags": ["a", "b"]}, "odd/name": True, "text": "{{name}}"}

    def prompt(text: str) -> str | None:
        made = memory.flows.run(document(human("h", prompt=text)), given, **place())
        return None if made.waiting is None else made.waiting.prompt

    assert [(text, prompt(text)) for text, filled in TEXTS if prompt(text) != filled] == []
    made = memory.flows.run(document(human("h", prompt="{{/ticket/title}}")), given, **place())
    assert made.error is not None and "nothing at /ticket/title" in made.error.message
