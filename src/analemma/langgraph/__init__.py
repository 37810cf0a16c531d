"""LangGraph on Analemma: `AnalemmaSaver` keeps the checkpoints of threads, `AnalemmaStore` their long-term memory, and
`migrate_threads` copies the threads of LangGraph's own savers.

Needs the extra `langgraph`, which is asked for when one of them is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from analemma.errors import Unavailable

if TYPE_CHECKING:
    from analemma.langgraph.migrate import migrate_threads as migrate_threads
    from analemma.langgraph.saver import AnalemmaSaver as AnalemmaSaver
    from analemma.langgraph.saver import CheckpointSummary as CheckpointSummary
    from analemma.langgraph.store import AnalemmaStore as AnalemmaStore

_MODULES = {
    "AnalemmaSaver": "analemma.langgraph.saver",
    "CheckpointSummary": "analemma.langgraph.saver",
    "AnalemmaStore": "analemma.langgraph.store",
    "migrate_threads": "analemma.langgraph.migrate",
}

__all__ = ["AnalemmaSaver", "AnalemmaStore", "CheckpointSummary", "migrate_threads"]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "analemma":
            raise
        raise Unavailable(
            f"{name} needs the package {exc.name!r}, which is not installed",
            hint="pip install 'analemma[langgraph]'",
        ) from exc


def __dir__() -> list[str]:
    return sorted(__all__)
