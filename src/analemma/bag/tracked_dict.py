"""A dict that notices its changes, and reads its values from the store when they are asked for."""

from __future__ import annotations

import copy as copying
from collections.abc import Iterable, Iterator
from typing import Any

from analemma.bag.tracked import MAKERS, SCALARS, SLOTS, Base, NotLoaded, Tracked, shallow
from analemma.canon.nodes import (
    Wire,
    is_special,
    sort_key,
    wire_link,
)
from analemma.canon.read import MISSING, Content

_NO_DEFAULT = object()
_item = dict.__getitem__
_set_item = dict.__setitem__


class DictShell:
    """What is known of a dict of which nothing was read but what was asked for."""

    __slots__ = ("added", "fields", "length", "small")

    def __init__(self, length: int) -> None:
        self.length = length
        self.fields: dict[Any, Any] = {}
        """Values that were read or set; MISSING where there is none any more."""
        self.added: dict[Any, None] = {}
        """Fields that come after those of the base, in this order."""
        self.small: bool | None = None


class TrackedDict(Tracked, dict[str, Any]):
    """A dict of a bag. It behaves as a dict does, wherever its values are; `load()` makes sure that they are here."""

    __slots__ = ("_originals", *SLOTS)

    _shell: DictShell | None
    _originals: dict[Any, Any]
    """What stands in the base (MISSING: nothing), for every field that was set or deleted since."""

    def __new__(cls, /, *args: Any, **fields: Any) -> Any:
        # Code that makes another of the same type (`type(x)(...)`) wants a dict: only a bag makes tracked ones.
        return dict(*args, **fields)

    @classmethod
    def _open(cls, base: Base, wire: Wire, depth: int) -> TrackedDict:
        made: TrackedDict = cls._made(base, wire, depth)
        link = wire_link(wire)
        if link is not None:
            made._become_shell(link.count)
        else:
            # In the order of stored maps: a wire that was made a moment ago has the order in which it was made.
            fields = {"": wire[""][1]} if is_special(wire) else {key: wire[key] for key in sorted(wire, key=sort_key)}
            made._fill(fields)
        return made

    @classmethod
    def _made(cls, base: Base, wire: Any, depth: int) -> Any:
        made: Any = dict.__new__(cls)
        made._start(base, wire, depth)
        made._originals = {}
        return made

    def _become_shell(self, count: int) -> None:
        dict.clear(self)
        storage: dict[Any, Any] = self
        dict.__setitem__(storage, NotLoaded(), None)
        self._shell = DictShell(count)

    # Reading.

    def _peek(self, key: Any) -> Any:
        """What stands at a key, perhaps as a placeholder; MISSING if nothing does."""
        if self._shell is not None:
            found = self._shell.fields.get(key, _NO_DEFAULT)
            if found is not _NO_DEFAULT:
                return found
            if not isinstance(key, str):
                return MISSING
            if self._open_shell():
                wire = self._known_wire()
                # Not str(key): that of an enum's member is its name, and dicts go by what it equals.
                found = self._base.read(lambda nodes: nodes.field(wire, str.__str__(key)))
                if found is not MISSING:
                    self._shell.fields[key] = found = shallow(found)
                return found
        return dict.get(self, key, MISSING)

    def _value(self, key: Any) -> Any:
        value = self._peek(key)
        return self._resolve_these([(key, value)])[0] if type(value) is NotLoaded else value

    def __getitem__(self, key: str) -> Any:
        value = self._peek(key) if self._shell is not None else _item(self, key)
        if type(value) is NotLoaded:
            return self._resolve_these([(key, value)])[0]
        if value is MISSING:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        value = self._value(key)
        return default if value is MISSING else value

    def __contains__(self, key: object) -> bool:
        return self._peek(key) is not MISSING if self._shell is not None else dict.__contains__(self, key)

    def __len__(self) -> int:
        return self._shell.length if self._shell is not None else dict.__len__(self)

    def __iter__(self) -> Iterator[str]:
        self._load_shallow()
        return dict.__iter__(self)

    def __reversed__(self) -> Iterator[str]:
        self._load_shallow()
        return dict.__reversed__(self)

    def keys(self) -> Any:
        """A view of the keys; reads no values."""
        self._load_shallow()
        return dict.keys(self)

    def values(self) -> Any:
        """A view of the values; reads all of them, with everything below, in few batched reads."""
        self.load()
        return dict.values(self)

    def items(self) -> Any:
        """A view of keys and values; reads all of them, with everything below, in few batched reads."""
        self.load()
        return dict.items(self)

    def to_dict(self) -> dict[str, Any]:
        """A copy of plain dicts and lists, detached from the store."""
        return self.to_plain()  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return NotImplemented
        if self is other:
            return True
        if len(self) != len(other) or self.keys() != other.keys():
            return False
        self.load()
        if isinstance(other, Tracked):
            other.load()
        return dict.__eq__(self, other)

    __hash__ = None

    def __or__(self, other: Any) -> Any:
        return dict(self) | other if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return other | dict(self) if isinstance(other, dict) else NotImplemented

    def copy(self) -> dict[str, Any]:
        """A plain dict with the same values."""
        return dict(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        self.load()
        twin: dict[str, Any] = {}
        memo[id(self)] = twin
        for key, value in dict.items(self):
            twin[key] = copying.deepcopy(value, memo)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As a plain dict that is filled afterwards, so that what is contained twice, or in itself, comes back so.
        self.load()
        return dict, (), None, None, iter(list(dict.items(self)))

    # Changing.

    def __init__(self, /, *args: Any, **fields: Any) -> None:
        self.update(*args, **fields)

    def _put(self, key: Any, value: Any) -> None:
        if key not in self._originals:
            self._originals[key] = self._peek(key)
        self._mark()
        shell = self._shell
        if shell is None:
            _set_item(self, key, value)
            return
        if self._peek(key) is MISSING:
            shell.length += 1
            shell.added[key] = None
        shell.fields[key] = value

    def _drop(self, key: Any) -> None:
        if key not in self._originals:
            self._originals[key] = self._peek(key)
        self._mark()
        shell = self._shell
        if shell is None:
            dict.__delitem__(self, key)
            return
        shell.length -= 1
        shell.added.pop(key, None)
        shell.fields[key] = MISSING

    def __setitem__(self, key: str, value: Any) -> None:
        self._put(key, value)

    def __delitem__(self, key: str) -> None:
        if self._peek(key) is MISSING:
            raise KeyError(key)
        self._drop(key)

    def pop(self, key: str, default: Any = _NO_DEFAULT) -> Any:
        value = self._value(key)
        if value is not MISSING:
            self._drop(key)
            return value
        if default is _NO_DEFAULT:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[str, Any]:
        self._load_shallow()
        if not dict.__len__(self):
            raise KeyError("popitem(): dictionary is empty")
        key = next(dict.__reversed__(self))
        return key, self.pop(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        value = self._value(key)
        if value is not MISSING:
            return value
        self._put(key, default)
        return default

    def update(self, /, *args: Any, **fields: Any) -> None:
        for key, value in dict.items(dict(*args, **fields)):
            self._put(key, value)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def clear(self) -> None:
        self._load_shallow()
        for key in list(dict.keys(self)):
            self._drop(key)

    # What tracking asks.

    def _fill(self, content: Content) -> None:
        assert isinstance(content, dict)
        fields: dict[Any, Any] = {
            key: wire if type(wire) in SCALARS else shallow(wire) for key, wire in content.items()
        }
        shell, self._shell = self._shell, None
        if shell is not None:
            for key, value in shell.fields.items():
                if value is MISSING or key in shell.added:
                    fields.pop(key, None)
                else:
                    fields[key] = value
            fields |= {key: shell.fields[key] for key in shell.added}
        dict.clear(self)
        dict.update(self, fields)

    def _waiting(self) -> list[tuple[Any, NotLoaded]]:
        return [(key, value) for key, value in dict.items(self) if type(value) is NotLoaded]

    def _put_loaded(self, key: Any, placeholder: NotLoaded, value: Any) -> None:
        if self._shell is None:
            _set_item(self, key, value)
        else:
            self._shell.fields[key] = value
        self._arrived(key, placeholder.wire, value, key)

    def _children(self) -> Iterable[Any]:
        return list(self._shell.fields.values() if self._shell is not None else dict.values(self))

    def _base_children(self) -> Iterable[Any]:
        current = self._shell.fields if self._shell is not None else dict(dict.items(self))
        return [value for key, value in current.items() if key not in self._originals] + [*self._originals.values()]

    def _places_of(self, child: Tracked, key: Any) -> list[Any]:
        fields: dict[Any, Any] = self if self._shell is None else self._shell.fields
        return [key] if dict.get(fields, key) is child else []

    def _watched_values(self) -> list[tuple[Any, Any]]:
        found = [(key, dict.get(self, key, MISSING)) for key in self._watched]
        return [
            (key, value) for key, value in found if value is not MISSING and self._originals.get(key, value) is value
        ]

    def _restore(self) -> None:
        for key, original in self._originals.items():
            if self._shell is not None:
                if (self._peek(key) is MISSING) != (original is MISSING):
                    self._shell.length += 1 if self._peek(key) is MISSING else -1
                self._shell.fields[key] = original
                self._shell.added.pop(key, None)
            elif original is MISSING:
                dict.pop(self, key, None)
            else:
                _set_item(self, key, original)
        if self._shell is None and self._originals:
            fields = {key: _item(self, key) for key in sorted(dict.keys(self), key=sort_key)}
            dict.clear(self)
            dict.update(self, fields)
        self._originals = {}

    def _unload(self, key: Any, wire: Wire) -> None:
        dict.__setitem__(self if self._shell is None else self._shell.fields, key, NotLoaded(wire))


MAKERS["map"] = TrackedDict._open
