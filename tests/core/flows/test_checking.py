"""Everything wrong with a workflow is told at once, with its node and its line."""

from __future__ import annotations

import json

import pytest

from tests.core.flows.workflows import problems, warnings

MAXIMUM_NODES = 500
MAXIMUM_GROUP_DEPTH = 50

HEAD = "workflow: test\nnodes:\n"
STEP = "type: python, function: test.f"

WRONG = {
    "unknown type": ("  - {id: a, type: pythn}", ["3: node a: unknown type 'pythn'"]),
    "missing type": ("  - {id: a}", ["3: node a: the key type is missing"]),
    "unknown key": (
        f"  - id: a\n    {STEP.replace(', ', chr(10) + '    ')}\n    retires: 3",
        ["6: node a: unknown key retires in python (did you mean retries?)"],
    ),
    "key of another name": (
        "  - {id: a, type: llm_chat, model: m, messages: [{role: user, content: x}], prompt: hello}",
        ["3: node a: unknown key prompt in llm_chat (messages: [{role: user, content: ...}])"],
    ),
    "missing key": ("  - {id: a, type: python}", ["3: node a: the key function is missing in python"]),
    "wrong type": (f"  - {{id: a, {STEP}, timeout_s: soon}}", ["3: node a: timeout_s is 'soon', not a number"]),
    "no node id": (f"  - {{id: a.b, {STEP}}}", ["3: node a.b: id does not have the form"]),
    "numbers are no ids": (f"  - {{id: 3, {STEP}}}", ["3: node number 1: id is 3, not text (put it in quotes)"]),
    "duplicate id": (
        f"  - {{id: a, {STEP}}}\n  - {{id: a, {STEP}}}",
        ["4: node a: the id a is also that of the node on line 3"],
    ),
    "several at once": (
        f"  - {{id: a, {STEP}, ring: 9}}\n  - {{id: b, {STEP}, retries: -1}}\n  - {{id: c, {STEP}, timeout_s: 0}}",
        [
            "3: node a: ring is more than 3: 9",
            "4: node b: times is less than 0: -1",
            "5: node c: timeout_s is not more than 0",
        ],
    ),
    "unknown member": (
        f"  - {{id: l, type: loop, times: 1, body: [setp]}}\n  - {{id: step, {STEP}}}",
        ["3: node l: there is no node setp (did you mean step?)"],
    ),
    "a member of two groups": (
        "  - {id: l, type: loop, times: 1, body: [a]}\n  - {id: m, type: loop, times: 1, body: [a]}\n"
        f"  - {{id: a, {STEP}}}",
        ["4: node m: a stands already in l (a node has one place)"],
    ),
    "a group in itself": (
        "  - {id: l, type: loop, times: 1, body: [l]}",
        ["3: node l: stands inside itself"],
    ),
    "groups in each other": (
        "  - {id: l, type: loop, times: 1, body: [m]}\n  - {id: m, type: loop, times: 1, body: [l]}",
        ["3: node l: stands inside itself", "4: node m: stands inside itself"],
    ),
    "an empty body": ("  - {id: l, type: loop, times: 1, body: []}", ["3: node l: body is empty"]),
    "a branch without default": (
        "  - {id: b, type: branch, cases: [{when: {path: x, is: exists}, then: []}]}",
        ["3: node b: the key default is missing in branch"],
    ),
    "a branch without cases": ("  - {id: b, type: branch, cases: [], default: []}", ["3: node b: cases is empty"]),
    "a condition of nothing": (
        "  - {id: b, type: branch, cases: [{when: {}, then: []}], default: []}",
        ["3: node b: when: a condition is one of path, all, any, not, function"],
    ),
    "an unknown comparison": (
        "  - {id: b, type: branch, cases: [{when: {path: x, is: like}, then: []}], default: []}",
        ["3: node b: is is 'like'"],
    ),
    "an order of what has none": (
        "  - {id: b, type: branch, cases: [{when: {path: x, is: less_than, value: [1]}, then: []}], default: []}",
        ["3: node b: when: the value of less_than is a number or a text"],
    ),
    "a loop without end": (
        f"  - {{id: l, type: loop, body: [a]}}\n  - {{id: a, {STEP}}}",
        ["3: node l: a loop has one of while, until and times, not none of them"],
    ),
    "a loop with two ends": (
        f"  - {{id: l, type: loop, body: [a], times: 1, until: {{path: x, is: exists}}}}\n  - {{id: a, {STEP}}}",
        ["3: node l: a loop has one of while, until and times, not until and times"],
    ),
    "an empty branch of a group": (
        "  - {id: g, type: parallel_group, branches: {one: []}}",
        ["3: node g: the branch one is empty"],
    ),
    "a human in a group": (
        "  - {id: g, type: parallel_group, branches: {one: [l]}}\n  - {id: l, type: loop, times: 1, body: [h]}\n"
        "  - {id: h, type: human, choices: [ok]}",
        ["5: node h: a human step inside g"],
    ),
    "a privileged member": (
        f"  - {{id: e, type: for_each, over: xs, body: [a], ring: 2}}\n  - {{id: a, {STEP}, ring: 1}}",
        ["4: node a: ring 1 inside e, which is of ring 2"],
    ),
    "a trigger in a group": (
        "  - {id: l, type: loop, times: 1, body: [t]}\n  - {id: t, type: trigger}",
        ["4: node t: a trigger inside l"],
    ),
    "a trigger behind": (
        f"  - {{id: a, {STEP}}}\n  - {{id: t, type: trigger}}",
        ["4: node t: a trigger behind a (a run begins with it)"],
    ),
    "a trigger without schedule": (
        "  - {id: t, type: trigger, on: schedule}",
        ["3: node t: on schedule needs cron or every_s"],
    ),
    "a trigger with too much": (
        "  - {id: t, type: trigger, cron: '* * * * *'}",
        ["3: node t: on manual needs neither cron, every_s nor event"],
    ),
    "no schedule": (
        "  - {id: t, type: trigger, on: schedule, cron: 'at noon'}",
        ["3: node t: 'at noon' is no schedule (minute hour day month weekday)"],
    ),
    "an unknown choice": (
        "  - {id: h, type: human, choices: [a, b], timeout_s: 1, default: c}",
        ["3: node h: 'c' is not among the choices (a, b)"],
    ),
    "a default that is never used": (
        "  - {id: h, type: human, choices: [a, b], default: a}",
        ["3: node h: a default that is never used (give timeout_s)"],
    ),
    "a choice twice": ("  - {id: h, type: human, choices: [a, a]}", ["3: node h: a stands twice in choices"]),
    "a human that waits for years": (
        "  - {id: h, type: human, choices: [a], timeout_s: 1e9}",
        ["3: node h: timeout_s is more than 31622400.0: 1000000000.0"],
    ),
    "a human that is tried again": (
        "  - {id: h, type: human, choices: [a], retries: 1}",
        ["3: node h: a human step is not tried again"],
    ),
    "an aggregator of no group": (
        f"  - {{id: a, {STEP}}}\n  - {{id: m, type: aggregator, of: a}}",
        ["4: node m: a is no parallel_group"],
    ),
    "an aggregator elsewhere": (
        f"  - {{id: g, type: parallel_group, branches: {{x: [a]}}}}\n  - {{id: a, {STEP}}}\n  - {{id: b, {STEP}}}\n"
        "  - {id: m, type: aggregator, of: g}",
        ["6: node m: does not stand directly behind g"],
    ),
    "a workflow in itself": ("  - {id: s, type: subflow, workflow: test}", ["3: node s: test would run itself"]),
    "reserved writes": (
        f"  - id: a\n    {STEP.replace(', ', chr(10) + '    ')}\n    writes:\n"
        "      - manifest_id\n      - /_kernel_run/x\n      - __pointer__\n      - workflow_config",
        [
            f"{line}: node a: writes {name}, which is the system's own"
            for line, name in ((7, "manifest_id"), (8, "/_kernel_run/x"), (9, "__pointer__"), (10, "workflow_config"))
        ],
    ),
    "reserved answers": (
        "  - {id: execution_id, type: human, choices: [a]}\n"
        "  - {id: h, type: human, choices: [a], into: total_segments}",
        ["3: node execution_id: writes execution_id", "4: node h: writes total_segments"],
    ),
    "a reserved item": (
        f"  - {{id: e, type: for_each, over: xs, body: [a], item: _kernel_item}}\n  - {{id: a, {STEP}}}",
        ["3: node e: writes _kernel_item, which is the system's own"],
    ),
    "what a ring does not see": (
        f"  - {{id: a, {STEP}, reads: [credentials, internal_state, partition_map]}}",
        [
            "3: node a: reads credentials, which ring 3 does not see (ring 1 does)",
            "3: node a: reads internal_state, which ring 3 does not see (ring 0 does)",
            "3: node a: reads partition_map, which no node sees",
        ],
    ),
    "what a ring may not write": (
        f"  - {{id: a, {STEP}, ring: 2, writes: [credentials]}}",
        ["3: node a: writes credentials, which ring 2 may not"],
    ),
    "a ring's limit in a text": (
        "  - {id: a, type: llm_chat, model: m, messages: [{role: user, content: '{{credentials}}'}]}",
        ["3: node a: reads credentials, which ring 3 does not see"],
    ),
    "an unknown capability": (
        f"  - {{id: a, {STEP}, capabilities: [root]}}",
        ["3: node a: an item of capabilities is 'root'"],
    ),
    "no path": (f"  - {{id: a, {STEP}, reads: ['']}}", ["3: node a: an item of reads: '' names no field"]),
    "a function by its path": (
        "  - {id: a, type: python, function: /tmp/f.py}",
        ["3: node a: function does not have the form"],
    ),
    "a local address": (
        "  - {id: a, type: http_request, url: 'file:///etc/passwd'}",
        ["3: node a: 'file:///etc/passwd' is no HTTP"],
    ),
    "a secret": (
        "  - {id: a, type: http_request, url: 'https://x', headers: {Authorization: Bearer abc}}",
        ["3: node a: headers: Authorization is a secret written out (write ${NAME}"],
    ),
    "an api key": (
        "  - {id: a, type: llm_chat, model: m, api_key: sk-abcdefghijklmnopqrst, messages: [{role: user, content: x}]}",
        ["3: node a: api_key: api_key looks like a secret"],
    ),
    "a secret in data": (
        "  - {id: a, type: http_request, url: 'https://x', method: POST, body: {login: {password: hunter2}}}",
        ["3: node a: body: password is a secret written out"],
    ),
    "a header over two lines": (
        '  - {id: a, type: http_request, url: "https://x", headers: {X-A: "b\\r\\nX-B: c"}}',
        ["3: node a: the header X-A has a control character"],
    ),
    "a body that is not sent": (
        "  - {id: a, type: http_request, url: 'https://x', body: 1}",
        ["3: node a: a GET has no body"],
    ),
    "a placeholder of nothing": (
        "  - {id: a, type: http_request, url: 'https://x/{{}}'}",
        ["3: node a: url: a placeholder names no path"],
    ),
    "a variable that is none": (
        "  - {id: a, type: http_request, url: 'https://${host}/'}",
        ["3: node a: url: ${host} is no reference to the environment"],
    ),
    "code and its path": (
        "  - {id: a, type: code_interpreter, code: x, code_path: y}",
        ["3: node a: needs either code or code_path"],
    ),
    "no payload": (
        "  - {id: a, type: ingest, entity_type: T, entity_id: x}",
        ["3: node a: needs either payload or delete: true"],
    ),
    "an integer beyond 64 bits": (
        "  - {id: a, type: http_request, url: 'https://x', stub: 99999999999999999999}",
        ["3: node a: stub: an integer beyond 64 bits"],
    ),
}


