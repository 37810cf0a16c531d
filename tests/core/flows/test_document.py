"""A workflow has one canonical form, whatever way it is written, and that goes through the model unchanged."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from analemma import WorkflowProblems, load_workflow
from tests.core.entry_points.flows import check_text, partition, plan_of, read_workflow
from tests.core.flows.workflows import TRIAGE, branch, document, human, loop, python, workflow
from tests.formats.golden_workflows import FILES
from tests.stores import Store

EVERY_FILE = [*FILES, TRIAGE]


def test_a_canonical_document_goes_through_the_model_unchanged() -> None:
    for file in EVERY_FILE:
        known = load_workflow(file)
        canonical = known.to_document()
        again = read_workflow(canonical)
        assert again == known
        assert json.dumps(again.to_document()) == json.dumps(canonical)
        assert again.hash == known.hash
        assert check_text(json.dumps(canonical)).workflow == known


def test_defaults_that_are_written_out_change_nothing() -> None:
    short = workflow(python("a", retries=2), human("b"))
    long = workflow(
        python("a", retries={"times": 2, "delay_s": 0.5, "factor": 2}, ring=3, reads=[], checkpoint=False),
        human("b", default=None, capabilities=[]),
        edges=[("a", "b")],
        format=1,
        limits={},
        merge={"strategy": "refuse"},
    )
    assert long == short and long.hash == short.hash


def test_where_a_member_is_written_says_nothing() -> None:
    one = workflow(python("a"), loop("l", "x", "y"), python("x"), python("y"), python("b"))
    other = workflow(python("y"), python("a"), loop("l", "x", "y"), python("b"), python("x"))
    assert one == other


def test_the_order_of_the_top_level_does() -> None:
    assert workflow(python("a"), python("b")).hash != workflow(python("b"), python("a")).hash


def test_edges_are_a_set() -> None:
    nodes = [python(name) for name in "abc"]
    edges = [("a", "b"), ("a", "c"), ("b", "c")]
    assert workflow(*nodes, edges=edges) == workflow(*nodes, edges=[*reversed(edges), ("a", "b")])
    assert workflow(*nodes, edges=[("b", "c"), ("a", "b")]).to_document().keys() == {"workflow", "nodes"}


def test_whole_durations_are_integers() -> None:
    made = workflow(python("a", timeout_s=30.0), python("b", timeout_s=0.25)).to_document()
    assert repr([node["timeout_s"] for node in made["nodes"]]) == "[30, 0.25]"


def test_data_keeps_its_types() -> None:
    body: dict[str, Any] = {"one": 1, "float": 1.0, "true": True, "nothing": None, "list": [[], {}]}
    node = {"id": "a", "type": "http_request", "url": "https://x", "method": "PUT", "body": body}
    made = workflow(node)
    assert repr(made.to_document()["nodes"][0]["body"]) == repr(body)
    assert made.hash != workflow(node | {"body": body | {"float": 1}}).hash


def test_what_the_caller_does_to_his_data_later_does_not_matter() -> None:
    given = document({"id": "a", "type": "http_request", "url": "https://x", "stub": {"n": [1]}})
    made = read_workflow(given)
    before = copy.deepcopy(made.to_document())
    given["nodes"][0]["stub"]["n"].append(2)
    made.to_document()["nodes"][0]["stub"]["n"].append(3)
    assert made.to_document() == before


def test_a_model_is_frozen() -> None:
    made = workflow(python("a"))
    with pytest.raises(ValueError, match="frozen"):
        made.nodes[0].id = "b"
    with pytest.raises(ValueError, match="frozen"):
        made.workflow = "other"


def test_what_is_wrong_comes_as_one_error_with_every_problem() -> None:
    with pytest.raises(WorkflowProblems) as caught:
        read_workflow(document(python("a", ring=4), python("b", function="no name"), python("c", extra=1)))
    assert [each.node for each in caught.value.problems] == ["a", "b", "c"]
    assert caught.value.kind == "invalid"
    assert "3 problems in the workflow" in str(caught.value)


def test_what_is_no_object_is_no_workflow() -> None:
    values: list[Any] = [None, 1, "text", [], [1]]
    for value in values:
        with pytest.raises(WorkflowProblems, match="a workflow is an object"):
            read_workflow(value)


def test_what_is_not_json_is_no_workflow() -> None:
    values: list[Any] = [{1: 2}, {"workflow": {1}}, {"a": float("nan")}, {"a": "\ud800"}]
    for value in values:
        with pytest.raises(WorkflowProblems):
            read_workflow(value)


def test_a_manifest_has_the_hash_of_the_document_and_of_every_segment(store: Store) -> None:
    with store.open() as app:
        known = load_workflow(TRIAGE)
        plan = partition(known)
        pointer = app.kernel.create_manifest("t-1", known.to_document(), plan.segment_manifest(), owner_id="me")
        assert pointer.config_hash == known.hash
        assert pointer.metadata["segment_count"] == plan.total_segments
        assert len(pointer.segment_hashes) == plan.total_segments
        for number, segment in enumerate(plan.segments):
            assert app.kernel.verify_segment_config(segment.config, pointer.manifest_id, number)
            forged = {**segment.config, "ring": "ring_0" if segment.ring != "ring_0" else "ring_1"}
            assert not app.kernel.verify_segment_config(forged, pointer.manifest_id, number)
        entries = app.kernel.load_segment_manifest(pointer.manifest_id)
        assert plan_of(entries, plan.iteration_limit) == plan
        assert {each["total_segments"] for each in entries} == {plan.total_segments}
        assert read_workflow(app.kernel.load_workflow_config(pointer.manifest_id)) == known


def test_a_segment_that_did_not_change_is_the_same_block_in_the_next_version(store: Store) -> None:
    with store.open() as app:
        one = workflow(python("a"), human("h"), python("b"))
        other = workflow(python("a"), human("h"), python("b", retries=1))
        made = [
            app.kernel.create_manifest("w", each.to_document(), partition(each).segment_manifest(), owner_id="me")
            for each in (one, other)
        ]
        same = [made[0].segment_hashes[number] == made[1].segment_hashes[number] for number in range(3)]
        assert same == [True, True, False]


def test_the_order_of_keys_says_nothing() -> None:
    known = workflow(python("a"), branch("b", ["c"], default=[]), python("c"))
    turned = _turned(known.to_document())
    assert list(turned) != list(known.to_document())
    assert read_workflow(turned) == known


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(each) for key, each in reversed(value.items())}
    return [_turned(each) for each in value] if isinstance(value, list) else value
