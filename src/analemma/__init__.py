"""Version control for live state.

>>> import analemma
>>> with analemma.open("sqlite:///:memory:") as store:  # or a directory, or postgresql://...
...     trip = store.workflow("trip", owner="ann")
...     saved = trip.save({"goal": "Seoul"})
...     trip.load()
{'goal': 'Seoul'}

`open` gives a `Store`: its workflows save, load and compare states, `flows` runs workflows, `contracts` and
`tenant()` make views, `archives` keeps workspaces, `payloads` keeps large fields out of messages, `gc` collects.
`analemma.aio` has the same as coroutines, `analemma.errors` all that is raised, `analemma.langgraph` a checkpointer for
LangGraph.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analemma import errors as errors
    from analemma.archives.archives import Archives as Archives
    from analemma.bag.bag import SmartStateBag as SmartStateBag
    from analemma.canon.nodes import BlockId as BlockId
    from analemma.canon.trees import Operation as Operation
    from analemma.canon.types import Tagged as Tagged
    from analemma.catalog.entities.deploys import DeployState as DeployState
    from analemma.catalog.port import BranchKey as BranchKey
    from analemma.catalog.port import Version as Version
    from analemma.contracts.contract_set import ContractSet as ContractSet
    from analemma.contracts.loading import load_contracts as load_contracts
    from analemma.contracts.problems import ContractProblems as ContractProblems
    from analemma.flows.building import Flow as Flow
    from analemma.flows.handlers import Result as Result
    from analemma.flows.loading import load_workflow as load_workflow
    from analemma.flows.problems import WorkflowProblems as WorkflowProblems
    from analemma.flows.runs import Run as Run
    from analemma.outbox.handlers import Event as Event
    from analemma.outbox.handlers import Settle as Settle
    from analemma.payloads.budget import FieldPolicy as FieldPolicy
    from analemma.payloads.hydrate import HydratedState as HydratedState
    from analemma.payloads.rings import RingPolicy as RingPolicy
    from analemma.pipeline.fanout_results import FanoutState as FanoutState
    from analemma.settings import Settings as Settings
    from analemma.sinks.batching import BatchingSink as BatchingSink
    from analemma.sinks.batching import Parcel as Parcel
    from analemma.sinks.port import SHIPPED as SHIPPED
    from analemma.sinks.port import STALE as STALE
    from analemma.sinks.port import Health as Health
    from analemma.sinks.port import Shipped as Shipped
    from analemma.sinks.port import Sink as Sink
    from analemma.sinks.port import SinkDocument as SinkDocument
    from analemma.sinks.port import refused as refused
    from analemma.sinks.port import retry as retry
    from analemma.sinks.registry import open_sink as open_sink
    from analemma.sinks.settings import SinkContext as SinkContext
    from analemma.sinks.settings import SinkSettings as SinkSettings
    from analemma.sinks.snapshot import read_snapshot as read_snapshot
    from analemma.slicing.entity_key import EntityKey as EntityKey
    from analemma.slicing.incremental import CompileMode as CompileMode
    from analemma.state.arguments import DeltaUpdate as DeltaUpdate
    from analemma.state.checkpoints import Ticket as Ticket
    from analemma.state.commits import Proposal as Proposal
    from analemma.state.kernel import Kernel as Kernel
    from analemma.state.merge.values import by_key as by_key
    from analemma.state.records import Commit as Commit
    from analemma.state.records import decode_receipt as decode_receipt
    from analemma.state.records import encode_receipt as encode_receipt
    from analemma.store.functions import lambda_handler as lambda_handler
    from analemma.store.functions import with_payloads as with_payloads
    from analemma.store.open import open as open
    from analemma.store.store import App as App
    from analemma.store.store import Stats as Stats
    from analemma.store.store import Store as Store
    from analemma.store.store import Tenant as Tenant
    from analemma.store.workflow import Workflow as Workflow
    from analemma.store.workflow import WorkflowTicket as WorkflowTicket
    from analemma.store.workflow import WorkflowVersion as WorkflowVersion

__version__ = "0.1.0"

# Names are loaded when first used: importing the package must stay cheap for programs that only catch its errors.
_PLACES: dict[str, tuple[str, ...]] = {
    "analemma.store.open": ("open",),
    "analemma.store.store": ("App", "Stats", "Store", "Tenant"),
    "analemma.archives.archives": ("Archives",),
    "analemma.payloads.budget": ("FieldPolicy",),
    "analemma.payloads.hydrate": ("HydratedState",),
    "analemma.payloads.rings": ("RingPolicy",),
    "analemma.bag.bag": ("SmartStateBag",),
    "analemma.canon.nodes": ("BlockId",),
    "analemma.canon.trees": ("Operation",),
    "analemma.canon.types": ("Tagged",),
    "analemma.catalog.entities.deploys": ("DeployState",),
    "analemma.catalog.port": ("BranchKey", "Version"),
    "analemma.contracts.contract_set": ("ContractSet",),
    "analemma.contracts.loading": ("load_contracts",),
    "analemma.contracts.problems": ("ContractProblems",),
    "analemma.flows.building": ("Flow",),
    "analemma.flows.handlers": ("Result",),
    "analemma.flows.loading": ("load_workflow",),
    "analemma.flows.problems": ("WorkflowProblems",),
    "analemma.flows.runs": ("Run",),
    "analemma.outbox.handlers": ("Event", "Settle"),
    "analemma.store.functions": ("lambda_handler", "with_payloads"),
    "analemma.pipeline.fanout_results": ("FanoutState",),
    "analemma.settings": ("Settings",),
    "analemma.sinks.batching": ("BatchingSink", "Parcel"),
    "analemma.sinks.port": ("Health", "SHIPPED", "STALE", "Shipped", "Sink", "SinkDocument", "refused", "retry"),
    "analemma.sinks.registry": ("open_sink",),
    "analemma.sinks.settings": ("SinkContext", "SinkSettings"),
    "analemma.sinks.snapshot": ("read_snapshot",),
    "analemma.slicing.entity_key": ("EntityKey",),
    "analemma.slicing.incremental": ("CompileMode",),
    "analemma.state.commits": ("Proposal",),
    "analemma.state.arguments": ("DeltaUpdate",),
    "analemma.state.kernel": ("Kernel",),
    "analemma.state.merge.values": ("by_key",),
    "analemma.state.records": ("Commit", "decode_receipt", "encode_receipt"),
    "analemma.state.checkpoints": ("Ticket",),
    "analemma.store.workflow": ("Workflow", "WorkflowTicket", "WorkflowVersion"),
}
_MODULES = ("aio", "errors")

__all__ = sorted({"errors", *(name for names in _PLACES.values() for name in names)})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"analemma.{name}")
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'analemma' has no attribute {name!r}")


def __dir__() -> list[str]:
    # For completion and help(), which would not find what nobody has used yet.
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
