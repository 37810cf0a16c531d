"""Which Python types can be stored beyond JSON and bytes, and how each is written as a tagged value.

A tagged value is a name and a payload; the payload is an ordinary value. Nothing is ever imported or guessed when
reading: a name without a codec is refused, or kept as `Tagged` for programs that only pass it on."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from analemma.errors import Invalid

T = TypeVar("T")

RESERVED_NAMES = frozenset({"map", "float"})
"""Written by the encoding itself: a dict that looks like a tag, and -0.0."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value whose type this program does not know; it is written back exactly as it was read."""

    name: str
    payload: Any


@dataclass(frozen=True, slots=True)
class TypeCodec:
    """How one type is written: `encode` gives a payload of storable values, `decode` is its inverse."""

    name: str
    type: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class TypeRegistry:
    """Types by class (for writing) and by name (for reading). Enums, dataclasses and pydantic models register
    themselves when first written; another program that reads them registers the class first:

        @registry.register
        class Plan(BaseModel): ...
    """

    def __init__(self) -> None:
        self._by_type: dict[type, TypeCodec] = {}
        self._by_name: dict[str, TypeCodec] = {}

    def copy(self) -> TypeRegistry:
        """A registry that starts with what this one knows."""
        twin = TypeRegistry()
        twin._by_type.update(self._by_type)
        twin._by_name.update(self._by_name)
        return twin

    def register(self, cls: type[T], *, name: str | None = None) -> type[T]:
        """Make an Enum, dataclass or pydantic model readable; usable as a decorator."""
        codec = _structural_codec(cls, name or _class_name(cls))
        if codec is None:
            raise Invalid(
                f"{cls.__qualname__} is no Enum, dataclass or pydantic model",
                hint="use add(cls, name=..., encode=..., decode=...)",
            )
        self._remember(codec)
        return cls

    def add(self, cls: type[T], *, name: str, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
        """Teach a type of your own: `encode` to storable values, `decode` back."""
        self._remember(TypeCodec(name, cls, encode, decode))

    def taken_apart(self, value: object) -> Tagged | None:
        """What this value is written as, by its exact type; None when no codec does, Invalid when its own cannot."""
        cls = type(value)
        codec = self._by_type.get(cls)
        if codec is not None and self._by_name[codec.name].type is not cls:
            raise Invalid(
                f"{codec.name} was defined again, and this value is of the older class", hint="make the value anew"
            )
        if codec is None:
            codec = _structural_codec(cls, _class_name(cls))
            if codec is None:
                return None
            self._remember(codec)
        try:
            return Tagged(codec.name, codec.encode(value))
        except Invalid:
            raise
        except Exception as exc:
            # The caller's own encoder, or a dataclass whose fields are not all set.
            raise Invalid(
                f"a {codec.name} ({type(exc).__name__}: {exc})", hint="the value cannot be taken apart"
            ) from exc

    def for_name(self, name: str) -> TypeCodec | None:
        """The codec that reads this name."""
        return self._by_name.get(name)

    def _remember(self, codec: TypeCodec) -> None:
        if codec.name in RESERVED_NAMES or not codec.name:
            raise Invalid(f"the type name {codec.name!r} is reserved", hint="choose another name")
        known = self._by_name.get(codec.name)
        # A class defined again under its own name (a notebook cell run twice) replaces the older one.
        if known is not None and known.type is not codec.type and _class_name(known.type) != _class_name(codec.type):
            raise Invalid(
                f"the type name {codec.name!r} already belongs to {_class_name(known.type)}", hint="choose another name"
            )
        self._by_type[codec.type] = codec
        self._by_name[codec.name] = codec


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _structural_codec(cls: type, name: str) -> TypeCodec | None:
    if issubclass(cls, enum.Enum):
        return TypeCodec(name, cls, _encode_enum, lambda payload: _decode_enum(cls, payload))
    # A dataclass that is also a dict, an exception or a Decimal has contents outside its fields: storing the fields
    # alone would lose them.
    if dataclasses.is_dataclass(cls) and cls.__new__ is object.__new__:
        return TypeCodec(name, cls, _encode_dataclass, lambda payload: _decode_dataclass(cls, payload))
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(cls, pydantic.BaseModel):
        return TypeCodec(name, cls, _encode_model, lambda payload: _decode_model(cls, payload))
    return None


def _encode_enum(member: enum.Enum) -> Any:
    # By name, since values may be anything; a combination of flags has no name of its own.
    if member.name is not None and type(member).__members__.get(member.name) is member:
        return {"name": member.name}
    return {"value": member.value}


def _decode_enum(cls: Any, payload: Any) -> Any:
    return cls[payload["name"]] if "name" in payload else cls(payload["value"])


def _encode_dataclass(instance: Any) -> Any:
    fields = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
    for name in getattr(instance, "__dict__", ()):
        if name not in fields and not isinstance(getattr(type(instance), name, None), cached_property):
            raise Invalid(
                f"{type(instance).__qualname__} has an attribute {name!r} that is no field, so it would be lost",
                hint="make it a field, or register a codec for the class",
            )
    return fields


def _decode_dataclass(cls: Any, payload: Any) -> Any:
    # The fields are set as they were stored: running __init__ would validate or default them a second time.
    instance = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in payload:
            object.__setattr__(instance, field.name, payload[field.name])
        elif field.default is not dataclasses.MISSING:
            object.__setattr__(instance, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            object.__setattr__(instance, field.name, field.default_factory())
        else:
            raise Invalid(f"{cls.__qualname__} has a field {field.name!r} that the stored value lacks")
    return instance


def _encode_model(instance: Any) -> Any:
    state = instance.__getstate__()
    cls = type(instance)
    # What a cached property has worked out stands beside the fields, or not yet: the value is the same.
    fields = {
        name: value
        for name, value in state["__dict__"].items()
        if name in cls.model_fields or not isinstance(getattr(cls, name, None), cached_property)
    }
    return {
        "fields": fields,
        "set": sorted(state["__pydantic_fields_set__"]),
        "extra": state["__pydantic_extra__"],
        "private": state["__pydantic_private__"],
    }


def _decode_model(cls: Any, payload: Any) -> Any:
    stored = payload["fields"]
    fields: dict[str, Any] = {}
    # In the order of the class, as the model had them; then what the class no longer has.
    for name, field in cls.model_fields.items():
        if name in stored:
            fields[name] = stored.pop(name)
        elif field.is_required():
            raise Invalid(f"{cls.__qualname__} has a field {name!r} that the stored value lacks")
        else:
            fields[name] = field.get_default(call_default_factory=True, validated_data=fields)
    fields.update(stored)
    extra = payload["extra"]
    if extra is None and cls.model_config.get("extra") == "allow":
        extra = {}
    private = payload["private"]
    if cls.__private_attributes__:
        defaults = {name: attribute.get_default() for name, attribute in cls.__private_attributes__.items()}
        private = {**defaults, **(private or {})}
    instance = cls.__new__(cls)
    instance.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": set(payload["set"]),
            "__pydantic_extra__": extra,
            "__pydantic_private__": private,
        }
    )
    return instance


def standard_registry() -> TypeRegistry:
    """A registry that knows the types of the standard library, ready for a program's own. Their names are part of the
    stored format."""
    registry = TypeRegistry()
    registry.add(dt.datetime, name="datetime", encode=_encode_moment, decode=partial(_decode_moment, dt.datetime))
    registry.add(dt.date, name="date", encode=dt.date.isoformat, decode=dt.date.fromisoformat)
    registry.add(dt.time, name="time", encode=_encode_moment, decode=partial(_decode_moment, dt.time))
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
        from pickle import PicklingError

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


def _encode_moment(moment: dt.datetime | dt.time) -> Any:
    return [moment.replace(tzinfo=None, fold=0).isoformat(), _encode_zone(moment.tzinfo), moment.fold]


def _decode_moment(cls: Any, payload: Any) -> Any:
    text, zone, fold = payload
    return cls.fromisoformat(text).replace(tzinfo=_decode_zone(zone), fold=fold)


def _encode_decimal(number: Decimal) -> str:
    if not number.is_finite():
        raise Invalid(f"{number}, which has no canonical form,", hint="store None or a string instead")
    # The exponent's letter follows the thread's decimal context; the stored bytes must not.
    return str(number).upper()
