"""What callers pass, which is hostile until it has been here, and how they are told of it: names, texts, deltas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from analemma.canon.pointer import Operation, Path, format_pointer, parse_pointer
from analemma.catalog.kernel.versions import ExpiredRow
from analemma.catalog.names import check_part, check_texts
from analemma.catalog.port import ASIDE, BranchKey, Verdict, owner_of
from analemma.errors import Conflict, Expired, Invalid

MAIN = "main"
WHY = "why"
"""The key of a version's metadata that says where the version comes from."""
LONGEST_MESSAGE = 65_536
TEXT_LIMIT = 10_000
"""Longest message or reason of a record: the journal is kept for ever and read from the beginning."""


RESERVED_PREFIX = "_kernel_"
RESERVED_FIELDS = frozenset(
    {
        # What names and proves the version that is running.
        "manifest_id",
        "manifest_hash",
        "config_hash",
        # The control plane: identity, places, counters and modes of an execution.
        "ownerId",
        "workflowId",
        "idempotency_key",
        "execution_id",
        "workflow_config_s3_path",
        "state_s3_path",
        "partition_map_s3_path",
        "segment_manifest_s3_path",
        "final_state_s3_path",
        "segment_to_run",
        "total_segments",
        "loop_counter",
        "max_loop_iterations",
        "max_branch_iterations",
        "distributed_strategy",
        "distributed_mode",
        "MOCK_MODE",
        "light_config",
    }
)
"""Fields of a state that belong to whoever runs the workflow: the other side of a merge cannot overwrite them."""


class CurrentHead:
    """Stands for "whatever is newest" where a caller could name a predecessor or None."""

    def __repr__(self) -> str:
        return "<current head>"


CURRENT_HEAD = CurrentHead()


def branch_key(owner_id: str, workflow_id: str, branch: str) -> BranchKey:
    """The key of a branch; Invalid unless every part can name something."""
    try:
        return _checked_key(owner_id, workflow_id, branch)
    except TypeError:
        # Not even hashable, so certainly no name.
        return _checked_key.__wrapped__(owner_id, workflow_id, branch)


@lru_cache(maxsize=1024, typed=True)
def _checked_key(owner_id: str, workflow_id: str, branch: str) -> BranchKey:
    return BranchKey(check_name(owner_id, "owner"), check_name(workflow_id, "workflow"), check_name(branch, "branch"))


def check_name(text: Any, what: str) -> str:
    """A short, non-empty text that can be part of a key."""
    check_unicode(text, what)
    check_part(text, what)
    if text.startswith(ASIDE):  # guard: deleted.reserved
        raise Invalid(f"the {what} {text!r} is reserved for what is deleted", hint="choose another name")
    return str(text)


def check_said(execution: Any, segment: Any, message: Any, idempotency_key: Any) -> None:
    """Raise Invalid unless this can be said of a version, and the key can be that of a request; None says nothing."""
    if execution is not None:
        check_name(execution, "execution")
    if segment is not None:
        check_segment(segment)
    if message is not None:
        check_unicode(message, "message")
        check_text(message, "message", LONGEST_MESSAGE)
    if idempotency_key is not None:
        check_name(idempotency_key, "idempotency key")


