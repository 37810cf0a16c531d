"""What callers get to see of a run: plain values with ids as text."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from analemma.catalog.runs.runs import RunRow, SegmentRow, SegmentStatus, Status
from analemma.clock import moment
from analemma.errors import AnalemmaError, OutcomeUnknown

HUMAN: Final = "human"
EFFECT: Final = "effect"
RETRY: Final = "retry"
SUBFLOW: Final = "subflow"
LONGEST_MESSAGE: Final = 2000
FIND_OUT: Final = (
    "find out, and resume the run with unknown='happened' or unknown='did not'; or let on_unknown be ask, and resume: "
    "the run then waits for somebody who knows"
)
"""The hint of an error behind which an effect stands that nobody knows of."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a run waits for."""

    kind: str
    """human: a step of the document. effect: whether something happened that nobody knows of. retry: time. subflow: the
    end of another run."""
    segment: str
    node: str
    choices: tuple[str, ...] = ()
    prompt: str | None = None
    default: str | None = None
    effect: str | None = None
    attempt: int = 0
    child: str | None = None
    """The run that has to end."""
    counted_us: int | None = None
    """From when a subflow's time counts, if not from its beginning, because it was tried again or its parent resumed:
    microseconds, as the database tells time."""
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    """When the default is chosen, or the run fails."""

    def to_text(self) -> str:
        """As it is kept; when, the row says."""
        kept = {
            "kind": self.kind,
            "segment": self.segment,
            "node": self.node,
            "choices": list(self.choices) or None,
            "prompt": self.prompt,
            "default": self.default,
            "effect": self.effect,
            "attempt": self.attempt or None,
            "child": self.child,
            "counted_us": self.counted_us,
        }
        return _text({key: value for key, value in kept.items() if value is not None})


def read_waiting(row: RunRow) -> Waiting | None:
    """What a run waits for, if for anything."""
    if row.waiting is None:
        return None
    kept = json.loads(row.waiting)
    return Waiting(
        **{**kept, "choices": tuple(kept.get("choices", ()))},
        since=moment(row.updated_at_us),
        until=None if row.due_at_us is None else moment(row.due_at_us),
    )


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run failed."""

    kind: str
    """That of an AnalemmaError, or `error`."""
    type: str
    message: str
    hint: str | None = None
    segment: str | None = None
    node: str | None = None
    attempts: int | None = None
    effect: str | None = None
    """What was begun, and nobody knows whether it happened: `resume` is told, as `unknown`."""

    def to_text(self) -> str:
        """As it is kept."""
        kept = {name: getattr(self, name) for name in self.__slots__}
        return _text({key: value for key, value in kept.items() if value is not None})


def error_of(
    error: BaseException,
    segment: str | None = None,
    node: str | None = None,
    attempts: int | None = None,
    effect: str | None = None,
) -> RunError:
    """An error as it is kept. `effect` was begun by what failed, and nobody knows whether it happened."""
    hint = FIND_OUT if effect is not None else error.hint if isinstance(error, AnalemmaError) else None
    if effect is None and isinstance(error, OutcomeUnknown):
        effect = error.facts.get("effect_key")
    return RunError(
        kind=error.kind if isinstance(error, AnalemmaError) else "error",
        type=type(error).__name__,
        message=_storable(said(error)),
        hint=_storable(hint) if isinstance(hint, str) and hint else None,
        segment=segment,
        node=node,
        attempts=attempts,
        effect=effect,
    )


def said(error: BaseException) -> str:
    """What an error says; its name, if that is nothing, or cannot even be asked for."""
    try:
        if isinstance(error, AnalemmaError):
            text = error.message
        else:
            # Of a key that is not there, Python says the key and nothing else.
            text = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
    except Exception:
        text = ""
    return text if isinstance(text, str) and text else type(error).__name__


def read_error(text: str | None) -> RunError | None:
    """The other way round."""
    return None if text is None else RunError(**json.loads(text))


@dataclass(frozen=True, slots=True)
class RunSegment:
    """One execution of one segment."""

    seq: int
    """Its place among all that the run executed, from 0."""
    segment_id: str
    segment: int
    """Its place in the plan, from 0; what versions carry as their segment."""
    iteration: int
    status: SegmentStatus
    input_manifest_id: str
    output_manifest_id: str
    """The same, if nothing was changed."""
    attempts: int
    error: RunError | None
    started_at: dt.datetime
    ended_at: dt.datetime
    incarnation: int


def segment_of_row(row: SegmentRow) -> RunSegment:
    """The caller's view of a row."""
    return RunSegment(
        row.seq,
        row.segment,
        row.place,
        row.iteration,
        row.status,
        row.input.hex(),
        row.output.hex(),
        row.attempts,
        read_error(row.error),
        moment(row.started_at_us),
        moment(row.ended_at_us),
        row.incarnation,
    )


