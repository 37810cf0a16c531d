"""The handlers that every program has, made of its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from analemma.clock import Clock, Entropy
from analemma.flows.context import NodeContext
from analemma.flows.handlers import Handler, Handlers
from analemma.settings import Settings

if TYPE_CHECKING:
    from analemma.archives.archives import Archives
    from analemma.pipeline.querying import QueryViewWorkflow
    from analemma.pipeline.tenant_pipeline import TenantPipeline


class Verbs(Protocol):
    """What a tenant has that nodes use. None of it is made before a node needs it."""

    @property
    def name(self) -> str: ...

    @property
    def pipeline(self) -> TenantPipeline: ...

    @property
    def views(self) -> QueryViewWorkflow: ...

    @property
    def archives(self) -> Archives: ...


def bind_standard_types(
    handlers: Handlers, tenant: Verbs, settings: Settings, *, clock: Clock, entropy: Entropy
) -> None:
    """Say what nodes of every type do that calls no function of the program."""
    made = _Made(handlers, tenant, settings, clock, entropy)
    for node_type in ("llm_chat", "http_request", "code_interpreter", "ingest", "view", "archive"):
        handlers.bind_default(node_type, _Late(made, node_type))


class _Late:
    """A handler that is made when it is first called: most programs need few of them."""

    def __init__(self, made: _Made, node_type: str) -> None:
        self._made = made
        self._type = node_type

    def __call__(self, state: Any, ctx: NodeContext) -> Any:
        return self._made.handler(self._type)(state, ctx)


class _Made:
    """The handlers that were needed so far."""

    def __init__(self, handlers: Handlers, tenant: Verbs, settings: Settings, clock: Clock, entropy: Entropy) -> None:
        self._handlers = handlers
        self._tenant = tenant
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._made: dict[str, Handler] = {}

    def handler(self, node_type: str) -> Handler:
        found = self._made.get(node_type)
        if found is None:
            # Two threads may make one each: they are alike.
            found = self._made[node_type] = self._make(node_type)
        return found

    def _make(self, node_type: str) -> Handler:
        settings = self._settings
        match node_type:
            case "llm_chat":
                from analemma.flows.node_types.llm_chat import LlmChat

                return LlmChat(
                    **self._outside(),
                    function=self._handlers.function,
                    clock=self._clock,
                    chance=Random(int.from_bytes(self._entropy.random_bytes(8), "big")),
                    retries=settings.llm_retries,
                )
            case "http_request":
                from analemma.flows.node_types.http_request import HttpRequest

                return HttpRequest(**self._outside())
            case "code_interpreter":
                from analemma.flows.node_types.code_interpreter import CodeInterpreter

                return CodeInterpreter(
                    isolation=settings.code_isolation,
                    network=settings.code_network,
                    python=settings.code_python,
                    clock=self._clock,
                )
            case "ingest":
                from analemma.flows.node_types.entities import Ingest

                return Ingest(self._tenant.pipeline.ingest, self._tenant.name)
            case "view":
                from analemma.flows.node_types.entities import View

                return View(self._tenant.views)
        from analemma.flows.node_types.workspaces import Archive

        return Archive(self._tenant.archives)

    def _outside(self) -> Mapping[str, Any]:
        from analemma.flows.node_types.places import Places
        from analemma.flows.node_types.variables import read_variables
        from analemma.flows.node_types.web import Web

        settings = self._settings
        return {
            "web": Web(self._clock),
            "places": Places(settings.node_hosts),
            "variables": read_variables(settings.node_variables, lambda: os.environ),
            "read_s": settings.node_read_s,
        }
