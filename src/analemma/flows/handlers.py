"""What nodes do: functions by the names that documents have for them, and handlers by node type."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from analemma.errors import Denied, Invalid, NotFound
from analemma.flows.context import NodeContext
from analemma.flows.document import Workflow

Handler = Callable[[Any, NodeContext], Any]
"""`(state, ctx) -> result`, def or async def. `state` is a bag with the fields that the node may see. The result is
None (what was done to the state counts), a mapping (fields, or JSON pointers, and what they become) or a `Result`."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a node came to, with what a mapping cannot say."""

    delta: Mapping[str, Any]
    deleted: tuple[str, ...] = ()
    """Fields, or JSON pointers, that are to go."""
    message: str | None = None
    """For the version's log."""


@runtime_checkable
class HasFunctions(Protocol):
    """Something that brings functions along: a `Flow`."""

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """By the names under which its document refers to them."""


@runtime_checkable
class HasDocument(Protocol):
    """Something that is a workflow, and may bring along others that it runs: a `Flow`."""

    name: str
    subflows: Mapping[str, Any]

    def workflow(self) -> Workflow:
        """The workflow, checked."""


class Handlers:
    """The functions and handlers of a program, and the documents that subflows run. Safe to share between threads.

    A name of the form `module:function` is imported, but only from modules that were allowed, or from inside of
    packages that were: otherwise whoever writes documents could run anything that is installed.

    >>> handlers = Handlers({"hello.greet": lambda state, ctx: {"greeting": "hello " + state["name"]}})
    >>> handlers.function("hello.greet", "greet") is handlers.function("hello.greet", "again")
    True
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        *,
        modules: Iterable[str] = (),
        types: Mapping[str, Handler] | None = None,
        parent: Handlers | None = None,
    ) -> None:
        """`types` are handlers by node type: llm_chat, http_request and the like. What is not here is looked for in
        `parent`."""
        self._lock = threading.Lock()
        self._parent = parent
        self._functions: dict[str, Callable[..., Any]] = {}
        self._modules: set[str] = set()
        self._types: dict[str, Handler] = dict(types or {})
        self._defaults: dict[str, Handler] = {}
        self._documents: dict[str, Callable[[], Workflow]] = {}
        for name, function in (functions or {}).items():
            self.add(name, function)
        for module in modules:
            self.allow(module)

    def add(self, name: str, function: Callable[..., Any]) -> None:
        """Register a function; in the place of one that had the name before."""
        if not callable(function):
            raise Invalid(f"{name} is of type {type(function).__name__}", hint="register a function")
        with self._lock:
            self._functions[name] = function

    def add_all(self, source: HasFunctions) -> None:
        """Register all functions of a flow, and its document, with those of the flows that it runs."""
        for name, function in source.functions.items():
            self.add(name, function)
        if not isinstance(source, HasDocument) or self._documents.get(source.name) == source.workflow:
            return
        with self._lock:
            self._documents[source.name] = source.workflow
        for each in source.subflows.values():
            self.add_all(each)

    def add_document(self, workflow: Workflow) -> None:
        """Let subflows run a workflow by its name; in the place of one that had it before."""
        with self._lock:
            self._documents[workflow.workflow] = lambda: workflow

    def allow(self, module: str) -> None:
        """Let names of the form `module:function` be imported from this module, or from anything inside of it."""
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise Invalid(f"{module!r} names no module", hint="write package.module")
        with self._lock:
            self._modules.add(module)

    def bind(self, node_type: str, handler: Handler) -> None:
        """Say what nodes of a type do; in the place of what they did before."""
        with self._lock:
            self._types[node_type] = handler

    def bind_default(self, node_type: str, handler: Handler) -> None:
        """Say what nodes of a type do if nobody says otherwise, here or in the parent."""
        with self._lock:
            self._defaults[node_type] = handler

    def function(self, name: str, node: str) -> Callable[..., Any]:
        """The function of this name; NotFound says for which node it is missing."""
        found = self._find(name)
        if found is not None:
            return found
        module, colon, place = name.partition(":")
        if not colon:
            close = get_close_matches(name, self._names(), n=1)
            known = f"did you mean {close[0]}?" if close else "register it before the run goes on"
            raise NotFound(f"node {node} calls {name}, which is not registered", hint=known, node=node, function=name)
        return self._imported(module, place, name, node)

    def document(self, name: str, node: str, pinned: str | None = None) -> Workflow:
        """The workflow of this name that a subflow runs; NotFound if there is none, or not the one that is `pinned`."""
        found = self._document(name)
        if found is None:
            raise NotFound(
                f"node {node} runs {name}, and there is no such document here",
                hint="register the flow or the document, and resume the run",
                node=node,
                workflow=name,
            )
        workflow = found()
        if pinned is not None and workflow.hash != pinned:
            raise NotFound(
                f"node {node} runs {name} as {pinned[:12]}, and here it is {workflow.hash[:12]}",
                hint="register the document of that hash, and resume the run",
                node=node,
                workflow=name,
            )
        return workflow

    def of_type(self, node_type: str, node: str) -> Handler:
        """The handler for nodes of a type."""
        found = self.bound(node_type) or self._defaults.get(node_type)
        if found is None:
            raise NotFound(
                f"nothing handles {node_type} nodes, as {node} is one",
                hint=f"bind a handler to {node_type}",
                node=node,
                type=node_type,
            )
        return found

    def bound(self, node_type: str) -> Handler | None:
        """What the program itself has bound to a type, here or in the parent."""
        found = self._types.get(node_type)
        return self._parent.bound(node_type) if found is None and self._parent is not None else found

    def _find(self, name: str) -> Callable[..., Any] | None:
        found = self._functions.get(name)
        return self._parent._find(name) if found is None and self._parent is not None else found

    def _document(self, name: str) -> Callable[[], Workflow] | None:
        found = self._documents.get(name)
        return self._parent._document(name) if found is None and self._parent is not None else found

    def _names(self) -> list[str]:
        return [*self._functions, *([] if self._parent is None else self._parent._names())]

    def _allowed(self) -> set[str]:
        return self._modules | (set() if self._parent is None else self._parent._allowed())

    def _imported(self, module: str, place: str, name: str, node: str) -> Callable[..., Any]:
        parts = module.split(".")
        above = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        if not above & self._allowed():
            raise Denied(
                f"node {node} calls {name}, from a module that was not allowed",
                hint=f"allow {module}, if the document may run what is in it",
                node=node,
                function=name,
            )
        try:
            found: Any = import_module(module)
            for part in place.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as exc:
            raise NotFound(
                f"node {node} calls {name}, which cannot be imported: {exc}",
                hint="install the version of the program that has it",
                node=node,
                function=name,
            ) from exc
        if not callable(found):
            raise Invalid(
                f"node {node} calls {name}, which is of type {type(found).__name__}",
                hint="name a function",
                node=node,
                function=name,
            )
        self.add(name, found)
        return found  # type: ignore[no-any-return]