def test_what_is_wrong_is_told_with_node_and_line() -> None:
    told = {name: problems(HEAD + nodes + "\n") for name, (nodes, _) in WRONG.items()}
    wrong = {
        name: told[name]
        for name, (_, expected) in WRONG.items()
        if len(told[name]) != len(expected) or not all(map(str.startswith, told[name], expected))
    }
    assert wrong == {}


GRAPH = HEAD + "".join(f"  - {{id: {name}, {STEP}}}\n" for name in "abcd") + "edges:\n"


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        (["a b", "b c", "c b", "c d"], ["4: node b: a cycle: b -> c -> b (repeat with a loop)"]),
        (["a b", "b c", "c d", "d a"], ["3: node a: a cycle: a -> b -> c -> d -> a"]),
        (["a b", "b c"], ["6: node d: no way leads here (runs begin at a)"]),
        (["a b", "c d"], ["5: node c: no way leads here", "6: node d: no way leads here"]),
        (["a b", "b c", "c d", "d e"], ["11: an edge to e, which is no node"]),
        (["a b", "x c", "c d"], ["9: an edge from x, which is no node"]),
        (["a b", "b b", "b c", "c d"], ["9: an edge from b to itself"]),
    ],
    ids=["cycle", "whole cycle", "unreachable", "island", "to nowhere", "from nowhere", "to itself"],
)
def test_what_is_wrong_with_edges_is_told_with_node_and_line(edges: list[str], expected: list[str]) -> None:
    pairs = [each.split() for each in edges]
    found = problems(GRAPH + "".join(f"  - {{from: {one}, to: {other}}}\n" for one, other in pairs))
    assert len(found) == len(expected), found
    for one, begin in zip(found, expected, strict=True):
        assert one.startswith(begin)


