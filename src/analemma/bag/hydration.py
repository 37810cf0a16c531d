"""A state whose large fields are still in the store, and how they come from there: on first access, or many at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from analemma.bag.payload_pointers import Pointer, check_names
from analemma.bag.tracking import plain_copy
from analemma.canon.edit import Operation
from analemma.canon.identity import BlockId
from analemma.canon.read import Nodes, Reader, locate
from analemma.canon.trees import Trees
from analemma.canon.values import Wire, encode
from analemma.catalog.payloads import LeaseId, PayloadCatalog, released
from analemma.catalog.port import TenantId
from analemma.errors import Corrupt
from analemma.state.deltas import DeltaUpdate

T = TypeVar("T")


class LazyField(Protocol):
    """A field's value that is not here yet."""

    @property
    def size_bytes(self) -> int:
        """About how much there is to load."""

    def load(self) -> Any:
        """The value."""


@dataclass(frozen=True, slots=True)
class Part:
    """A value in the store: a whole tree, or one field of a tree that holds several."""

    pointer: Pointer
    execution: str | None = None
    """Whose lease the pointer names."""
    grouped: bool = False
    """Whether it is one of several fields, and not the whole tree."""
    wire: Wire = None
    """Then its stored form."""

    @property
    def fingerprint(self) -> bytes:
        """Tells whether a value is still the one that was read."""
        return bytes(encode(self.wire)) if self.grouped else bytes(self.pointer.hash)


class PartReader:
    """Reads parts of one tenant's payloads, verified, in few batched reads."""

    def __init__(self, catalog: PayloadCatalog, tenant: TenantId, trees: Trees, workers: Callable[[], int]) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._trees = trees
        self._workers = workers

    def read(self, parts: Sequence[Part]) -> list[Any]:
        """The values of these, the descents into all of them sharing their fetches."""
        with _Guard(self._catalog, self._tenant, [part.pointer for part in parts]):
            roots = [part.pointer.hash for part in parts if not part.grouped]
            found = iter(Nodes(self._trees.fetch).run(locate(root, ()) for root in roots))
            wires = [part.wire if part.grouped else next(found) for part in parts]
            return Reader(self._trees.fetch, self._trees.registry, self._trees.unknown).read_wires(wires)

    def read_many(self, parts: Sequence[Part]) -> list[Any]:
        """The same in several threads, each with its share of the bytes."""
        shares = share_out([part.pointer.size_bytes for part in parts], self._workers())
        if len(shares) <= 1:
            return self.read(parts)
        values: dict[int, Any] = {}
        with ThreadPoolExecutor(len(shares), thread_name_prefix="analemma-hydrate") as executor:
            jobs = [(share, executor.submit(self.read, [parts[number] for number in share])) for share in shares]
            for share, job in jobs:
                values.update(zip(share, job.result(), strict=True))
        return [values[number] for number in range(len(parts))]

    def fields_of(self, pointer: Pointer, execution: str) -> dict[str, Part]:
        """The fields of a tree that holds several, without those parts of them that have trees of their own."""
        with _Guard(self._catalog, self._tenant, [pointer]):
            wires = _field_wires(self._trees, pointer.hash)
        return {name: Part(pointer, execution, grouped=True, wire=wire) for name, wire in wires.items()}

    def guarded(self, pointer: Pointer, read: Callable[[], T]) -> T:
        """Read something behind a pointer; Denied if it was released meanwhile."""
        with _Guard(self._catalog, self._tenant, [pointer]):
            return read()

    def names_of(self, pointer: Pointer) -> tuple[str, ...]:
        """The names in a tree that is a list of them."""
        return check_names(self.read([Part(pointer)])[0])


class _Guard:
    """Tells a tree that was released while it was read from one that is damaged."""

    def __init__(self, catalog: PayloadCatalog, tenant: TenantId, pointers: Sequence[Pointer]) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._leases: list[LeaseId] = list({pointer.lease: None for pointer in pointers})

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Corrupt) and error.facts.get("missing"):
            found = self._catalog.leases(self._tenant, self._leases)
            if any(lease not in found or found[lease].released_at_us is not None for lease in self._leases):
                raise released() from error


