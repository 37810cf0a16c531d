"""The forms in a payload that are not the user's: pointers, and the note that says whose payload it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analemma.canon.nodes import BlockId
from analemma.catalog.kernel.payloads import LEASE_ID_BYTES, LeaseId, PayloadLease
from analemma.errors import Denied, Invalid
from analemma.payloads.json import POINTER_KEY, field_bytes, text_bytes

PAYLOAD_KEY = "__payload__"
"""The field of a payload that is not the user's. A user's field of this name is left in the store."""
POINTER_VERSION = 1
PAYLOAD_VERSION = 1
LARGEST_SIZE = 2**63 - 1
LONGEST_FIELD_NAME = 512
"""In bytes, for a field with a pointer of its own: the name stands in the lease's row."""
SIZE_DIGITS = 13
"""What a plan reserves for `size_bytes`: more than ten terabytes."""

_HASH = re.compile(r"[0-9a-f]{64}")
_LEASE = re.compile(r"[0-9a-f]{32}")
_POINTER_KEYS = dict.fromkeys((POINTER_KEY, "hash", "size_bytes", "field_name", "lease"))
_NOTE_KEYS = {"version", "owner_id", "workflow_id", "execution_id"}
_DELTA_KEYS = {"delta", "deleted", "base"}
_NOTE_MORE = {"segment_id", "overflow", "state", *_DELTA_KEYS}
_STATE = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A small stand-in for a value in the store. It gives access only together with its lease."""

    hash: BlockId
    size_bytes: int
    field_name: str | None
    """None: it stands for several fields together."""
    lease: LeaseId

    def to_json(self) -> dict[str, Any]:
        """As it stands in a payload."""
        return {
            POINTER_KEY: POINTER_VERSION,
            "hash": self.hash.hex(),
            "size_bytes": self.size_bytes,
            "field_name": self.field_name,
            "lease": self.lease.hex(),
        }

    def check(self, lease: PayloadLease | None, owner_id: str | None, workflow_id: str | None) -> None:
        """Raise Denied unless the lease is live, of this owner and workflow, and says the same as the pointer."""
        if (
            lease is None
            or lease.root != self.hash  # guard: pointer.root
            or lease.size != self.size_bytes
            or lease.field != self.field_name
            or owner_id not in (None, lease.owner)  # guard: pointer.owner
            or workflow_id not in (None, lease.workflow)  # guard: pointer.workflow
        ):
            # One answer for all of it: whoever guesses learns nothing about what exists.
            raise Denied(
                f"the pointer {shown(self.field_name)} does not belong to this workflow",
                hint="pass pointers on as they came, to the workflow they were made for",
                field=self.field_name,
            )
        if lease.released_at_us is not None:  # guard: pointer.released
            raise Denied(
                f"the pointer {shown(self.field_name)} was released: its execution has ended",
                hint="load the state from its workflow",
                field=self.field_name,
            )


def is_pointer(value: Any) -> bool:
    """Whether a field's value in a payload claims to be a pointer."""
    return isinstance(value, dict) and POINTER_KEY in value


def parse_pointer_form(value: Any, place: str | None) -> Pointer:
    """The pointer that stands at a field, or (None) in the note; Invalid if it is not one that we write, Denied if it
    was made for another field."""
    if type(value) is not dict or value.keys() != _POINTER_KEYS.keys():
        raise _malformed(place, "does not have exactly the keys of a pointer")
    version, hash_, size, field, lease = [value[key] for key in _POINTER_KEYS]
    is_right = {
        f"is of version {_short(version)}, and this program reads version {POINTER_VERSION}": (
            type(version) is int and version == POINTER_VERSION
        ),
        "has no hash of 64 hexadecimal digits": _matches(_HASH, hash_),
        "has no lease of 32 hexadecimal digits": _matches(_LEASE, lease),
        "has no size": type(size) is int and 0 <= size <= LARGEST_SIZE,
        "has no field name": field is None or type(field) is str,
    }
    for wrong in [what for what, right in is_right.items() if not right]:
        raise _malformed(place, wrong)
    if field != place:
        raise Denied(f"the pointer {shown(place)} was made for another field", hint="pass pointers on as they came")
    return Pointer(BlockId(bytes.fromhex(hash_)), size, field, LeaseId(bytes.fromhex(lease)))


