"""What is refused before anything runs: hostile requests, inputs that a document does not allow, damaged segments."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Corrupt, Invalid, NotFound
from tests.api.flows.runs import PLACE, place
from tests.api.flows.test_running import counting
from tests.raw_rows import change, select
from tests.stores import Store

HOSTILE: list[tuple[Any, dict[str, Any]]] = [
    ([1], {}),
    ("text", {}),
    ({"n": float("nan")}, {}),
    ({1: 2}, {}),
    ({"n": object()}, {}),
    ({"n\ud800": 1}, {}),
    ({"n": 1}, {"workflow_id": ""}),
    ({"n": 1}, {"workflow_id": "x" * 600}),
    ({"n": 1}, {"owner_id": 5}),
    ({"n": 1}, {"branch": "a\0b"}),
    ({"n": 1}, {"idempotency_key": "k" * 600}),
    ({"n": 1}, {"trigger": [1]}),
    ({"n": 1}, {"trigger": {"at": object()}}),
    ({"n": 1}, {"trigger": {"node": "nowhere"}}),
]


def test_hostile_requests_are_refused_and_nothing_is_left(memory: App) -> None:
    for given, more in HOSTILE:
        where = place()
        with pytest.raises(Invalid):
            memory.flows.run(counting(), given, **{**where, **more})
        with pytest.raises(NotFound):
            memory.kernel.history(**where)
    assert memory.flows.runs() == []


def test_an_input_is_held_against_what_the_document_says_of_the_state(app: App) -> None:
    fields: dict[str, Any] = {"n": {"type": "int", "required": True}, "names": "list<string>", "ask": "object"}
    flow = Flow("typed", state=fields, additional="reject")
    flow.human("ask", choices=["yes"])
    for given, pointer in (
        ({}, "/n"),
        ({"n": "1"}, "/n"),
        ({"n": 1, "names": ["a", 2]}, "/names/1"),
        ({"n": 1, "x": 1}, "/x"),
    ):
        with pytest.raises(Invalid) as caught:
            app.flows.run(flow, given, **PLACE)
        assert caught.value.pointer == pointer
    assert app.flows.run(flow, {"n": 1, "names": ["a"]}, **PLACE).status == "WAITING_HUMAN"


def test_what_is_no_flow_cannot_be_run(app: App) -> None:
    for wrong in ("order.yaml", 5, None, [counting()]):
        with pytest.raises(Invalid):
            app.flows.run(wrong, {}, **PLACE)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        app.flows.run({"workflow": "w", "nodes": []}, {}, **PLACE)


def damage_block(store: Store, block: str) -> None:
    """Change the last byte of a block."""
    ((body,),) = select(store, "SELECT body FROM block WHERE id = ?", [bytes.fromhex(block)])
    damaged = body[:-1] + bytes([body[-1] ^ 1])
    assert change(store, "UPDATE block SET body = ? WHERE id = ?", [damaged, bytes.fromhex(block)]) == 1


def test_a_tampered_block_is_found_and_nothing_is_run(app: App, store: Store) -> None:
    """The bytes of the run's segments are others than their hashes say."""
    run = app.flows.start(counting(), {"n": 1}, **PLACE)
    manifest = app.kernel.get_manifest(run.manifest_id)
    victim = next(iter(manifest.segment_hashes.values()))
    damage_block(store, victim)
    with store.open() as other:
        other.flows.register(counting())
        with pytest.raises(Corrupt):
            other.flows.resume(run.execution_id)
        failed = other.flows.get(run.execution_id)
        assert failed.error is not None and (failed.status, failed.error.kind) == ("FAILED", "corrupt")
        assert failed.segments == ()