def test_edges_are_for_the_top_level() -> None:
    text = f"{HEAD}  - {{id: l, type: loop, times: 1, body: [a]}}\n  - {{id: a, {STEP}}}\nedges: [{{from: l, to: a}}]\n"
    assert problems(text)[0].startswith("5: an edge with a, which stands in l (edges are for the top level")


def test_a_trigger_has_nothing_before_it() -> None:
    text = f"{HEAD}  - {{id: t, type: trigger}}\n  - {{id: u, type: trigger}}\nedges: [{{from: t, to: u}}]\n"
    assert problems(text) == ["4: node u: a trigger behind t (a run begins with it)"]


def test_the_501st_node_is_named() -> None:
    nodes = [f"  - {{id: n{number}, {STEP}}}\n" for number in range(MAXIMUM_NODES + 1)]
    assert problems(HEAD + "".join(nodes[:-1])) == []
    line = 3 + MAXIMUM_NODES
    assert problems(HEAD + "".join(nodes)) == [
        f"{line}: node n{MAXIMUM_NODES}: is one of 501 nodes (the limit is 500: use a subflow)"
    ]


def test_the_node_that_stands_too_deep_is_named() -> None:
    def nested(depth: int) -> str:
        groups = [f"  - {{id: l{n}, type: loop, times: 1, body: [l{n + 1}]}}\n" for n in range(depth)]
        return HEAD + "".join(groups) + f"  - {{id: l{depth}, {STEP}}}\n"

    assert problems(nested(MAXIMUM_GROUP_DEPTH)) == []
    line = 3 + MAXIMUM_GROUP_DEPTH + 1
    assert problems(nested(MAXIMUM_GROUP_DEPTH + 1)) == [f"{line}: node l51: stands 51 groups deep (the limit is 50)"]