@dataclass(frozen=True, slots=True)
class Note:
    """What a payload says of itself, at `__payload__`."""

    owner_id: str
    workflow_id: str
    execution_id: str
    segment_id: int | None = None
    overflow: Pointer | None = None
    """Fields that would not fit even as pointers, together in one tree."""
    state: str | None = None
    """What tells this state from others: random, or the version that it is the state of."""
    base: str | None = None
    """The state that a delta was made from; None: the payload is no delta."""
    deleted: tuple[str, ...] | Pointer = ()
    """Fields that a delta takes away; a pointer to their names when they are many."""

    @property
    def delta(self) -> bool:
        """Whether the payload has only the fields that changed."""
        return self.base is not None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a payload."""
        deleted = self.deleted.to_json() if isinstance(self.deleted, Pointer) else list(self.deleted)
        made = {
            "version": PAYLOAD_VERSION,
            "owner_id": self.owner_id,
            "workflow_id": self.workflow_id,
            "execution_id": self.execution_id,
            "segment_id": self.segment_id,
            "overflow": None if self.overflow is None else self.overflow.to_json(),
            "state": self.state,
            **({"delta": True, "base": self.base, "deleted": deleted} if self.delta else {}),
        }
        return {key: said for key, said in made.items() if said is not None}


def parse_note(value: Any) -> Note:
    """What stands at `__payload__`; Invalid if we do not write it like that."""
    if type(value) is not dict or not set(value) >= _NOTE_KEYS or not set(value) <= _NOTE_KEYS | _NOTE_MORE:
        raise _bad_note("does not have the keys that it should")
    if type(value["version"]) is not int or value["version"] != PAYLOAD_VERSION:
        version = _short(value["version"])
        raise _bad_note(f"is of version {version}, and this program reads version {PAYLOAD_VERSION}")
    names = [value[key] for key in ("owner_id", "workflow_id", "execution_id")]
    segment, deleted = value.get("segment_id"), value.get("deleted", [])
    is_right = {
        "does not say whose it is": all(type(name) is str and name for name in names),
        "has a segment that is no number": segment is None or type(segment) is int,
        "is half a delta": value.get("delta", True) is True and len(_DELTA_KEYS & set(value)) in (0, 3),
        "has a state that names no state": "state" not in value or _matches(_STATE, value["state"]),
        "has a base that names no state": "base" not in value or _matches(_STATE, value["base"]),
    }
    for wrong in [what for what, right in is_right.items() if not right]:
        raise _bad_note(wrong)
    overflow = parse_pointer_form(value["overflow"], None) if "overflow" in value else None
    gone = parse_pointer_form(deleted, None) if is_pointer(deleted) else check_names(deleted)
    return Note(names[0], names[1], names[2], segment, overflow, value.get("state"), value.get("base"), gone)


def check_names(value: Any) -> tuple[str, ...]:
    """A list of field names, as a delta has it of those that it deletes."""
    if type(value) is not list or not all(type(name) is str for name in value):
        raise _bad_note("has deletions that are no list of names")
    return tuple(value)


ROOM = Pointer(BlockId(bytes(32)), 10**SIZE_DIGITS - 1, None, LeaseId(bytes(LEASE_ID_BYTES)))
"""As large as any pointer, but for the name in it: to plan with before there is one."""
ROOM_BYTES = text_bytes(ROOM.to_json())


GROUP_BYTES = len(', "overflow": ') + ROOM_BYTES
"""What the pointer to fields that leave together adds to a payload."""


def pointer_bytes(name: str) -> int | None:
    """What a field of this name adds to a payload as a pointer of its own. None if it can have none: such fields leave
    together with others, where names are free."""
    if name == PAYLOAD_KEY or "\0" in name or len(name.encode()) > LONGEST_FIELD_NAME:
        return None
    return field_bytes(name, ROOM_BYTES - len("null") + text_bytes(name))


def said_by(event: Mapping[str, Any], control_field: str) -> str | None:
    """What a control field of an event says, if it says something."""
    value = event.get(control_field)
    return value if isinstance(value, str) and value else None


def shown(field: str | None) -> str:
    """A field in messages."""
    if field is None:
        return f"in {PAYLOAD_KEY}"
    return f"of field {field[:80]!r}"


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return type(value) is str and pattern.fullmatch(value) is not None


def _short(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, int | float | str | bool | None) else f"a {type(value).__name__}"


def _malformed(place: str | None, what: str) -> Invalid:
    return Invalid(f"the pointer {shown(place)} {what}", hint="pass pointers on as they came", field=place)


def _bad_note(what: str) -> Invalid:
    return Invalid(f"{PAYLOAD_KEY} {what}", hint="pass payloads on as they came", pointer=f"/{PAYLOAD_KEY}")
