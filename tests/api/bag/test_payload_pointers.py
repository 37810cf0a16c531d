"""Pointers are good for one tenant, owner, workflow and field, until their execution ends."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import App
from analemma.catalog import payloads
from analemma.catalog.arrays import Blobs
from analemma.catalog.payloads import LeaseId, LeaseRequest
from analemma.errors import Corrupt, Denied, Invalid, Limit
from tests.api.bag.payload_stores import LARGE, NAMES, receive, send
from tests.internals import delete_doomed_blocks, doom_blocks
from tests.stores import Store, local


def test_a_large_field_becomes_a_pointer_and_loads_on_first_access(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        event = send(app, {"plan": LARGE, "n": 1})
        pointer = event["plan"]
        assert pointer.keys() == {"__pointer__", "hash", "size_bytes", "field_name", "lease"}
        assert (pointer["__pointer__"], pointer["field_name"], event["n"]) == (1, "plan", 1)
        state = receive(app, event)
        reads = app.catalog.engine.statements["read_blocks"]
        assert state["n"] == 1 and "plan" in state and len(state) == 2
        assert app.catalog.engine.statements["read_blocks"] == reads
        assert state["plan"] == LARGE
        assert app.catalog.engine.statements["read_blocks"] > reads


def test_a_pointer_survives_a_restart(store: Store) -> None:
    with store.open() as app:
        event = send(app, {"plan": LARGE})
    with store.open() as app:
        assert receive(app, event) == {"plan": LARGE}


FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "another hash": lambda pointer: pointer.update(hash="00" * 32),
    "another lease": lambda pointer: pointer.update(lease="00" * 16),
    "another size": lambda pointer: pointer.update(size_bytes=pointer["size_bytes"] + 1),
    "another field": lambda pointer: pointer.update(field_name="other"),
    "no field": lambda pointer: pointer.update(field_name=None),
}

MALFORMED: dict[str, Callable[[dict[str, Any]], None]] = {
    "an extra key": lambda pointer: pointer.update(extra=1),
    "a missing key": lambda pointer: pointer.pop("size_bytes"),
    "a later version": lambda pointer: pointer.update(__pointer__=2),
    "a true version": lambda pointer: pointer.update(__pointer__=True),
    "a short hash": lambda pointer: pointer.update(hash="00"),
    "an upper-case hash": lambda pointer: pointer.update(hash="AA" * 32),
    "a hash of another type": lambda pointer: pointer.update(hash=["00" * 32]),
    "a lease of another type": lambda pointer: pointer.update(lease=7),
    "a negative size": lambda pointer: pointer.update(size_bytes=-1),
    "a huge size": lambda pointer: pointer.update(size_bytes=2**63),
    "a size of another type": lambda pointer: pointer.update(size_bytes="1"),
    "a field of another type": lambda pointer: pointer.update(field_name=3),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_pointer_is_denied(name: str, app: App) -> None:
    event = send(app, {"plan": LARGE, "n": 1})
    FORGED[name](event["plan"])
    with pytest.raises(Denied):
        receive(app, event)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_pointer_is_refused(name: str, app: App) -> None:
    event = send(app, {"plan": LARGE, "n": 1})
    MALFORMED[name](event["plan"])
    with pytest.raises(Invalid, match="plan"):
        receive(app, event)


def test_a_pointer_cannot_stand_at_another_field(app: App) -> None:
    event = send(app, {"credentials": LARGE, "notes": "x" * 20_000})
    event["notes"] = event["credentials"]
    with pytest.raises(Denied):
        receive(app, event)


def test_a_pointer_of_another_workflow_is_denied(store: Store) -> None:
    with store.open() as app:
        theirs = send(app, {"plan": LARGE}, workflow_id="other")
        ours = send(app, {"plan": LARGE})
        # Equal content: the same blocks, and still not the same right to them.
        assert theirs["plan"]["hash"] == ours["plan"]["hash"]
        with pytest.raises(Denied):
            receive(app, {**ours, "plan": theirs["plan"]})
        with pytest.raises(Denied):
            receive(app, theirs, workflow_id="report")
        with pytest.raises(Denied):
            receive(app, theirs, owner_id="bob")
        assert receive(app, theirs, owner_id="ann", workflow_id="other") == {"plan": LARGE}


def test_a_pointer_of_another_owner_is_denied(app: App) -> None:
    theirs, ours = send(app, {"plan": LARGE}, owner_id="bob"), send(app, {"plan": LARGE})
    with pytest.raises(Denied):
        receive(app, {**ours, "plan": theirs["plan"]})


def test_a_pointer_of_another_tenant_is_denied(store: Store) -> None:
    with store.open() as app:
        event = send(app, {"plan": LARGE})
        app.tenant("shop").payloads.dehydrate({"plan": LARGE}, **NAMES)
        with pytest.raises(Denied):
            app.tenant("shop").payloads.hydrate(event)


def test_a_released_pointer_is_denied(store: Store) -> None:
    with store.open() as app:
        event, other = send(app, {"plan": LARGE}), send(app, {"plan": LARGE}, execution_id="run-2")
        assert len(app.payloads.leases(owner_id="ann", workflow_id="report")) == 2
        assert app.payloads.release(**NAMES) == 1
        assert app.payloads.release(**NAMES) == 0
        with pytest.raises(Denied, match="ended"):
            receive(app, event)
        assert receive(app, other) == {"plan": LARGE}
        (lease,) = app.payloads.leases(owner_id="ann", workflow_id="report")
        assert lease.execution == "run-2"
        assert app.payloads.leases(owner_id="ann", workflow_id="report", execution_id="run-1") == []


def test_whoever_comes_after_the_release_gets_no_pointers(store: Store) -> None:
    """Also of an execution that never had any; what needs no pointers is nobody's to release."""
    with store.open() as app:
        for execution in ("run-1", "never"):
            if execution == "run-1":
                send(app, {"plan": LARGE})
            app.payloads.release(**{**NAMES, "execution_id": execution})
            with pytest.raises(Denied, match="released"):
                send(app, {"plan": LARGE}, execution_id=execution)
            assert send(app, {"n": 1}, execution_id=execution)["n"] == 1
            assert app.payloads.release(**{**NAMES, "execution_id": execution}) == 0
        assert app.payloads.leases(owner_id="ann", workflow_id="report") == []
        blocks = app.stats().blocks
        with pytest.raises(Denied):
            send(app, {"plan": LARGE * 2})
        assert app.stats().blocks == blocks
        for other in ({"execution_id": "run-2"}, {"workflow_id": "other"}, {"owner_id": "bob"}):
            assert send(app, {"plan": LARGE}, **other)["plan"]["__pointer__"] == 1
        app.tenant("shop").payloads.dehydrate({"plan": LARGE}, **NAMES)


