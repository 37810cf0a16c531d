"""Pointers are good for one tenant, owner, workflow and field, until their execution ends."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from analemma import App
from analemma.errors import Conflict, Corrupt, Denied, Invalid, Limit, OutcomeUnknown
from analemma.testing import failpoints
from tests.api.bag.payload_stores import LARGE, NAMES, receive, send
from tests.postgres.postgres_proxy import LossyProxy
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, is_sqlite
from tests.stores import Store, local


def test_a_large_field_becomes_a_pointer_and_loads_on_first_access(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        event = send(app, {"plan": LARGE, "n": 1})
        pointer = event["plan"]
        assert pointer.keys() == {"__pointer__", "hash", "size_bytes", "field_name", "lease"}
        assert (pointer["__pointer__"], pointer["field_name"], event["n"]) == (1, "plan", 1)
        state = receive(app, event)
        assert state["n"] == 1 and "plan" in state and len(state) == 2
        assert set(state.not_loaded()) == {"plan"}
        assert state["plan"] == LARGE and state.not_loaded() == {}


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


def outcome(app: App, event: Any) -> str:
    """What hydrating an event comes to."""
    try:
        receive(app, event)
    except (Denied, Invalid) as exc:
        return f"{exc.kind}: {exc}"
    return "taken"


def test_a_forged_pointer_is_denied(app: App) -> None:
    event = send(app, {"plan": LARGE, "n": 1})
    found: dict[str, str] = {}
    for name, forge in FORGED.items():
        changed = copy.deepcopy(event)
        forge(changed["plan"])
        found[name] = outcome(app, changed)
    assert {name: told for name, told in found.items() if not told.startswith("denied")} == {}


def test_a_malformed_pointer_is_refused(app: App) -> None:
    event = send(app, {"plan": LARGE, "n": 1})
    found: dict[str, str] = {}
    for name, spoil in MALFORMED.items():
        changed = copy.deepcopy(event)
        spoil(changed["plan"])
        found[name] = outcome(app, changed)
    assert {name: told for name, told in found.items() if not (told.startswith("invalid") and "plan" in told)} == {}


def test_a_pointer_cannot_stand_at_another_field(app: App) -> None:
    event = send(app, {"credentials": LARGE, "notes": "x" * 20_000})
    event["notes"] = event["credentials"]
    with pytest.raises(Denied):
        receive(app, event)
    # Nor when it says that it was made for that field.
    event["notes"] = {**event["credentials"], "field_name": "notes"}
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


@pytest.mark.both_stores("whoever releases waits for a lock, which each database has in a way of its own")
def test_a_payload_that_is_being_made_is_released_too(store: Store) -> None:
    """Released between its check and its leases: whoever releases waits, and ends those leases as well."""
    with store.open() as app, store.open() as other:
        counts: list[int] = []
        # PostgreSQL writes blocks and leases by one call.
        point = "payload.after_blocks" if is_sqlite(store) else "payload.before_commit"
        with (
            failpoints.paused(point, lambda: send(app, {"plan": LARGE})) as late,
            beside(lambda: counts.append(other.payloads.release(**NAMES))) as releasing,
        ):
            if not is_sqlite(store):
                wait_for_waiting(store.url, releasing)
            assert counts == []
            late.go_on()
        assert counts == [1] and app.payloads.leases(owner_id="ann", workflow_id="report") == []


def test_releasing_touches_no_other_workflow(app: App) -> None:
    event = send(app, {"plan": LARGE}, workflow_id="other")
    assert app.payloads.release(**NAMES) == 0
    assert receive(app, event) == {"plan": LARGE}


def test_a_field_that_was_collected_after_its_release_is_denied_and_not_corrupt(tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.open(cache_bytes=0) as app:
        state = receive(app, send(app, {"plan": LARGE}))
        app.payloads.release(**NAMES)
        change(store, "DELETE FROM block")
        with pytest.raises(Denied, match="released"):
            state["plan"]


def test_a_field_whose_blocks_are_gone_without_release_is_corrupt(tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.open(cache_bytes=0) as app:
        state = receive(app, send(app, {"plan": LARGE}))
        change(store, "DELETE FROM block")
        with pytest.raises(Corrupt):
            state["plan"]


def test_what_live_leases_lead_to_is_not_collected(store: Store) -> None:
    with store.open(cache_bytes=0) as app, store.open() as other:
        states = [[number, *LARGE] for number in range(5)]
        events = [send(app, {"plan": plan}, execution_id=f"run-{number}") for number, plan in enumerate(states)]
        app.payloads.release(**{**NAMES, "execution_id": "run-3"})
        blocks = app.stats().blocks
        for _ in range(2):
            other.gc.run(grace_s=0, force=True)
        assert app.stats().blocks < blocks
        for number in (0, 1, 2, 4):
            assert receive(app, events[number]) == {"plan": states[number]}
        with pytest.raises(Denied):
            receive(app, events[3])


def test_leasing_spares_blocks_that_the_collector_had_marked(store: Store) -> None:
    with store.open(cache_bytes=0) as app, store.open() as other:
        send(app, {"plan": LARGE})
        app.payloads.release(**NAMES)
        other.gc.run(grace_s=0, force=True)
        events: list[Any] = []
        # Doomed by the pass before, and leased again when this one has seen what leads where.
        again = lambda: events.append(send(app, {"plan": LARGE}, execution_id="run-2"))  # noqa: E731
        with failpoints.call("gc.after_snapshot", again):
            other.gc.run(grace_s=0, force=True)
        assert receive(app, events[0]) == {"plan": LARGE}


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


def test_an_event_that_nobody_should_send_is_refused(app: App) -> None:
    found = {name: outcome(app, event) for name, event in HOSTILE.items()}
    assert {name: told for name, told in found.items() if not told.startswith("invalid")} == {}


def test_a_huge_event_is_refused(tmp_path: Path) -> None:
    with local(tmp_path).open(payload_event_bytes=10_000) as app:
        assert receive(app, {"n": "x" * 9_000}) == {"n": "x" * 9_000}
        for event in ({"n": "x" * 10_000}, {"n": [0] * 10_000}, {str(number): 1 for number in range(5_000)}):
            with pytest.raises(Limit, match="payload_event_bytes"):
                receive(app, event)


def test_nothing_is_loaded_from_an_event_with_one_bad_pointer(tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.open(cache_bytes=0) as app:
        event = send(app, {"a": LARGE, "b": [1, *LARGE]})
        event["b"]["hash"] = event["a"]["hash"]
        # Whoever looked for the blocks first would find that there are none.
        change(store, "DELETE FROM block")
        with pytest.raises(Denied):
            receive(app, event, load_fields={"a", "b"})


def test_an_answer_that_was_lost_is_found_again(migrated_url: str, tmp_path: Path) -> None:
    """Only a server's answer can be lost when the transaction is committed."""
    proxy = LossyProxy(migrated_url)
    url = f"{migrated_url.partition('?')[0]}?host={conninfo_to_dict(proxy.url)['host']}"
    try:
        with Store(url, str(tmp_path / "objects")).open() as app:
            with failpoints.call("payload.before_commit", lambda: proxy.lose_answer_to(b"COMMIT")):
                event = send(app, {"plan": LARGE})
            assert proxy.lost == 1
            assert receive(app, event) == {"plan": LARGE}
            assert len(app.payloads.leases(owner_id="ann", workflow_id="report")) == 1
    finally:
        proxy.close()


def test_a_write_that_was_lost_before_it_happened_is_sent_again(store: Store) -> None:
    def lose() -> None:
        raise OutcomeUnknown("the connection broke")

    with store.open() as app:
        with failpoints.call("payload.before_commit", lose):
            event = send(app, {"plan": LARGE})
        assert receive(app, event) == {"plan": LARGE}


def test_an_upload_that_was_collected_meanwhile_is_a_conflict(store: Store) -> None:
    with store.open(pack_threshold_bytes=0) as app:

        def collect() -> None:
            assert change(store, "UPDATE upload SET state = 'deleting'") == 1

        with failpoints.call("payload.before_transaction", collect), pytest.raises(Conflict, match="again"):
            send(app, {"plan": LARGE})
        assert app.payloads.leases(owner_id="ann", workflow_id="report") == []


@pytest.mark.parametrize("key", ["owner_id", "workflow_id", "execution_id"])
def test_names_are_checked(key: str, app: App) -> None:
    for value in ("", "\0", "\ud800", "x" * 600, 7, None):
        with pytest.raises(Invalid):
            assert app.payloads.dehydrate({"n": 1}, **{**NAMES, key: value}) is None, value


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
