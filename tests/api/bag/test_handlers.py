"""Handlers: hydrate in, run, dehydrate out, and nothing is leased when they fail."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import App
from analemma.errors import Denied, Invalid
from tests.api.bag.payload_stores import LARGE, NAMES, receive, send, through_json
from tests.stores import Store

CONTEXT = object()


def leases(app: App) -> int:
    return len(app.payloads.leases(owner_id="ann", workflow_id="report"))


def test_a_handler_gets_a_state_and_gives_a_payload(store: Store) -> None:
    with store.open() as app:
        seen: list[Any] = []

        @analemma.lambda_handler(app=app)
        def handler(state: Any, context: Any) -> None:
            seen.append(context)
            state["n"] += 1
            state["plan"].append("new")

        event = send(app, {"n": 1, "plan": LARGE, "other": LARGE[1:]})
        payload = through_json(handler(event, CONTEXT))
        assert seen == [CONTEXT]
        assert payload["plan"]["__pointer__"] == 1 and payload["other"] == event["other"]
        assert receive(app, payload) == {"n": 2, "plan": [*LARGE, "new"], "other": LARGE[1:]}


def test_a_handler_may_return_another_state(app: App) -> None:
    @analemma.with_payloads(app=app)
    def replace(state: Any) -> dict[str, Any]:
        return {"made": state["plan"]}

    assert receive(app, replace(send(app, {"plan": LARGE}))) == {"made": LARGE}


def test_a_handler_may_return_only_what_changed(app: App) -> None:
    @analemma.with_payloads(app=app, return_delta=True)
    def count(state: Any) -> Any:
        state["n"] += 1
        del state["old"]
        return state

    event = send(app, {"n": 1, "old": 2, "plan": LARGE})
    delta = count(event)
    assert delta["__payload__"]["deleted"] == ["old"] and "plan" not in delta
    assert receive(app, delta, base=event) == {"n": 2, "plan": LARGE}


def test_an_exception_passes_through_and_leases_nothing(app: App) -> None:
    class Broken(Exception):
        pass

    @analemma.lambda_handler(app=app)
    def handler(state: Any, context: Any) -> None:
        state["plan"] = LARGE * 2
        raise Broken

    event = send(app, {"plan": LARGE})
    before = leases(app), app.stats(app.settings.tenant).blocks
    with pytest.raises(Broken):
        handler(event, CONTEXT)
    assert (leases(app), app.stats(app.settings.tenant).blocks) == before


def test_arguments_are_passed_on(app: App) -> None:
    @analemma.with_payloads(app=app, **NAMES)
    def add(state: Any, first: int, *, second: int) -> None:
        state["n"] = first + second

    assert add({}, 1, second=2)["n"] == 3
    assert add.__name__ == "add"


def test_coroutines_are_awaited(app: App) -> None:
    @analemma.with_payloads(app=app, **NAMES)
    async def handler(state: Any) -> None:
        await asyncio.sleep(0)
        state["n"] = 2

    assert asyncio.run(handler({"plan": LARGE}))["n"] == 2


def test_names_come_from_the_decorator_the_payload_or_the_event(app: App) -> None:
    @analemma.with_payloads(app=app)
    def same(state: Any) -> None:
        pass

    said = {"ownerId": "ann", "workflowId": "report", "execution_id": "run-1", "n": 1}
    names = same(said)["__payload__"]
    assert {key: names[key] for key in NAMES} == NAMES
    assert same({"state_data": {"n": 1}, **said})["__payload__"]["execution_id"] == "run-1"
    again = same(send(app, {"n": 1}, execution_id="run-7"))["__payload__"]
    assert again["execution_id"] == "run-7"


def test_an_event_of_nobody_is_refused_before_the_function_runs(app: App) -> None:
    ran: list[int] = []

    @analemma.with_payloads(app=app)
    def handler(state: Any) -> None:
        ran.append(1)

    with pytest.raises(Invalid, match="execution_id"):
        handler({"ownerId": "ann", "workflowId": "report"})
    with pytest.raises(Invalid, match="owner_id"):
        handler({"n": 1})
    assert ran == []


def test_a_handler_of_one_workflow_takes_no_other(app: App) -> None:
    @analemma.with_payloads(app=app, owner_id="ann", workflow_id="report")
    def handler(state: Any) -> None:
        pass

    with pytest.raises(Denied):
        handler(send(app, {"n": 1}, workflow_id="other"))


def test_what_is_no_state_cannot_be_returned(app: App) -> None:
    @analemma.with_payloads(app=app, **NAMES)
    def handler(state: Any, result: Any) -> Any:
        return result

    for result in (1, "text", [1], True):
        with pytest.raises(Invalid, match="return"):
            handler({}, result)


def test_fields_are_loaded_skipped_and_forced_out_as_told(app: App) -> None:
    @analemma.with_payloads(app=app, load_fields={"plan"}, skip_fields={"old"}, force_offload_fields={"n"})
    def handler(state: Any) -> None:
        assert state.not_loaded() == {} and "old" not in state

    event = send(app, {"plan": LARGE, "old": LARGE[1:], "n": 1})
    payload = handler(event)
    assert payload["n"]["__pointer__"] == 1 and payload["old"] == event["old"]


@pytest.mark.parametrize("returns", ["nothing", "state", "dict"])
@pytest.mark.parametrize("return_delta", [False, True])
def test_what_a_function_is_not_shown_goes_on_as_it_came(returns: str, return_delta: bool, store: Store) -> None:
    """Large ones, small ones, and those that stand together behind one pointer."""
    with store.open() as app:

        @analemma.with_payloads(app=app, skip_fields={"plan", "small", "field 9"}, return_delta=return_delta)
        def handler(state: Any) -> Any:
            assert not {"plan", "small", "field 9"} & set(state)
            state["n"] += 1
            del state["gone"]
            return {"nothing": None, "state": state, "dict": dict(state)}[returns]

        fields: dict[str, Any] = {f"field {number}": number for number in range(3_000)}
        fields |= {"plan": LARGE, "small": [1], "n": 1, "gone": 1}
        event = send(app, fields)
        answer = through_json(handler(event))
        whole = not return_delta or returns == "dict"
        assert ("delta" not in answer["__payload__"]) == whole
        if whole and returns != "dict":
            assert answer["plan"] == event["plan"]
        arrived = receive(app, answer, base=None if whole else event)
        assert arrived == {name: value for name, value in fields.items() if name != "gone"} | {"n": 2}


def test_a_field_that_was_not_shown_may_be_set(app: App) -> None:
    @analemma.with_payloads(app=app, skip_fields={"plan"})
    def handler(state: Any) -> None:
        state["plan"] = "other"

    assert receive(app, handler(send(app, {"plan": LARGE, "n": 1}))) == {"plan": "other", "n": 1}


def test_a_tenant_may_be_named(app: App) -> None:
    @analemma.with_payloads(app=app, tenant="shop", **NAMES)
    def handler(state: Any) -> None:
        state["plan"] = LARGE

    payload = handler({})
    with pytest.raises(Denied):
        receive(app, payload)
    assert app.tenant("shop").payloads.hydrate(payload) == {"plan": LARGE}


def test_unknown_options_are_refused_at_once() -> None:
    with pytest.raises(TypeError):
        analemma.with_payloads(lod_fields={"plan"})


PROGRAM = """
import json, sys
import analemma

