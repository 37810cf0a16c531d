"""Stored values as JSON that loses nothing: what JSON has stays as it is, everything else is tagged."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from analemma.cli.output import print_line
from analemma.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from analemma.catalog.port import Pin, Tag, Version
    from analemma.state.records import Commit, Receipt
    from analemma.state.workflows import Branch, Decision, Workflow

TYPE = "$type"
LINK = "$link"
SHOWN_AS = {
    "`bytes`": '{"$type": "bytes", "value": BASE64}',
    "`datetime`, `time`": '{"$type": "datetime", "value": ISO 8601} (with zone, fold)',
    "`date`": '{"$type": "date", "value": ISO 8601}',
    "`timedelta`": '{"$type": "timedelta", "value": [DAYS, SECONDS, MICROSECONDS]}',
    "`Decimal`, `UUID`": '{"$type": "decimal", "value": TEXT}',
    "`tuple`, `set`, `frozenset`": '{"$type": "tuple", "value": [...]}',
    "a class of your own": '{"$type": its stored name, "value": its stored payload}',
    "your own dict with a key `$type`": '{"$type": "dict", "value": {...}}',
}
LONGEST_LINE = 160
"""What people see of one value in a list of changes."""


def to_json(value: Any) -> Any:
    """The value in tagged JSON form.

    >>> to_json({"photo": b"\\x00\\x01", "n": 1})
    {'photo': {'$type': 'bytes', 'value': 'AAE='}, 'n': 1}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        shown = {key: to_json(item) for key, item in value.items()}
        return _tagged("dict", shown) if TYPE in shown else shown
    return _tagged_value(value)


def on_one_line(value: Any) -> str:
    """A value for people, cut off when it is long."""
    text = json.dumps(to_json(value), ensure_ascii=False)
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}... ({len(text)} characters)"


def commit_fields(commit: Commit) -> dict[str, Any]:
    """A commit for programs. `receipt` is worth keeping elsewhere: it proves later what the store must still show."""
    from analemma.state.records import encode_receipt

    return {**commit, "receipt": encode_receipt(commit.receipt).hex()}


def parse_receipt(text: str) -> Receipt:
    """Read a receipt as `commit_fields` writes it."""
    from analemma.state.records import decode_receipt

    try:
        return decode_receipt(bytes.fromhex(text))
    except (ValueError, Corrupt) as exc:
        raise Invalid("not a receipt", hint="give the `receipt` of a commit that `save --json` printed") from exc


