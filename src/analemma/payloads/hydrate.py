"""A state whose large fields are still in the store, and how they come from there: on first access, or many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from analemma.bag.changes import packed_form
from analemma.bag.tracked import Base, NotLoaded, never_changes, plain_copy, resolve
from analemma.bag.tracked_dict import TrackedDict
from analemma.canon.nodes import Wire, encode
from analemma.canon.pointer import format_pointer
from analemma.canon.read import Nodes, container_kind
from analemma.canon.trees import Edited, Operation, Trees
from analemma.catalog.kernel.payloads import LeaseId, Leases, PayloadLease, released
from analemma.context import Context
from analemma.errors import Corrupt, Invalid
from analemma.machine import reader_count
from analemma.payloads.foreign import ForeignField
from analemma.payloads.pointers import Note, Pointer, check_names
from analemma.state.arguments import DeltaUpdate

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredField:
    """A field's value in our own store: a whole tree, or one field of a tree that holds several."""

    pointer: Pointer
    execution: str
    """Whose lease the pointer names."""
    grouped: bool = False
    """Whether it is one of several fields, and not the whole tree."""
    wire: Wire = None
    """Then its stored form."""

    @property
    def size_bytes(self) -> int:
        """About how much there is to load."""
        return self.pointer.size_bytes


class LeasedTrees(Base):
    """The base of hydrated states: the trees behind one tenant's pointers. Leases keep them, and not a version, so
    nothing can be linked to what is in them, and values are read whole."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.trees = context.trees
        self.leases = Leases(context.engine, context.tenant, keep_s=context.settings.payload_lease_s)

    def values(self, wires: Sequence[Wire]) -> list[Any]:
        """The values of these fields, in several threads, each with its share of the bytes; the descents into all of
        a share read together."""
        found = {number: lazy.load() for number, lazy in enumerate(wires) if not isinstance(lazy, StoredField)}
        stored = [number for number in range(len(wires)) if number not in found]
        stored.sort(key=lambda number: -wires[number].size_bytes)
        if len(stored) > 1:
            workers = min(reader_count(), len(stored))
            shares = [stored[start::workers] for start in range(workers)]
            with ThreadPoolExecutor(workers, thread_name_prefix="analemma-hydrate") as executor:
                read = [*executor.map(lambda share: self._read([wires[number] for number in share]), shares)]
        else:
            # Most loads are of one field, which needs no thread.
            shares, read = [stored], [self._read([wires[number] for number in stored])]
        for share, values in zip(shares, read, strict=True):
            found.update(zip(share, values, strict=True))
        return [found[number] for number in range(len(wires))]

    def use(
        self, pointers: Sequence[Pointer], owner_id: str | None, workflow_id: str | None
    ) -> dict[LeaseId, PayloadLease]:
        """The leases of these pointers, from now on in use; Denied unless all of them are good."""
        leases = self.leases.use([pointer.lease for pointer in pointers])
        for pointer in pointers:
            pointer.check(leases.get(pointer.lease), owner_id, workflow_id)
        return leases

    def fields_of(self, pointer: Pointer, execution: str) -> dict[str, StoredField]:
        """The fields of a tree that holds several, without those parts of them that have trees of their own."""
        nodes = self.trees.open()

        def read() -> Any:
            (wire,) = nodes.wires([(pointer.hash, ())])
            if container_kind(wire) != "map":
                raise Corrupt(f"block {pointer.hash.hex()} is no map of fields", block=pointer.hash.hex())
            return nodes.contents([wire])[0]

        fields = self.guarded([pointer], read)
        return {name: StoredField(pointer, execution, grouped=True, wire=wire) for name, wire in fields.items()}

    def names_of(self, deleted: tuple[str, ...] | Pointer) -> tuple[str, ...]:
        """The names of a note's deleted fields."""
        return check_names(self._read([StoredField(deleted, "")])[0]) if isinstance(deleted, Pointer) else deleted

    def _read(self, fields: Sequence[StoredField]) -> list[Any]:
        def read() -> list[Any]:
            roots = [each.pointer.hash for each in fields if not each.grouped]
            found = iter(Nodes(self.trees.fetch).wires((root, ()) for root in roots))
            return self.trees.values([each.wire if each.grouped else next(found) for each in fields])

        return self.guarded([each.pointer for each in fields], read)

    def guarded(self, pointers: Sequence[Pointer], read: Callable[[], T]) -> T:
        """Read something behind pointers. Tells a tree that was released while it was read from one that is damaged:
        that is Denied."""
        try:
            return read()
        except Corrupt as exc:
            ids = list({pointer.lease: None for pointer in pointers})
            if exc.facts.get("missing"):
                found = self.leases.find(ids)
                if any(each not in found or found[each].released_at_us is not None for each in ids):
                    raise released() from exc
            raise


