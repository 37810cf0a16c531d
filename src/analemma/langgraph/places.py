"""Where a checkpoint stands: a thread is a workflow, and each of its namespaces is one of that workflow's branches."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from analemma.catalog.names import KEY_BYTES
from analemma.errors import Invalid

MAIN = "main"
NAMED = "ns:"
HASHED = "ns#"
"""Of a namespace that is too long to name a branch, the branch has the hash. No namespace gives both."""


class Place(NamedTuple):
    """One namespace of one thread."""

    thread: str
    namespace: str
    branch: str


def place_of(config: Mapping[str, Any]) -> Place:
    """The place that a config names; Invalid if it names none."""
    configurable = config.get("configurable") or {}
    if configurable.get("thread_id") is None:
        raise Invalid("the config names no thread", hint='pass {"configurable": {"thread_id": "..."}}')
    namespace = str(configurable.get("checkpoint_ns") or "")
    return Place(str(configurable["thread_id"]), namespace, branch_of(namespace))


def checkpoint_of(config: Mapping[str, Any] | None) -> str | None:
    """The checkpoint that a config names, if it does."""
    configurable = (config or {}).get("configurable") or {}
    checkpoint = configurable.get("checkpoint_id")
    return str(checkpoint) if checkpoint else None


def config_of(thread: str, namespace: str, checkpoint: str) -> dict[str, Any]:
    """The config of one checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}


def branch_of(namespace: str) -> str:
    """The branch that stands for a namespace."""
    if not namespace:
        return MAIN
    encoded = namespace.encode(errors="surrogatepass")
    if len(encoded) + len(NAMED) > KEY_BYTES:
        return HASHED + sha256(encoded).hexdigest()
    return NAMED + namespace
