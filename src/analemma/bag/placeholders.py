"""What stands in a container for something that was not read yet, and what may be said of values without asking them.

Compiled code (orjson, pydantic) reads the storage of dicts and lists directly, past their methods. What was not read is
therefore never absent there: a `NotLoaded` stands for it, which nothing can serialise, compare or print."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from sys import getrefcount
from typing import Any, NoReturn

from analemma.canon.values import Wire
from analemma.errors import Corrupt

SCALARS = frozenset({str, int, float, bool, type(None)})
"""Stored as they are."""
_UNCHANGING = SCALARS | {bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, uuid.UUID}


class NotLoaded:
    """A part of a bag that was not read yet. Methods of the bag never show one: they put the value in its place."""

    __slots__ = ("place", "wire")

    def __init__(self, wire: Wire = None, place: int = 0) -> None:
        self.wire = wire
        self.place = place
        """In a list: which item of its base this is."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a part of a bag is not loaded: read it through the bag's methods, or call load() first")

    __repr__ = __str__ = __bool__ = __iter__ = __len__ = __reduce_ex__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __copy__ = __deepcopy__ = _refuse
    __hash__ = object.__hash__


def shallow(wire: Wire, place: int = 0) -> Any:
    """The value of a wire when that is a scalar; a placeholder for everything else."""
    cls = type(wire)
    if cls in SCALARS:
        return wire
    if cls is bytes:
        if wire[:1] != b"\0":
            raise Corrupt("a block holds bytes without their marker")
        return wire[1:]
    return NotLoaded(wire, place)


def never_changes(value: Any) -> bool:
    """Whether a value stays what it is, so that it need not be looked at again."""
    cls = type(value)
    if cls in _UNCHANGING:
        return True
    if cls is tuple or cls is frozenset:
        return all(map(never_changes, value))
    return isinstance(value, enum.Enum)


# Reference counts are compared with those of a value that only its container holds, asked for in the same way.

_list_item = list.__getitem__
_dict_item = dict.__getitem__


def _count_in_list(items: list[Any], index: int) -> int:
    return getrefcount(_list_item(items, index))


def _count_in_dict(fields: dict[Any, Any], key: Any) -> int:
    return getrefcount(_dict_item(fields, key))


_ALONE_IN_LIST = _count_in_list([[]], 0)
_ALONE_IN_DICT = _count_in_dict({"": []}, "")


def held_elsewhere(container: Any, key: Any) -> bool:
    """Whether anybody but this list or dict may hold what stands there: then it can change unseen."""
    if isinstance(container, list):
        return _count_in_list(container, key) > _ALONE_IN_LIST
    return _count_in_dict(container, key) > _ALONE_IN_DICT