@dataclass(frozen=True, slots=True)
class Arrival:
    """The event that a state came from, checked: what the state's changes are relative to."""

    trees: LeasedTrees
    """Where its pointers lead: they mean nothing to the payloads of any other."""
    note: Note
    """Without names, of an event that we did not write."""
    owner_id: str | None
    workflow_id: str | None
    execution_id: str | None
    state: str
    """What names the state: a delta says by it what it was made from."""
    fields: Mapping[str, StoredField | bytes | None]
    """What tells of each field whether its value is still the same: where it was in the store, else its stored form;
    None where that is not known."""

    @property
    def stored(self) -> dict[str, StoredField]:
        """Where the fields' values were in the store."""
        return {name: each for name, each in self.fields.items() if isinstance(each, StoredField)}


class HydratedState(TrackedDict):
    """A dict whose large fields load on first access. All of it is a dict's: names, length, `in` and iteration need
    no loading; values, items, comparison, copies, pickle and JSON load what is missing, all at once.

    Values are plain ones, so changes deep inside them cannot be noticed: what changed is found by comparing when that
    is asked for. Like a dict, it belongs to one thread."""

    __slots__ = ("origin",)

    origin: Arrival | None

    def __new__(cls, fields: Mapping[str, Any], origin: Arrival | None = None) -> Any:
        return cls._made(Base() if origin is None else origin.trees, None, 0)

    def __init__(self, fields: Mapping[str, Any], origin: Arrival | None = None) -> None:
        dict.update(self, fields)
        self.origin = origin

    def load(self, names: Iterable[str] | None = None) -> Any:
        """Load these fields, or all, in few reads; those that are here or do not exist cost nothing. Gives itself
        back."""
        wanted = dict.fromkeys(list(dict.keys(self)) if names is None else names)
        resolve([(self, name, found) for name in wanted if type(found := dict.get(self, name)) is NotLoaded])
        return self

    def not_loaded(self) -> dict[str, StoredField | ForeignField]:
        """The fields that are still in the store."""
        return {name: value.wire for name, value in dict.items(self) if type(value) is NotLoaded}

    def get_delta(self) -> DeltaUpdate:
        """The operations that make the same changes to whatever has the state that was hydrated, such as a version in
        the kernel: fields that are new or differ are put, as copies, and those that are gone removed. Of a state that
        was not hydrated everything is new. A field that was never loaded has not changed."""
        changed, deleted = self.changes() if self.origin is not None else (dict(self.items()), ())
        puts = [Operation("put", (name,), plain_copy(value, [])) for name, value in changed.items()]
        return DeltaUpdate((*puts, *[Operation("remove", (name,)) for name in deleted]))

    def changes(self, build: Callable[[str, Any], Edited] | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The fields that are new or have another value than they came with, and the names of those that are gone.
        `build` makes the tree of a field, for somebody who goes on to store it."""
        origin = self.origin
        assert origin is not None
        trees = origin.trees.trees
        build = build or partial(build_field, trees)

        def is_same(name: str, value: Any) -> bool:
            known = origin.fields.get(name)
            if known is None or (name not in self._originals and never_changes(value)):
                return known is not None
            if isinstance(known, StoredField):
                if not known.grouped:
                    return build(name, value).root.id == known.pointer.hash
                known = encode(known.wire)
            return packed_form(value, trees.registry, (name,)) == known

        here = {name: value for name, value in dict.items(self) if type(value) is not NotLoaded}
        changed = {name: value for name, value in here.items() if not is_same(name, value)}
        return changed, tuple(name for name in origin.fields if name not in self)

    def __repr__(self) -> str:
        shown = {name: f"<not loaded, {lazy.size_bytes} bytes>" for name, lazy in self.not_loaded().items()}
        return "{" + ", ".join(f"{name!r}: {shown.get(name) or repr(self[name])}" for name in self) + "}"

    def _arrived(self, key: Any, wire: Wire, value: Any, watched_as: Any) -> None:
        pass


def build_field(trees: Trees, name: str, value: Any) -> Edited:
    """The tree of a field's value, which stands in it alone; who reads an error knows the state."""
    try:
        return trees.build(value)
    except Invalid as exc:
        pointer = format_pointer((name,)) + str(exc.facts.get("pointer", ""))
        raise Invalid(f"field {name!r}: {exc.message}", hint=exc.hint, pointer=pointer) from None