def share_out(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Numbers of things divided among workers so that each has about the same to do: the largest first, each to
    whoever has least.

    >>> share_out([5, 1, 4, 1], 2)
    [[0, 3], [2, 1]]
    """
    shares: list[list[int]] = [[] for _ in range(min(workers, len(sizes)))]
    loads = [0] * len(shares)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += sizes[number] + 1
    return shares


def _field_wires(trees: Trees, root: BlockId) -> dict[str, Wire]:
    """Every field of a map's tree in its stored form; one fetch per level."""
    nodes = Nodes(trees.fetch)
    top = nodes.get(root)
    if top.kind != "map":
        raise Corrupt(f"block {root.hex()} is no map of fields", block=root.hex())
    return {name: wire for leaf in nodes.leaves([top])[0] for name, wire in leaf.body.items()}


@dataclass(frozen=True, slots=True)
class StoredField:
    """A `LazyField` in our own store."""

    name: str
    part: Part
    reader: PartReader

    @property
    def size_bytes(self) -> int:
        return self.part.pointer.size_bytes

    def load(self) -> Any:
        return self.reader.read([self.part])[0]


class Unloaded:
    """Stands in a state's own storage for a field that is not here yet. Nothing can serialise it, so code that reads
    the storage past the state's methods fails instead of seeing something that is not there."""

    __slots__ = ("field",)

    def __init__(self, field: LazyField) -> None:
        self.field = field

    def __repr__(self) -> str:
        return f"<not loaded, {self.field.size_bytes} bytes>"


@dataclass(frozen=True, slots=True)
class FieldChanges:
    """How a state differs from what it was hydrated from, by whole fields."""

    changed: dict[str, Any]
    """Fields that are new or have another value, with the values themselves."""
    deleted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a state was hydrated from: the base of its delta."""

    source: object
    """The payloads it came through: pointers mean nothing to any other."""
    compare: Callable[[HydratedState], FieldChanges]
    """Tells what changed in the state since."""
    owner_id: str | None
    workflow_id: str | None
    execution_id: str | None
    fingerprints: Mapping[str, bytes | None]
    """Per field what its value was then; None where that is not known."""
    parts: Mapping[str, Part]
    """Per field where its value was in the store."""
    state: str
    """What names that state: a delta says by it what it was made from."""


class HydratedState(dict[str, Any]):
    """A dict whose large fields load on first access. All of it is a dict's: names, length, `in` and iteration need
    no loading; values, items, comparison, copies, pickle and JSON load what is missing, all at once.

    What changed is found out by comparing when that is asked for, so changes deep inside values need not be announced.
    Like a dict, it belongs to one thread."""

    __slots__ = ("origin",)

    def __init__(self, fields: Mapping[str, Any], origin: Origin | None = None) -> None:
        super().__init__(fields)
        self.origin = origin

    def load(self, names: Iterable[str] | None = None) -> None:
        """Load these fields, or all, in few reads; those that are here or do not exist cost nothing."""
        wanted = list(self) if names is None else names
        waiting = {name: found.field for name in wanted if isinstance(found := dict.get(self, name), Unloaded)}
        stored = {name: field for name, field in waiting.items() if isinstance(field, StoredField)}
        if stored:
            reader = next(iter(stored.values())).reader
            values = reader.read_many([field.part for field in stored.values()])
            super().update(zip(stored, values, strict=True))
        super().update({name: field.load() for name, field in waiting.items() if name not in stored})

    def get_delta(self) -> DeltaUpdate:
        """The operations that make the same changes to whatever has the state that was hydrated, such as a version in
        the kernel: fields that are new or differ are put, as copies, and those that are gone removed. Of a state that
        was not hydrated everything is new. A field that was never loaded has not changed."""
        origin = self.origin
        changes = FieldChanges(dict(self.items()), ()) if origin is None else origin.compare(self)
        puts = [Operation("put", (name,), plain_copy(value, [])) for name, value in changes.changed.items()]
        return DeltaUpdate((*puts, *[Operation("remove", (name,)) for name in changes.deleted]))

    def not_loaded(self) -> dict[str, LazyField]:
        """The fields that are still in the store."""
        return {name: value.field for name, value in super().items() if isinstance(value, Unloaded)}

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, Unloaded):
            value = value.field.load()
            super().__setitem__(name, value)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        if name in self:
            self[name]
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        for name in reversed(self):
            return name, self.pop(name)
        raise KeyError("popitem(): dictionary is empty")

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self.load()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self.load()
        return super().items()

    # Overridden although it does nothing else: without it `dict(state)` would copy the storage past our methods.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        self.load()
        if isinstance(other, HydratedState):
            other.load()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def copy(self) -> dict[str, Any]:
        """A plain dict of all fields."""
        return dict(self.items())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self.copy(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self.copy(),)
