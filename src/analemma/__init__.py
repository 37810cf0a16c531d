"""Version control for live state.

>>> import analemma
>>> app = analemma.open("sqlite:///:memory:")
>>> app.stats().blocks
0
>>> app.close()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analemma.app import App as App
    from analemma.app import Stats as Stats
    from analemma.app import Tenant as Tenant
    from analemma.app import open_app as open
    from analemma.canon.tree import Operation as Operation
    from analemma.catalog.port import BranchKey as BranchKey
    from analemma.settings import Settings as Settings
    from analemma.state.committer import Proposal as Proposal

__version__ = "0.1.0"

# Names are loaded when first used: importing the package must stay cheap for programs that only catch its errors.
_PLACES = {
    "App": ("analemma.app", "App"),
    "BranchKey": ("analemma.catalog.port", "BranchKey"),
    "Operation": ("analemma.canon.tree", "Operation"),
    "Proposal": ("analemma.state.committer", "Proposal"),
    "Settings": ("analemma.settings", "Settings"),
    "Stats": ("analemma.app", "Stats"),
    "Tenant": ("analemma.app", "Tenant"),
    "open": ("analemma.app", "open_app"),
}

__all__ = ["App", "BranchKey", "Operation", "Proposal", "Settings", "Stats", "Tenant", "errors", "open"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        module, attribute = _PLACES[name]
        return getattr(importlib.import_module(module), attribute)
    if name == "errors":
        return importlib.import_module("analemma.errors")
    raise AttributeError(f"module 'analemma' has no attribute {name!r}")
