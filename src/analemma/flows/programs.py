"""Programs that bring functions along: modules with flows in them, by name."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from analemma.errors import Invalid, NotFound
from analemma.flows.building import Flow
from analemma.flows.document import Workflow
from analemma.flows.handlers import Handlers


def load_program(handlers: Handlers, module: str) -> list[Flow]:
    """Import a module (also from the current directory), register every flow and document in it, and allow
    documents to name what else is in it; the flows."""
    found = _imported(module)
    handlers.allow(module)
    flows = [each for each in vars(found).values() if isinstance(each, Flow)]
    for flow in flows:
        handlers.add_all(flow)
    for each in vars(found).values():
        if isinstance(each, Workflow):
            handlers.add_document(each)
    return flows


def find_flow(handlers: Handlers, text: str) -> Flow:
    """The flow that `module:name` names; with the module alone, the only one in it."""
    module, _, name = text.partition(":")
    flows = load_program(handlers, module)
    if name:
        found = getattr(_imported(module), name, None)
        if not isinstance(found, Flow):
            raise NotFound(f"{module} has no flow {name}", hint=f"it has {_flows_in(module) or 'none'}")
        return found
    if len(flows) != 1:
        hint = f"name one: {_flows_in(module)}" if flows else "name a module that has one"
        raise Invalid(f"{module} has {len(flows)} flows", hint=hint)
    return flows[0]


def _imported(module: str) -> ModuleType:
    if not all(part.isidentifier() for part in module.split(".")):
        raise Invalid(f"{module!r} names no module", hint="write package.module")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except ImportError as exc:
        raise NotFound(f"{module} cannot be imported: {exc}", hint="check the name, and where you are") from exc


def _flows_in(module: str) -> str:
    """What can be named there."""
    return ", ".join(f"{module}:{name}" for name, each in vars(_imported(module)).items() if isinstance(each, Flow))
