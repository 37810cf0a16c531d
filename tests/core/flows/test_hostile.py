"""Documents that were made to do harm are refused quickly, with a reason."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from analemma import WorkflowProblems, load_workflow
from tests.core.entry_points.flows import check_text, read_workflow
from tests.core.flows.workflows import loop, plan_of_nodes, problems, python

MAXIMUM_BYTES = 1024 * 1024
MAXIMUM_VALUES = 25_000
STEP = "{id: a, type: python, function: test.f}"
LONG_ENOUGH_S = 20
"""A bomb takes hours; a machine that is busy with other tests takes seconds."""


REFUSED = [
    ("a: &a [x]\nb: [*a, *a]\n", "workflows may not have the alias *a"),
    ("a: &a {k: v}\nb:\n  <<: *a\n", "a merge key"),
    ("workflow: !!python/object/apply:os.system [ls]\n", "workflows may not have the tag"),
    ("workflow: !!binary aGk=\n", "workflows may not have the tag"),
    ("workflow: a\nworkflow: b\n", "stands here twice"),
    ("1: 2\n", "is not text"),
    ("? [a]\n: b\n", "a key that is a list or an object"),
    ("workflow: .nan\n", "the number .nan"),
    ("workflow: " + "9" * 5000 + "\n", "a number of 5000 characters"),
    ("workflow: 'open\n", "not YAML"),
    ("workflow: a\n---\nworkflow: b\n", "a second document"),
    ("", "is empty"),
    ("# nothing\n", "is empty"),
    ("[" * 100_000, "nesting deeper than 32"),
    ("{" * 100_000, "not JSON"),
    ('{"a":' * 100_000, "depth limit"),
    ('{"workflow": "a", "workflow": "b"}', "the same key twice"),
    ('{"workflow": NaN}', ""),
    ('{"a": "\\ud800"}', ""),
    ("\x00", "not YAML"),
    ("workflow: a\nnodes: {}\n", "nodes is an object, not a list"),
    ("workflow: a\nnodes: [1, null]\n", "is 1, not an object"),
]


def test_what_is_no_workflow_is_refused_with_a_reason() -> None:
    wrong = []
    for text, reason in REFUSED:
        started = time.monotonic()
        found = problems(text)
        if time.monotonic() - started > LONG_ENOUGH_S or not any(reason in each for each in found):
            wrong.append((text[:40], found))
    assert wrong == []


def test_a_bomb_of_aliases_is_refused_before_it_is_built() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 40)]
    assert "the alias *a0" in problems("\n".join(lines))[0]


def test_more_values_than_a_workflow_needs_are_refused() -> None:
    found = problems("workflow: a\nnodes: [" + "1, " * (MAXIMUM_VALUES + 1) + "1]\n")
    assert found == [f"2: workflows may not have more than {MAXIMUM_VALUES} values (split the file)"]


def refused(file: Path) -> list[tuple[int | None, str]]:
    """What is wrong with a file: lines and reasons."""
    with pytest.raises(WorkflowProblems) as caught:
        load_workflow(file)
    return [(each.line, each.reason) for each in caught.value.problems]


def refused_data(data: Any) -> list[str]:
    with pytest.raises(WorkflowProblems) as caught:
        read_workflow(data)
    return [each.reason for each in caught.value.problems]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b"# " + b"x" * MAXIMUM_BYTES)
    assert refused(file) == [(None, "is larger than 1024 KiB")]
    assert check_text("x" * (MAXIMUM_BYTES + 1)).workflow is None


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    for name in ("missing.yaml", "", "a\x00b"):
        ((line, reason),) = refused(tmp_path / name)
        assert line is None and "cannot be read" in reason, name


def test_bytes_that_are_no_text_are_a_problem_with_a_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"workflow: a\ndescription: caf\xe9\n")
    assert refused(file) == [(2, "is not UTF-8")]


def test_data_is_no_deeper_in_json_than_in_yaml() -> None:
    deep: object = 1
    for _ in range(40):
        deep = [deep]
    made = {"workflow": "a", "nodes": [python("a") | {"stub": deep}]}
    assert "nesting deeper than 32" in problems(json.dumps(made))[0]
    assert "nesting deeper than 32" in refused_data(made)[0]


def test_data_that_holds_itself_is_refused() -> None:
    made: dict[str, object] = {"workflow": "a"}
    made["nodes"] = made
    assert refused_data(made)


def test_a_document_of_nothing_but_problems_ends_somewhere() -> None:
    nodes = [python(f"n{number}", ring=9, retries=-1, writes=["manifest_id"]) for number in range(500)]
    found = refused_data({"workflow": "a", "nodes": nodes})
    assert len(found) == 201 and found[-1].startswith("there are ")


def test_a_large_graph_is_checked_in_time() -> None:
    nodes = [python(f"n{number}", reads=[f"f{number}"], writes=[f"f{number + 1}"]) for number in range(500)]
    edges = [
        {"from": f"n{one}", "to": f"n{other}"} for one in range(500) for other in range(one + 1, min(one + 20, 500))
    ]
    started = time.monotonic()
    assert len(read_workflow({"workflow": "a", "nodes": nodes, "edges": edges}).nodes) == 500
    assert time.monotonic() - started < LONG_ENOUGH_S


def test_loops_that_say_large_numbers_have_a_limit_all_the_same() -> None:
    groups = [loop(f"l{n}", f"l{n + 1}", times=1_000_000) for n in range(50)]
    assert plan_of_nodes(*groups, python("l50")).iteration_limit == 2**53


def test_plain_yaml_needs_no_more() -> None:
    assert problems(f"workflow: a\nnodes: [{STEP}]\n") == []