@dataclass(frozen=True)
class Run:
    """A run as it was when it was looked at. `state` and `segments` are read when they are first asked for."""

    execution_id: str
    workflow_id: str
    owner_id: str
    branch: str
    name: str
    """What its document calls itself."""
    document: str
    """The hash of that."""
    status: Status
    incarnation: int
    manifest_id: str
    """The version that it stands on."""
    born_manifest_id: str
    segment_id: str | None
    """The segment that runs next; None: it is complete."""
    executed: int
    """How many segments it has executed."""
    waiting: Waiting | None
    error: RunError | None
    holder: str | None
    queue: str
    priority: int
    idempotency_key: str | None
    parent: str | None
    """The run that began it as a subflow."""
    created_at: dt.datetime
    updated_at: dt.datetime
    ended_at: dt.datetime | None
    number: int = field(repr=False)
    """Grows with every run; what pages of `runs` go by."""
    _load_state: Callable[[], dict[str, Any]] = field(repr=False, compare=False)
    _load_segments: Callable[[], tuple[RunSegment, ...]] = field(repr=False, compare=False)

    @cached_property
    def state(self) -> dict[str, Any]:
        """The state of the version that it stands on."""
        return self._load_state()

    @cached_property
    def segments(self) -> tuple[RunSegment, ...]:
        """What it executed, in order."""
        return self._load_segments()

    def to_value(self) -> dict[str, Any]:
        """As JSON, without state and segments."""
        return {
            "execution_id": self.execution_id,
            "workflow_id": self.workflow_id,
            "owner_id": self.owner_id,
            "branch": self.branch,
            "name": self.name,
            "document": self.document,
            "status": self.status,
            "incarnation": self.incarnation,
            "manifest_id": self.manifest_id,
            "segment_id": self.segment_id,
            "executed": self.executed,
            "waiting": _value(self.waiting),
            "error": _value(self.error),
            "queue": self.queue,
            "priority": self.priority,
            "idempotency_key": self.idempotency_key,
            "parent": self.parent,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
            "ended_at": None if self.ended_at is None else self.ended_at.isoformat(),
        }


def run_of_row(
    row: RunRow,
    load_state: Callable[[], dict[str, Any]],
    load_segments: Callable[[], tuple[RunSegment, ...]],
) -> Run:
    """The caller's view of a row."""
    position = json.loads(row.position)
    return Run(
        execution_id=row.execution,
        workflow_id=row.workflow,
        owner_id=row.owner,
        branch=row.branch,
        name=row.name,
        document=row.document.hex(),
        status=row.status,
        incarnation=row.incarnation,
        manifest_id=row.head.hex(),
        born_manifest_id=row.born.hex(),
        segment_id=position["at"],
        executed=position["executed"],
        waiting=read_waiting(row),
        error=read_error(row.error),
        holder=row.holder,
        queue=row.queue,
        priority=row.priority,
        idempotency_key=row.idempotency_key,
        parent=json.loads(row.options).get("parent", {}).get("execution_id") if row.parent is not None else None,
        created_at=moment(row.created_at_us),
        updated_at=moment(row.updated_at_us),
        ended_at=None if row.ended_at_us is None else moment(row.ended_at_us),
        number=row.number,
        _load_state=load_state,
        _load_segments=load_segments,
    )


def _value(part: Any) -> Any:
    if part is None:
        return None
    named: Mapping[str, Any] = {name: getattr(part, name) for name in part.__slots__}
    return {
        name: each.isoformat() if isinstance(each, dt.datetime) else each
        for name, each in named.items()
        if each not in (None, (), 0)
    }


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _storable(text: str) -> str:
    """Whatever an error says, as text that every database takes."""
    shown = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return shown if len(shown) <= LONGEST_MESSAGE else f"{shown[:LONGEST_MESSAGE]}..."