STATE = "state: {fields: {ticket: {type: string}}}\n"


def test_what_nobody_writes_is_a_warning_where_the_state_is_declared() -> None:
    nodes = f"  - {{id: a, {STEP}, reads: [ticket, tikcet], writes: [b]}}\n  - {{id: c, {STEP}, reads: [b, /d/e]}}\n"
    assert warnings(HEAD + nodes) == []
    assert [each.partition(" (")[0] for each in warnings(HEAD + nodes + STATE)] == [
        "3: node a: reads tikcet, which nobody writes",
        "4: node c: reads /d/e, which nobody writes",
    ]


def test_items_and_what_a_node_sees_anyway_are_no_surprise() -> None:
    nodes = (
        f"  - {{id: e, type: for_each, over: ticket, body: [a]}}\n  - {{id: a, {STEP}, reads: [item, index]}}\n"
        f"  - {{id: b, {STEP}, reads: [tools], capabilities: [tool_use]}}\n"
    )
    assert warnings(HEAD + nodes + STATE) == []


def test_a_closed_state_has_no_other_fields() -> None:
    text = f"{HEAD}  - {{id: a, {STEP}, writes: [ticket, other]}}\n" + STATE.replace("}}}", "}}, additional: reject}")
    assert problems(text) == ["3: node a: writes other, which the state does not have (declare it in the state)"]