def test_what_was_uploaded_for_a_payload_that_failed_is_collected_without_waiting_a_day(store: Store) -> None:
    with store.open(pack_threshold_bytes=1000) as app:
        app.payloads.release(**NAMES)
        with pytest.raises(Denied):
            send(app, {"plan": LARGE})
        (failure,) = app.gc.failures()
        assert failure.kind == "commit" and "released" in str(failure.error)
        assert app.gc.work_failures() == 1 and app.gc.failures() == []


def test_a_payload_that_is_being_made_is_released_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Released between its check and its leases: whoever releases waits, and ends those leases as well."""
    with store.open() as app, store.open() as other:
        inside, go_on = threading.Event(), threading.Event()

        def pause(name: str) -> None:
            if name == payloads.AFTER_BLOCKS and threading.current_thread().name == "late":
                inside.set()
                assert go_on.wait(60)

        monkeypatch.setattr(payloads, "hit", pause)
        late = threading.Thread(target=send, args=(app, {"plan": LARGE}), name="late")
        late.start()
        assert inside.wait(20)
        counts: list[int] = []
        releasing = threading.Thread(target=lambda: counts.append(other.payloads.release(**NAMES)))
        releasing.start()
        time.sleep(0.3)
        assert counts == []
        go_on.set()
        late.join(20)
        releasing.join(20)
        assert counts == [1] and app.payloads.leases(owner_id="ann", workflow_id="report") == []


def test_releasing_touches_no_other_workflow(app: App) -> None:
    event = send(app, {"plan": LARGE}, workflow_id="other")
    assert app.payloads.release(**NAMES) == 0
    assert receive(app, event) == {"plan": LARGE}


def test_a_field_that_was_collected_after_its_release_is_denied_and_not_corrupt(tmp_path: Path) -> None:
    with local(tmp_path).open(cache_bytes=0) as app:
        state = receive(app, send(app, {"plan": LARGE}))
        app.payloads.release(**NAMES)
        with app.catalog.engine.transaction(write=True) as tx:
            tx.script("DELETE FROM block;")
        with pytest.raises(Denied, match="released"):
            state["plan"]


def test_a_field_whose_blocks_are_gone_without_release_is_corrupt(tmp_path: Path) -> None:
    with local(tmp_path).open(cache_bytes=0) as app:
        state = receive(app, send(app, {"plan": LARGE}))
        with app.catalog.engine.transaction(write=True) as tx:
            tx.script("DELETE FROM block;")
        with pytest.raises(Corrupt):
            state["plan"]


def test_live_leases_are_listed_as_roots(store: Store) -> None:
    with store.open() as app:
        for number in range(5):
            send(app, {"plan": [number, *LARGE]}, execution_id=f"run-{number}")
        leases = {lease.id: lease.root for lease in app.payloads.leases(owner_id="ann", workflow_id="report")}
        found: dict[LeaseId, bytes] = {}
        after: LeaseId | None = None
        while page := app.catalog.lease_roots(app.default.id, after=after, limit=2):
            found |= dict(page)
            after = page[-1][0]
        assert found == leases and len(leases) == 5
        app.payloads.release(**{**NAMES, "execution_id": "run-3"})
        assert len(app.catalog.lease_roots(app.default.id)) == 4
        assert app.catalog.lease_roots(app.tenant("shop").id) == []


def test_leasing_spares_blocks_that_the_collector_had_marked(store: Store) -> None:
    with store.open() as app:
        send(app, {"plan": LARGE})
        app.payloads.release(**NAMES)
        doom_blocks(app, 7)
        event = send(app, {"plan": LARGE}, execution_id="run-2")
        delete_doomed_blocks(app)
    with store.open() as app:
        assert receive(app, event) == {"plan": LARGE}


def test_pointers_without_anyone_they_belong_to_are_denied(app: App) -> None:
    event = send(app, {"plan": LARGE})
    del event["__payload__"]
    with pytest.raises(Denied, match="whose"):
        receive(app, event)
    with pytest.raises(Denied, match="whose"):
        receive(app, event, owner_id="ann")
    assert receive(app, event, owner_id="ann", workflow_id="report") == {"plan": LARGE}
    said = {**event, "ownerId": "ann", "workflowId": "report"}
    assert receive(app, said)["plan"] == LARGE
    with pytest.raises(Denied):
        receive(app, {**said, "workflowId": "other"})
    assert receive(app, {"state_data": event, "ownerId": "ann", "workflowId": "report"}) == {"plan": LARGE}


NESTED: Any = 0
for _ in range(400):
    NESTED = [NESTED]

HOSTILE: dict[str, Any] = {
    "no object": ["state"],
    "text": "state",
    "nothing": None,
    "deep nesting": {"n": NESTED},
    "deep tags": {"n": {"": ["tuple", [{"": ["tuple", [NESTED]]}]]}},
    "a set": {"n": {1, 2}},
    "bytes": {"n": b"x"},
    "a key that is no text": {1: 2},
    "an inner key that is no text": {"n": {1: 2}},
    "not a number": {"n": math.nan},
    "infinity": {"n": [math.inf]},
    "an integer beyond all": {"n": 2**64},
    "a lone surrogate": {"n": "\ud800"},
    "a lone surrogate as a key": {"n": {"\ud800": 1}},
    "a lone surrogate as a field": {"\ud800": 1},
    "bytes with bits that nobody reads": {"n": {"": {"bytes": "aGl="}}},
    "a tag without a name": {"n": {"": ["", 1]}},
    "a reserved tag": {"n": {"": ["map", 1]}},
    "an unknown type": {"n": {"": ["os:system", "ls"]}},
    "a malformed datetime": {"n": {"": ["datetime", "yesterday"]}},
    "a set of lists": {"n": {"": ["set", [[1]]]}},
    "a tuple of text": {"n": {"": ["tuple", "ab"]}},
    "bytes that are no base64": {"n": {"": {"bytes": "*"}}},
    "an integer that needs no form": {"n": {"": {"int": "7"}}},
    "an integer of many digits": {"n": {"": {"int": "9" * 10_000}}},
    "a float that is none": {"n": {"": {"float": "nan"}}},
    "an unknown form": {"n": {"": {"complex": "1j"}}},
    "an empty form": {"n": {"": {}}},
    "a note that is none": {"__payload__": 1},
    "a note without a version": {"__payload__": {"owner_id": "a", "workflow_id": "b", "execution_id": "c"}},
    "a note of a later version": {
        "__payload__": {"version": 2, "owner_id": "a", "workflow_id": "b", "execution_id": "c"}
    },
    "a note with more": {
        "__payload__": {"version": 1, "owner_id": "a", "workflow_id": "b", "execution_id": "c", "more": 1}
    },
    "half a delta": {
        "__payload__": {"version": 1, "owner_id": "a", "workflow_id": "b", "execution_id": "c", "delta": True}
    },
    "deletions without a delta": {
        "__payload__": {"version": 1, "owner_id": "a", "workflow_id": "b", "execution_id": "c", "deleted": ["n"]}
    },
    "nobody's note": {"__payload__": {"version": 1, "owner_id": "", "workflow_id": "b", "execution_id": "c"}},
    "an overflow that is none": {
        "__payload__": {"version": 1, "owner_id": "a", "workflow_id": "b", "execution_id": "c", "overflow": {}}
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_event_that_nobody_should_send_is_refused(name: str, app: App) -> None:
    event = HOSTILE[name]
    reads = app.catalog.engine.statements["read_blocks"]
    with pytest.raises(Invalid):
        receive(app, copy.deepcopy(event) if "deep" not in name else event)
    assert app.catalog.engine.statements["read_blocks"] == reads


def test_a_huge_event_is_refused(tmp_path: Path) -> None:
    with local(tmp_path).open(payload_event_bytes=10_000) as app:
        assert receive(app, {"n": "x" * 9_000}) == {"n": "x" * 9_000}
        for event in ({"n": "x" * 10_000}, {"n": [0] * 10_000}, {str(number): 1 for number in range(5_000)}):
            with pytest.raises(Limit, match="payload_event_bytes"):
                receive(app, event)


def test_nothing_is_loaded_from_an_event_with_one_bad_pointer(tmp_path: Path) -> None:
    with local(tmp_path).open(cache_bytes=0) as app:
        event = send(app, {"a": LARGE, "b": [1, *LARGE]})
        event["b"]["hash"] = event["a"]["hash"]
        reads = app.catalog.engine.statements["read_blocks"]
        with pytest.raises(Denied):
            receive(app, event, load_fields={"a", "b"})
        assert app.catalog.engine.statements["read_blocks"] == reads


def test_looking_up_many_pointers_is_one_question(store: Store) -> None:
    with store.open() as app:
        event = send(app, {f"field {number}": [number, *LARGE] for number in range(20)})
        before = sum(app.catalog.engine.statements.values())
        receive(app, event)
        assert sum(app.catalog.engine.statements.values()) - before == 1


def test_all_that_leaves_is_one_transaction(store: Store) -> None:
    with store.open() as app:
        before = app.catalog.engine.statements.copy()
        send(app, {f"field {number}": [number, *LARGE] for number in range(20)})
        after = app.catalog.engine.statements
        changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert {name: changed.get(name, 0) for name in ("add_blocks", "add_lease")} == {
            "add_blocks": 1,
            "add_lease": 1,
        }


def test_an_answer_that_was_lost_is_found_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        sent: list[int] = []
        write = app.catalog.engine.write

        def lose(move: Any) -> Any:
            write(move)
            sent.append(1)
            raise analemma.errors.OutcomeUnknown("the connection broke")

        assert app.default.kernel is not None
        monkeypatch.setattr(app.catalog.engine, "write", lose)
        event = send(app, {"plan": LARGE})
        assert sent == [1]
        monkeypatch.undo()
        assert receive(app, event) == {"plan": LARGE}


def test_a_write_that_was_lost_before_it_happened_is_sent_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        write = app.catalog.engine.write
        lost: list[int] = []

        def lose_once(move: Any) -> Any:
            if not lost:
                lost.append(1)
                raise analemma.errors.OutcomeUnknown("the connection broke")
            return write(move)

        assert app.default.kernel is not None
        monkeypatch.setattr(app.catalog.engine, "write", lose_once)
        event = send(app, {"plan": LARGE})
        monkeypatch.undo()
        assert receive(app, event) == {"plan": LARGE}


def test_an_upload_that_was_collected_meanwhile_is_a_conflict(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(pack_threshold_bytes=0) as app:
        prepare = app.default.blocks.prepare

        def collected(*args: Any) -> Any:
            prepared = prepare(*args)
            with app.catalog.engine.transaction(write=True) as tx:
                tx.script("UPDATE upload SET state = 'deleting';")
            return prepared

        monkeypatch.setattr(app.default.blocks, "prepare", collected)
        with pytest.raises(analemma.errors.Conflict, match="again"):
            send(app, {"plan": LARGE})
        assert app.payloads.leases(owner_id="ann", workflow_id="report") == []


@pytest.mark.parametrize("key", ["owner_id", "workflow_id", "execution_id"])
@pytest.mark.parametrize("value", ["", "\0", "\ud800", "x" * 600, 7, None], ids=repr)
def test_names_are_checked(key: str, value: Any, app: App) -> None:
    with pytest.raises(Invalid):
        app.payloads.dehydrate({"n": 1}, **{**NAMES, key: value})


def test_every_error_of_a_hostile_event_is_ours(app: App) -> None:
    """Whatever is changed about a payload, it is refused in our words, or it is another payload."""
    event = send(app, {"plan": LARGE, "small": {f"k{number}": (1.0, b"x", {"__pointer__": 2}) for number in range(3)}})
    refusals = 0
    junk: list[Any] = [None, 7, 1.5, "x", [], {}, [[]], {"": 1}, {"__pointer__": 1}]
    for thing in junk:
        for path in _places(event):
            changed = copy.deepcopy(event)
            _put(changed, path, thing)
            try:
                dict(receive(app, changed))
            except (Invalid, Denied):
                refusals += 1
    assert refusals > 100


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        found += [place for key, inner in value.items() for place in _places(inner, (*path, key))]
    if isinstance(value, list):
        found += [place for number, inner in enumerate(value) for place in _places(inner, (*path, number))]
    return found


def _put(value: Any, path: tuple[Any, ...], junk: Any) -> None:
    for token in path[:-1]:
        value = value[token]
    value[path[-1]] = junk


def test_a_request_that_is_sent_twice_is_written_once(store: Store) -> None:
    with store.open() as app:
        send(app, {"plan": LARGE})
        (lease,) = app.payloads.leases(owner_id="ann", workflow_id="report")
        assert app.catalog.leases(app.default.id, [lease.id]) == {lease.id: lease}
        assert app.catalog.leases(app.default.id, []) == {}
        request = LeaseRequest(app.default.id, (lease,))
        app.catalog.add_leases(request)
        app.catalog.add_leases(replace(request, kept=(lease.id,)))
        assert app.payloads.leases(owner_id="ann", workflow_id="report") == [lease]
        with pytest.raises(Denied):
            app.catalog.add_leases(replace(request, kept=(LeaseId(bytes(16)),)))


def test_releasing_waits_for_whoever_builds_on_a_lease(postgres_url: str, tmp_path: Path) -> None:
    with Store(postgres_url, str(tmp_path / "objects")).open() as app:
        send(app, {"plan": LARGE})
        (lease,) = app.payloads.leases(owner_id="ann", workflow_id="report")
        done = threading.Event()

        def release() -> None:
            app.payloads.release(**NAMES)
            done.set()

        releasing = threading.Thread(target=release)
        with app.catalog.engine.transaction(write=True) as tx:
            assert len(tx.all("hold_leases", tenant=app.default.id, ids=Blobs([lease.id]), unused=0)) == 1
            releasing.start()
            assert not done.wait(0.5)
        releasing.join(20)
        assert done.is_set() and app.payloads.leases(owner_id="ann", workflow_id="report") == []