def changes_fields(changes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """JSON Patch operations with their values in tagged JSON form."""
    return [{name: to_json(item) if name == "value" else item for name, item in change.items()} for change in changes]


def print_changes(changes: Iterable[Mapping[str, Any]]) -> None:
    """One line per JSON Patch operation."""
    for change in changes:
        value = f"  {on_one_line(change['value'])}" if "value" in change else ""
        print_line(f"{change['op']:<8}{change['path']}{value}")


def fields_of(answer: Version | Tag | Pin | Decision | Workflow | Branch) -> dict[str, Any]:
    """One of the kernel's plain answers for programs."""
    from analemma.catalog.port import Shown, Version

    if isinstance(answer, Shown | Version):
        return answer.to_json()
    fields = dataclasses.asdict(answer)
    return {name: item.isoformat() if isinstance(item, dt.datetime) else item for name, item in fields.items()}


def history_line(version: Version) -> str:
    """A line of history for people."""
    when = version.created_at.isoformat(" ", "seconds")
    return f"{version.version:>6}  {when}  {version.manifest_id}  {version.message or ''}".rstrip()


def why_fields(why: Mapping[str, Any] | None) -> dict[str, Any]:
    """Where a version comes from, for programs; nothing if it says nothing."""
    return {} if why is None else {"why": to_json(why)}


def why_line(why: Mapping[str, Any]) -> str:
    """The same for people."""
    return ", ".join(f"{name}={value if isinstance(value, str) else on_one_line(value)}" for name, value in why.items())


def history_place(version: Version) -> str:
    """Where a version was committed, for people."""
    return f"{version.owner_id}/{version.workflow_id} on {version.branch}"


def block_to_json(data: bytes) -> dict[str, Any]:
    """What a block's bytes say: a manifest's fields, or a tree node with its links (`$link`) and tagged values."""
    from analemma.canon.nodes import decode

    decoded = decode(data)
    if len(decoded) == 3:
        kind, number, fields = decoded
        # Ids that are named without being linked, and nonces: bytes that people compare as hexadecimal.
        shown = {name: item[1:].hex() if _is_marked(item) else _wire(item) for name, item in fields.items()}
        return {"kind": kind, "format": number, "fields": shown}
    kind, level, flags, body = decoded
    if level:
        names = ("count", "size", "flags", "last_key")
        body = [{LINK: child[0][4:].hex(), **dict(zip(names, child[1:], strict=False))} for child in body]
    elif kind == "map":
        # A map's body is never a tag itself, even when its only field is named "".
        body = {name: _wire(item) for name, item in body.items()}
    else:
        body = _wire(body)
    return {"kind": kind, "level": level, "flags": flags, "body": body}


def _is_marked(wire: Any) -> bool:
    return isinstance(wire, bytes) and wire[:1] == b"\0"


def _wire(wire: Any) -> Any:
    from analemma.canon.nodes import CID_PREFIX, Link, is_special, read_special

    if isinstance(wire, bytes):
        return {LINK: wire[4:].hex()} if wire.startswith(CID_PREFIX) else to_json(wire[1:])
    if isinstance(wire, list):
        return [_wire(item) for item in wire]
    if not isinstance(wire, dict):
        return wire
    if is_special(wire):
        special = read_special(wire)
        if isinstance(special, Link):
            return {LINK: special.id.hex(), "kind": special.kind, "count": special.count, "size": special.size}
        return _tagged(special[0], _wire(special[1]))
    shown = {name: _wire(item) for name, item in wire.items()}
    return _tagged("dict", shown) if TYPE in shown or LINK in shown else shown


def _tagged(name: str, value: Any, **more: Any) -> dict[str, Any]:
    return {TYPE: name, "value": value, **more}


def _tagged_value(value: Any) -> dict[str, Any]:
    from analemma.canon.types import Tagged

    if isinstance(value, Tagged):
        return _tagged(value.name, to_json(value.payload))
    if isinstance(value, (bytes, bytearray)):
        return _tagged("bytes", base64.b64encode(value).decode())
    if isinstance(value, (dt.datetime, dt.time)):
        return _tagged(type(value).__name__, value.isoformat(), **_zone(value))
    if isinstance(value, dt.date):
        return _tagged("date", value.isoformat())
    if isinstance(value, dt.timedelta):
        return _tagged("timedelta", [value.days, value.seconds, value.microseconds])
    if isinstance(value, (Decimal, uuid.UUID)):
        return _tagged(type(value).__name__.lower(), str(value))
    if isinstance(value, tuple):
        return _tagged("tuple", [to_json(item) for item in value])
    if isinstance(value, (set, frozenset)):
        # A set has no order; the same set should print the same.
        items = sorted([to_json(item) for item in value], key=lambda item: json.dumps(item, sort_keys=True))
        return _tagged(type(value).__name__, items)
    if isinstance(value, Mapping):
        return _tagged(type(value).__name__, {str(key): to_json(item) for key, item in value.items()})
    return _tagged(f"{type(value).__module__}:{type(value).__qualname__}", repr(value))


def _zone(moment: dt.datetime | dt.time) -> dict[str, Any]:
    named = moment.tzinfo.key if isinstance(moment.tzinfo, ZoneInfo) else None
    return ({} if named is None else {"zone": named}) | ({"fold": 1} if moment.fold else {})