def explained(metadata: Mapping[str, Any] | None, why: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What is to be kept beside a version, as a dict of its own: the caller's, and where the version comes from."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise Invalid(f"the metadata is of type {type(metadata).__name__}", hint="pass a dict")
    if metadata is not None and WHY in metadata:
        raise Invalid(f"the metadata has a key {WHY!r}, which is reserved", hint="pass why=... instead")
    if why is None:
        return None if metadata is None else dict(metadata)
    if not isinstance(why, Mapping) or not why or not all(isinstance(name, str) for name in why):
        raise Invalid("`why` is no dict of named facts", hint="such as why={'model': 'm-1', 'reason': 'asked for'}")
    return {**(metadata or {}), WHY: dict(why)}


# What a revision means besides a branch.
_OTHER_REVISION = re.compile(r"[0-9]+|[0-9a-f]{64}|HEAD|.*[@~].*", re.DOTALL)


def is_other_revision(name: str) -> bool:
    """Whether the name of a branch would be taken for something else where a version is named."""
    return _OTHER_REVISION.fullmatch(name) is not None


def check_new_branch(name: str) -> None:
    """Raise Invalid for such a name, of a branch that is new: those that there are keep theirs."""
    if is_other_revision(name):
        raise Invalid(
            f"not a name for a branch: {name!r}",
            hint="it would be taken for a version; use one that is no number, not HEAD, and has no '@' and no '~'",
        )


def check_segment(segment: Any) -> int:
    """An integer that every catalog can store."""
    if type(segment) is not int or not -(2**63) <= segment < 2**63:
        raise Invalid(f"not a segment id: {segment!r}", hint="a segment id is an integer")
    return segment


def check_version(version: Any) -> int:
    """A number that could be a version's."""
    if type(version) is not int or not 0 < version < 2**62:
        raise Invalid(f"not a version: {version!r}", hint="versions are counted from 1")
    return version


def check_verdict(decision: Any) -> None:
    """Raise Invalid unless it is something that can be decided."""
    if decision not in get_args(Verdict):
        raise Invalid(f"not a decision: {decision!r}", hint=f"use {', '.join(get_args(Verdict))}")


def check_unicode(text: Any, what: str) -> None:
    """Raise Invalid unless it is a string that can be encoded."""
    if type(text) is not str:
        raise Invalid(f"the {what} is of type {type(text).__name__}", hint="pass a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"the {what} is not valid Unicode", hint="remove the lone surrogate") from None


def check_text(text: str | None, what: str, limit: int = TEXT_LIMIT) -> None:
    """Raise Invalid unless every catalog and the journal can hold it."""
    if text is None:
        return
    check_texts((text,))
    size = len(text.encode())
    if size > limit:
        raise Invalid(f"the {what} is {size} bytes long", hint=f"the limit is {limit} bytes of UTF-8")


def expired(gone: ExpiredRow) -> Expired:
    """What whoever asks for a version that expired is told."""
    return Expired(
        f"version {gone.version} of {place(gone.key)} has expired",
        hint="tag or pin versions that must stay",
        manifest=gone.manifest.hex(),
        version=gone.version,
        expired_at_us=gone.expired_at_us,
    )


def field_path(name: str) -> Path:
    """A field's name, or a JSON pointer when it starts with a slash."""
    return parse_pointer(name) if name.startswith("/") else (name,)


def place(key: BranchKey) -> str:
    """A branch as messages name it."""
    return f"workflow {owner_of(key.owner)}/{key.workflow}" + ("" if key.branch == MAIN else f" on branch {key.branch}")


def other_request(key: str) -> Conflict:
    """What whoever uses an idempotency key again, for something else, is told."""
    return Conflict(
        f"the idempotency key {key!r} was used for another request",
        hint="use a new key for a new request",
        idempotency_key=key,
    )


@dataclass(frozen=True, slots=True)
class DeltaUpdate:
    """Changes in the order in which they happened."""

    operations: tuple[Operation, ...]

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """The top-level fields in which something is set, in order of first change."""
        return _fields(operation for operation in self.operations if not _deletes(operation))

    @property
    def deleted_fields(self) -> tuple[str, ...]:
        """The top-level fields that are deleted as a whole."""
        return _fields(operation for operation in self.operations if _deletes(operation) and len(operation.path) == 1)


def read_delta(delta: Mapping[str, Any] | DeltaUpdate, deleted: Iterable[str] = ()) -> DeltaUpdate:
    """The operations that a delta and a list of deletions ask for: first what is set, in order, then what is deleted,
    in order too, or of a set from the end.

    >>> [operation.path for operation in read_delta({"n": 1, "/plan/0/done": True}, ["scratch"]).operations]
    [('n',), ('plan', '0', 'done'), ('scratch',)]
    """
    if isinstance(deleted, str):
        raise Invalid("deleted is one string", hint="pass a list of names or pointers")
    gone = [_delta_path(name) for name in deleted]
    if isinstance(deleted, set | frozenset):
        # It has no order, or another one in each process: from the end, so that each position in a list is that of
        # before, and a request that is made again is the same.
        gone.sort(key=lambda path: [(len(token), token) for token in path], reverse=True)
    if isinstance(delta, DeltaUpdate):
        kept = delta.operations
    elif isinstance(delta, Mapping):
        kept = tuple(Operation("put", _delta_path(key), value) for key, value in delta.items())
    else:
        raise Invalid(f"a delta is a mapping, not a {type(delta).__name__}", hint="pass a dict of changed fields")
    deleted_paths = set(gone)
    # By the lengths that there are: many changes with many deletions would otherwise be compared each with each.
    lengths = {len(path) for path in deleted_paths}
    for operation in kept if lengths else ():
        if not _deletes(operation) and any(tuple(operation.path[:length]) in deleted_paths for length in lengths):
            pointer = format_pointer(operation.path)
            raise Invalid(f"{pointer} is both set and deleted", hint="leave one of the two out", pointer=pointer)
    return DeltaUpdate((*kept, *[Operation("discard", path) for path in gone]))


def _delta_path(name: Any) -> Path:
    if type(name) is not str:
        raise Invalid(f"a delta has a key of type {type(name).__name__}", hint="keys are field names or JSON pointers")
    return field_path(name)


def _deletes(operation: Operation) -> bool:
    return operation.op in ("remove", "discard")


def _fields(operations: Iterable[Operation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(operation.path[0] for operation in operations if operation.path))


def is_reserved(field: str) -> bool:
    """Whether a top-level field is reserved."""
    return field in RESERVED_FIELDS or field.startswith(RESERVED_PREFIX)