@analemma.lambda_handler
def handler(state, context):
    state["n"] += 1
    state["text"] = "x" * 20_000

event = {"n": 1, "ownerId": "ann", "workflowId": "report", "execution_id": "run-1"}
first = handler(event, None)
second = handler(json.loads(json.dumps(first)), None)
print(second["n"], second["text"] == first["text"])
"""


def test_a_bare_decorator_opens_the_store_of_the_settings_once(tmp_path: Path) -> None:
    analemma.open(tmp_path / "store").close()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "ANALEMMA_URL": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "3 True\n"), done.stderr


def test_options_that_can_be_read_once_hold_for_every_event(app: App) -> None:
    seen: list[Any] = []

    @analemma.with_payloads(app=app, skip_fields=(name for name in ["secret"]))
    def look(state: Any) -> None:
        seen.append(dict(state))

    for n in range(2):
        look(send(app, {"n": n, "secret": 1}))
    assert seen == [{"n": 0}, {"n": 1}]
    with pytest.raises(Invalid):
        analemma.with_payloads(app=app, skip_fields="secret")


FORKING = """
import os, signal, socket, sys, threading
import analemma

@analemma.with_payloads
def handler(state):
    state["n"] += 1

event = {"n": 1, "ownerId": "ann", "workflowId": "report", "execution_id": "run-1"}
listener = socket.create_server(("127.0.0.1", 0))
os.environ["ANALEMMA_URL"] = f"postgresql://127.0.0.1:{listener.getsockname()[1]}/nobody"
threading.Thread(target=handler, args=(event,), daemon=True).start()
# A server that never answers: the thread is opening a store from now on.
connection, _ = listener.accept()
connection.recv(1)
child = os.fork()
if child == 0:
    signal.alarm(30)  # ends a child that waits for a thread it does not have
    os.environ["ANALEMMA_URL"] = sys.argv[1]
    print(handler(event)["n"], flush=True)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
"""


def test_a_fork_while_a_thread_opens_a_store_leaves_the_child_handlers_that_work(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    analemma.open(url).close()
    done = subprocess.run([sys.executable, "-c", FORKING, url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
