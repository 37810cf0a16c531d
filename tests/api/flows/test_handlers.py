"""Where functions and handlers are found."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import Flow
from analemma.errors import Denied, Invalid, NotFound
from analemma.flows.handlers import Handlers


def one(state: Any, ctx: Any) -> None:
    return None


def two(state: Any, ctx: Any) -> None:
    return None


def test_what_is_not_here_is_looked_for_in_the_parent_and_then_among_the_defaults() -> None:
    parent = Handlers({"f": one, "g": one}, types={"llm_chat": one})
    handlers = Handlers(parent=parent)
    handlers.add("f", two)
    handlers.bind_default("llm_chat", two)
    handlers.bind_default("view", two)
    assert (handlers.function("f", "n"), handlers.function("g", "n")) == (two, one)
    assert (handlers.of_type("llm_chat", "n"), handlers.of_type("view", "n")) == (one, two)
    handlers.bind("llm_chat", two)
    assert handlers.of_type("llm_chat", "n") is two


def test_what_nobody_has_is_named_with_its_node_and_what_may_have_been_meant() -> None:
    handlers = Handlers({"triage.classify": one})
    with pytest.raises(NotFound, match=r"did you mean triage\.classify") as caught:
        handlers.function("triage.clasify", "node-1")
    assert (caught.value.node, caught.value.function) == ("node-1", "triage.clasify")
    with pytest.raises(NotFound, match="archive"):
        handlers.of_type("archive", "node-1")


def test_modules_are_imported_if_they_or_a_package_above_them_were_allowed() -> None:
    here = "tests.api.flows.test_handlers"
    with pytest.raises(Denied):
        Handlers(modules=["tests.api.flowsx", "os"]).function(f"{here}:one", "n")
    assert Handlers(modules=["tests.api"]).function(f"{here}:one", "n").__name__ == "one"
    assert Handlers(parent=Handlers(modules=[here])).function(f"{here}:one", "n").__name__ == "one"
    for name in (f"{here}:three", "tests.nowhere:one"):
        with pytest.raises(NotFound):
            Handlers(modules=["tests"]).function(name, "n")
    with pytest.raises(Invalid):
        Handlers(modules=["tests"]).function(f"{here}:pytest", "n")
    for wrong in ("", "a-b", "a..b", 5):
        with pytest.raises(Invalid):
            Handlers(modules=[wrong])  # type: ignore[list-item]


def test_a_flow_brings_its_functions_along() -> None:
    flow = Flow("hello")
    flow.step(one)
    handlers = Handlers()
    handlers.add_all(flow)
    assert handlers.function("hello.one", "n") is one
    with pytest.raises(Invalid):
        handlers.add("x", 5)  # type: ignore[arg-type]
