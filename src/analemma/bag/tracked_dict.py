"""A dict that notices its changes, and reads its values from the store when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from analemma.bag.tracked import MAKERS, SCALARS, SLOTS, Base, NotLoaded, Tracked, after, resolve, shallow
from analemma.canon.nodes import Wire, sort_key
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
    def _made(cls, base: Base, wire: Any, depth: int) -> Any:
        made: Any = dict.__new__(cls)
        made._start(base, wire, depth)
        made._originals = {}
        return made

    def _become_shell(self, length: int) -> None:
        dict.clear(self)
        storage: dict[Any, Any] = self
        dict.__setitem__(storage, NotLoaded(), None)
        self._shell = DictShell(length)

    # Reading.

    def _peek(self, key: Any) -> Any:
        """What stands at a key, perhaps as a placeholder; MISSING if nothing does."""
        if self._shell is not None:
            found = self._shell.fields.get(key, _NO_DEFAULT)
            if found is not _NO_DEFAULT:
                return found
            if not isinstance(key, str):
                return MISSING
            if self._is_shell():
                wire = self._known_wire()
                # Not str(key): that of an enum's member is its name, and dicts go by what it equals.
                found = self._base.read(lambda trees: trees.open().field(wire, str.__str__(key)))
                if found is not MISSING:
                    self._shell.fields[key] = found = shallow(found)
                return found
        return dict.get(self, key, MISSING)

    def _value(self, key: Any) -> Any:
        value = self._peek(key)
        return resolve([(self, key, value)])[0] if type(value) is NotLoaded else value

    def __getitem__(self, key: str) -> Any:
        value = self._peek(key) if self._shell is not None else _item(self, key)
        if type(value) is NotLoaded:
            return resolve([(self, key, value)])[0]
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

    if not TYPE_CHECKING:
        # The keys need no values; all values come with everything below them, in few batched reads.
        __iter__ = after(Tracked._load_shallow, dict.__iter__)
        __reversed__ = after(Tracked._load_shallow, dict.__reversed__)
        keys = after(Tracked._load_shallow, dict.keys)
        values = after(Tracked.load, dict.values)
        items = after(Tracked.load, dict.items)

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

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As a plain dict that is filled afterwards, so that what is contained twice, or in itself, comes back so.
        self.load()
        return dict, (), None, None, iter(list(dict.items(self)))

    # Changing.

    def __init__(self, /, *args: Any, **fields: Any) -> None:
        self.update(*args, **fields)

    def _put(self, key: Any, value: Any) -> None:
        """Put a value at a key; MISSING takes away what stands there."""
        present = self._peek(key)
        self._originals.setdefault(key, present)
        self._mark()
        shell = self._shell
        if shell is not None:
            shell.length += (value is not MISSING) - (present is not MISSING)
            if value is MISSING:
                shell.added.pop(key, None)
            elif present is MISSING:
                shell.added[key] = None
            shell.fields[key] = value
        elif value is MISSING:
            dict.__delitem__(self, key)
        else:
            _set_item(self, key, value)

    def __setitem__(self, key: str, value: Any) -> None:
        self._put(key, value)

    def __delitem__(self, key: str) -> None:
        if self._peek(key) is MISSING:
            raise KeyError(key)
        self._put(key, MISSING)

    def pop(self, key: str, default: Any = _NO_DEFAULT) -> Any:
        value = self._value(key)
        if value is not MISSING:
            self._put(key, MISSING)
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
            self._put(key, MISSING)

    # What tracking asks.

    @property
    def _fields(self) -> dict[Any, Any]:
        """Where the values at hand stand."""
        return self if self._shell is None else self._shell.fields

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

    def _put_loaded(self, key: Any, placeholder: NotLoaded, value: Any) -> None:
        if self._shell is None:
            _set_item(self, key, value)
        else:
            self._shell.fields[key] = value
        self._arrived(key, placeholder.wire, value, key)

    def _at_hand(self) -> Iterable[tuple[Any, Any]]:
        return list(dict.items(self._fields))

    def _base_children(self) -> Iterable[Any]:
        changed = self._originals
        return [value for key, value in dict.items(self._fields) if key not in changed] + [*changed.values()]

    def _kept(self) -> list[tuple[Any, Any, Any]]:
        keys = dict.fromkeys([*self._originals, *self._touched, *self._watched])
        found = [(key, key, dict.get(self._fields, key, MISSING)) for key in keys]
        return [each for each in found if each[2] is not MISSING and self._originals.get(each[0], each[2]) is each[2]]

    def _places_of(self, child: Tracked, key: Any) -> list[Any]:
        return [key] if dict.get(self._fields, key) is child else []

    def _restore(self) -> None:
        originals = self._originals
        for key, original in list(originals.items()):
            if dict.get(self._fields, key, MISSING) is not original:
                self._put(key, original)
        if self._shell is not None:
            self._shell.added = {}
        elif originals:
            fields = {key: _item(self, key) for key in sorted(dict.keys(self), key=sort_key)}
            dict.clear(self)
            dict.update(self, fields)
        self._originals = {}

    def _unload(self, key: Any, wire: Wire) -> None:
        dict.__setitem__(self._fields, key, NotLoaded(wire))


MAKERS["map"] = TrackedDict._open