def test_a_state_declares_no_field_of_the_system() -> None:
    text = f"{HEAD}  - {{id: a, {STEP}}}\nstate:\n  fields:\n    config_hash: {{type: string}}\n"
    assert problems(text) == ["6: the field config_hash is the system's own"]


def test_branches_that_write_the_same_are_a_warning_unless_a_strategy_says_what_then() -> None:
    nodes = (
        "  - {id: g, type: parallel_group, branches: {x: [a], y: [b]}}\n"
        f"  - {{id: a, {STEP}, writes: [/n/m, p]}}\n  - {{id: b, {STEP}, writes: [n, q]}}\n"
    )
    assert [each.partition(" (")[0] for each in warnings(HEAD + nodes)] == ["3: node g: x and y both write /n/m"]
    assert warnings(HEAD + nodes + "merge: {strategy: deep_merge}\n") == []
    assert warnings(HEAD + nodes + "  - {id: m, type: aggregator, of: g, strategy: collect}\n") == []


def test_a_timeout_without_a_default_is_a_warning() -> None:
    found = warnings(HEAD + "  - {id: h, type: human, choices: [a], timeout_s: 5}\n")
    assert found == ["3: node h: without a default, the run fails when nobody decides in time"]


def test_no_key_of_another_type_is_meant() -> None:
    """`cases` are those of a branch."""
    (found,) = problems(f"{HEAD}  - {{id: a, {STEP}, case: 3}}")
    assert str(found).endswith("unknown key case in python")


def headers(name: str, text: str) -> list[str]:
    """What is wrong with a header, or with a key of that name in data."""
    value = json.dumps(text)
    node = f"{{id: a, type: http_request, method: POST, url: 'https://x', body: {{{json.dumps(name)}: {value}}}}}"
    return problems(f"{HEAD}  - {node}\n")


def test_what_looks_like_a_secret_may_not_stand_in_a_document() -> None:
    fine = [
        ("Authorization", "Bearer ${TOKEN}"),
        ("authorization", "${TOKEN}"),
        ("X-Api-Key", "${KEY}"),
        ("password", "{{password}}"),
        ("password", ""),
        ("max_tokens", "many"),
        ("tokenizer", "cl100k"),
        ("content", "the password is secret"),
    ]
    secret = [
        ("Authorization", "Bearer abcdef"),
        ("authorization", "${TOKEN} and more and more"),
        ("X-API-Key", "1234"),
        ("api_key", "k"),
        ("password", "hunter2"),
        ("password", "hunter2 "),
        ("access_token", "abc"),
        ("Cookie", "session=1"),
        ("content", "use sk-abcdefghijklmnopqrstuv please"),
        ("code", "AKIAABCDEFGHIJKLMNOP"),
        ("code", "-----BEGIN RSA PRIVATE KEY-----"),
    ]
    assert [each for each in fine if headers(*each)] == []
    assert [each for each in secret if not any("secret" in said for said in headers(*each))] == []


def test_placeholders_variables_and_paths_that_name_nothing_are_refused() -> None:
    texts = ["{{}}", "{{ }}", "{{a", "{{/}}", "{{a{b}}}", "${}", "${lower}", "${A-B}", "${A"]
    assert [text for text in texts if not headers("x", text)] == []
    paths = ["", "/", "//a", "\x00", "a\nb", "x" * 257, "/~2"]
    reading = {path: problems(f"{HEAD}  - {{id: a, {STEP}, reads: [{json.dumps(path)}]}}\n") for path in paths}
    assert [path for path, said in reading.items() if not said] == []
