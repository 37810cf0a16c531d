"""The standard library's types in their tagged form; the names here are part of the stored format."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pickle import PicklingError
from typing import Any
from zoneinfo import ZoneInfo

from analemma.canon.registry import TypeRegistry
from analemma.errors import Invalid


def standard_registry() -> TypeRegistry:
    """A registry that knows the types of the standard library, ready for a program's own."""
    registry = TypeRegistry()
    registry.add(dt.datetime, name="datetime", encode=_encode_datetime, decode=_decode_datetime)
    registry.add(dt.date, name="date", encode=dt.date.isoformat, decode=dt.date.fromisoformat)
    registry.add(dt.time, name="time", encode=_encode_time, decode=_decode_time)
    registry.add(
        dt.timedelta,
        name="timedelta",
        encode=lambda delta: [delta.days, delta.seconds, delta.microseconds],
        decode=lambda parts: dt.timedelta(*parts),
    )
    registry.add(Decimal, name="decimal", encode=_encode_decimal, decode=Decimal)
    registry.add(uuid.UUID, name="uuid", encode=str, decode=uuid.UUID)
    registry.add(tuple, name="tuple", encode=list, decode=tuple)
    # Sets are put in the order of their items' canonical bytes by the encoder, which knows those bytes.
    registry.add(set, name="set", encode=list, decode=set)
    registry.add(frozenset, name="frozenset", encode=list, decode=frozenset)
    return registry


def _encode_zone(zone: dt.tzinfo | None) -> Any:
    if zone is None:
        return None
    if zone is dt.UTC:
        return "UTC"
    if type(zone) is ZoneInfo and zone.key is not None:
        try:
            zone.__reduce__()
        except PicklingError:
            # Read from a file: its name does not say what it is.
            raise Invalid(f"the time zone {zone.key!r} was read from a file", hint="use ZoneInfo(key)") from None
        return {"zone": zone.key}
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        parts: list[Any] = [offset.days, offset.seconds, offset.microseconds]
        # A timezone made with a name keeps it; there is no other way to ask for it than through its pickled arguments.
        arguments = zone.__getinitargs__()  # type: ignore[attr-defined]
        return {"offset": parts, "name": arguments[1] if len(arguments) > 1 else None}
    raise Invalid(f"a time zone of type {type(zone).__qualname__} cannot be stored", hint="use zoneinfo or timezone")


def _decode_zone(payload: Any) -> dt.tzinfo | None:
    if payload is None:
        return None
    if payload == "UTC":
        return dt.UTC
    if "zone" in payload:
        return ZoneInfo(payload["zone"])
    offset = dt.timedelta(*payload["offset"])
    return dt.timezone(offset) if payload["name"] is None else dt.timezone(offset, payload["name"])


def _encode_datetime(moment: dt.datetime) -> Any:
    return [moment.replace(tzinfo=None, fold=0).isoformat(), _encode_zone(moment.tzinfo), moment.fold]


def _decode_datetime(payload: Any) -> dt.datetime:
    text, zone, fold = payload
    return dt.datetime.fromisoformat(text).replace(tzinfo=_decode_zone(zone), fold=fold)


def _encode_time(moment: dt.time) -> Any:
    return [moment.replace(tzinfo=None, fold=0).isoformat(), _encode_zone(moment.tzinfo), moment.fold]


def _decode_time(payload: Any) -> dt.time:
    text, zone, fold = payload
    return dt.time.fromisoformat(text).replace(tzinfo=_decode_zone(zone), fold=fold)


def _encode_decimal(number: Decimal) -> str:
    if not number.is_finite():
        raise Invalid(f"{number}, which has no canonical form,", hint="store None or a string instead")
    # The exponent's letter follows the thread's decimal context; the stored bytes must not.
    return str(number).upper()
