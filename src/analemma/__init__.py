"""Version control for live state.

>>> import analemma
>>> with analemma.open("sqlite:///:memory:") as app:  # or a directory, or postgresql://...
...     saved = app.kernel.save_state_delta({"goal": "Seoul"}, workflow_id="trip", owner_id="ann")
...     app.kernel.load_latest_state(workflow_id="trip", owner_id="ann")
{'goal': 'Seoul'}

`open` gives an `App`: its `kernel` saves, loads and compares states, `flows` runs workflows, `contracts` and `tenant()`
make views, `archives` keeps workspaces, `payloads` keeps large fields out of messages, `gc` collects. `analemma.aio`
has the same as coroutines, `analemma.errors` all that is raised, `analemma.langgraph` a checkpointer for LangGraph.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analemma import errors as errors
    from analemma.app import App as App
    from analemma.app import Stats as Stats
    from analemma.app import Tenant as Tenant
    from analemma.app import open_app as open
    from analemma.bag.hydration import HydratedState as HydratedState
    from analemma.bag.state_bag import SmartStateBag as SmartStateBag
    from analemma.canon.tree import Operation as Operation
    from analemma.catalog.port import BranchKey as BranchKey
    from analemma.flows.building import Flow as Flow
    from analemma.payload_functions import lambda_handler as lambda_handler
    from analemma.payload_functions import with_payloads as with_payloads
    from analemma.settings import Settings as Settings
    from analemma.state.committer import Proposal as Proposal
    from analemma.state.merge_strategies import by_key as by_key
    from analemma.state.tickets import Ticket as Ticket

__version__ = "0.1.0"

# Names are loaded when first used: importing the package must stay cheap for programs that only catch its errors.
_PLACES = {
    "App": ("analemma.app", "App"),
    "BranchKey": ("analemma.catalog.port", "BranchKey"),
    "Flow": ("analemma.flows.building", "Flow"),
    "HydratedState": ("analemma.bag.hydration", "HydratedState"),
    "Operation": ("analemma.canon.tree", "Operation"),
    "Proposal": ("analemma.state.committer", "Proposal"),
    "Settings": ("analemma.settings", "Settings"),
    "SmartStateBag": ("analemma.bag.state_bag", "SmartStateBag"),
    "Stats": ("analemma.app", "Stats"),
    "Tenant": ("analemma.app", "Tenant"),
    "Ticket": ("analemma.state.tickets", "Ticket"),
    "by_key": ("analemma.state.merge_strategies", "by_key"),
    "lambda_handler": ("analemma.payload_functions", "lambda_handler"),
    "open": ("analemma.app", "open_app"),
    "with_payloads": ("analemma.payload_functions", "with_payloads"),
}

_MODULES = ("aio", "errors")

__all__ = [
    "App",
    "BranchKey",
    "Flow",
    "HydratedState",
    "Operation",
    "Proposal",
    "Settings",
    "SmartStateBag",
    "Stats",
    "Tenant",
    "Ticket",
    "by_key",
    "errors",
    "lambda_handler",
    "open",
    "with_payloads",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        module, attribute = _PLACES[name]
        return getattr(importlib.import_module(module), attribute)
    if name in _MODULES:
        return importlib.import_module(f"analemma.{name}")
    raise AttributeError(f"module 'analemma' has no attribute {name!r}")


def __dir__() -> list[str]:
    # For completion and help(), which would not find what nobody has used yet.
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
