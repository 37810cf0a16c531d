"""The states of a deploy, and which may follow which. Pure: whoever writes asks here first."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from analemma.errors import Conflict


class DeployState(StrEnum):
    """How far a deploy is."""

    QUEUED = "QUEUED"
    """The document is stored, and nobody has begun to compile it."""
    RUNNING = "RUNNING"
    """It is being compiled, or somebody died while he did and another goes on."""
    READY = "READY"
    """Its slices are there."""
    SINKING = "SINKING"
    """Sinks were asked to take it, and not all have answered."""
    DONE = "DONE"
    """All of them have, or none was to be asked."""
    FAILED = "FAILED"
    """It stopped, and goes on when somebody retries it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in (DeployState.DONE, DeployState.FAILED)

    @property
    def is_compiled(self) -> bool:
        """Whether the slices are there."""
        return self in (DeployState.READY, DeployState.SINKING, DeployState.DONE)


_Q, _RUN, _READY, _SINK, _DONE, _FAIL = DeployState

TRANSITIONS: Final[Mapping[DeployState, frozenset[DeployState]]] = MappingProxyType(
    {
        # A worker that dies again and again over one event fails the deploy before it has begun.
        _Q: frozenset({_RUN, _FAIL}),
        _RUN: frozenset({_READY, _FAIL}),
        _READY: frozenset({_SINK, _DONE}),
        _SINK: frozenset({_DONE, _FAIL}),
        _DONE: frozenset(),
        _FAIL: frozenset({_Q}),
    }
)
"""What may follow each state."""


def check_transition(before: DeployState, after: DeployState) -> None:
    """Raise Conflict unless the one state may follow the other."""
    if after not in TRANSITIONS[before]:
        raise Conflict(
            f"a deploy that is {before} does not become {after}",
            hint=_hint(before, after),
            state=before.value,
            wanted=after.value,
        )


def _hint(before: DeployState, after: DeployState) -> str:
    if after is DeployState.QUEUED:
        return "only a FAILED one is retried" if before is not DeployState.DONE else "it is done: deploy again"
    allowed = ", ".join(sorted(TRANSITIONS[before]))
    return f"it may become {allowed}" if allowed else "nothing follows DONE: deploy again"
