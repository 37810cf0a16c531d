"""Where functions and handlers are found."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import App, Flow, Run
from analemma.errors import Invalid
from tests.api.flows.runs import place


def one(state: Any, ctx: Any) -> dict[str, str]:
    return {"by": "one"}


def two(state: Any, ctx: Any) -> dict[str, str]:
    return {"by": "two"}


NO_FUNCTION = 5


def call(app: App, function: str, tenant: str = "default") -> Run:
    node = {"id": "n", "type": "python", "function": function}
    return app.tenant(tenant).flows.run({"workflow": "w", "nodes": [node]}, **place())


def ask(app: App, tenant: str = "default") -> Run:
    node = {"id": "n", "type": "http_request", "url": "https://x", "into": "by"}
    return app.tenant(tenant).flows.run({"workflow": "w", "nodes": [node]}, **place())


def test_what_a_tenant_has_goes_before_what_the_program_has(memory: App) -> None:
    memory.handlers.add("f", one)
    memory.handlers.add("g", one)
    memory.tenant("own").flows.handlers.add("f", two)
    assert [call(memory, name, "own").state["by"] for name in ("f", "g")] == ["two", "one"]
    assert call(memory, "f").state["by"] == "one"


def test_a_type_of_node_may_be_done_by_the_program(memory: App) -> None:
    memory.handlers.bind("http_request", one)
    memory.tenant("own").flows.handlers.bind("http_request", two)
    assert (ask(memory).state["by"], ask(memory, "own").state["by"]) == ("one", "two")


def test_what_nobody_has_is_named_with_its_node_and_what_may_have_been_meant(memory: App) -> None:
    memory.handlers.add("triage.classify", one)
    run = call(memory, "triage.clasify")
    assert run.error is not None and (run.error.kind, run.error.node) == ("not_found", "n")
    assert "triage.clasify" in run.error.message and "triage.classify" in f"{run.error.message} {run.error.hint}"


def test_modules_are_imported_if_they_or_a_package_above_them_were_allowed(memory: App) -> None:
    here = "tests.api.flows.test_handlers"

    def kind(function: str, *allowed: str) -> str | None:
        tenant = f"t-{place()['workflow_id']}"
        for module in allowed:
            memory.tenant(tenant).flows.handlers.allow(module)
        run = call(memory, function, tenant)
        return run.state["by"] if run.error is None else run.error.kind

    assert kind(f"{here}:one") == kind(f"{here}:one", "tests.api.flowsx", "os") == "denied"
    assert kind(f"{here}:one", "tests.api") == kind(f"{here}:one", here) == "one"
    assert kind(f"{here}:three", "tests") == kind("tests.nowhere:one", "tests") == "not_found"
    assert kind(f"{here}:NO_FUNCTION", "tests") == "invalid"
    for wrong in ("", "a-b", "a..b", 5):
        with pytest.raises(Invalid):
            memory.handlers.allow(wrong)  # type: ignore[arg-type]


def test_a_flow_brings_its_functions_along(memory: App) -> None:
    flow = Flow("hello")
    flow.step(one)
    memory.handlers.add_all(flow)
    assert call(memory, "hello.one").state["by"] == "one"
    with pytest.raises(Invalid):
        memory.handlers.add("x", 5)  # type: ignore[arg-type]
