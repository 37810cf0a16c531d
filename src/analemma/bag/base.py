"""Where the containers of a bag come from: a version in a store, and how to read on in it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path
from analemma.canon.read import Parts
from analemma.canon.values import Wire

T = TypeVar("T")


class Guard(Protocol):
    """Reads something of a version, and says Expired when the version went meanwhile."""

    def __call__(self, manifest: BlockId, read: Callable[[], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class BagStore:
    """One tenant's part of a store, as bags see it."""

    domain: object
    """Equal for two bags exactly when one's blocks can be linked by the other."""
    parts: Parts
    guard: Guard


class Place(NamedTuple):
    """Where something stands in the tree of the base's version; looked up when its stored form is wanted."""

    root: BlockId
    path: Path


class Base:
    """A version that containers stand in. Those of a bag share one, which moves on when the bag is saved; what was
    taken out of a bag keeps the version it was last saved in."""

    __slots__ = ("lists", "manifest", "placed", "root", "store")

    def __init__(self, store: BagStore | None = None, manifest: BlockId | None = None, root: BlockId | None = None):
        self.store = store
        self.manifest = manifest
        self.root = root
        self.lists: list[weakref.ref[Any]] = []
        """Lists whose items are in their own storage, where compiled code (heapq) may move them unseen."""
        self.placed: list[weakref.ref[Any]] = []
        """Containers whose stored form is known only as a place in this version."""

    def read(self, reading: Callable[[Parts], T]) -> T:
        """Read something of the version."""
        assert self.store is not None and self.manifest is not None
        parts = self.store.parts
        return self.store.guard(self.manifest, lambda: reading(parts))

    def values(self, wires: Sequence[Wire]) -> list[Any]:
        """The values of these wires, with everything below them."""
        return self.read(lambda parts: parts.values(wires))

    def same_store(self, other: Base) -> bool:
        """Whether a tree in one can link to what is in the other."""
        return self.store is not None and other.store is not None and self.store.domain == other.store.domain

    def frozen(self) -> Base:
        """The version as it is, for containers that do not move on."""
        return Base(self.store, self.manifest, self.root)
