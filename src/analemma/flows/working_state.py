"""The state that a run works on: a version, what its segment has changed since, and the part that a node may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from analemma.bag.bag import SmartStateBag
from analemma.bag.changes import find_changes
from analemma.bag.tracked import BagStore
from analemma.canon.nodes import (
    Block,
    BlockId,
    Link,
    Stored,
    Wire,
    link_wire,
)
from analemma.canon.pointer import MAXIMUM_DEPTH, Operation, format_pointer
from analemma.canon.read import MISSING
from analemma.canon.trees import Edited, Trees
from analemma.catalog.port import BranchKey
from analemma.errors import Denied, Invalid
from analemma.flows.handlers import Result
from analemma.flows.naming import path_tokens
from analemma.flows.store_errors import StoreErrors
from analemma.payloads.rings import ALWAYS_EXCLUDED, RESERVED_PREFIXES, RING_RESTRICTIONS, visible_fields
from analemma.state.arguments import DeltaUpdate, is_reserved, read_delta
from analemma.state.contents import apply_update

T = TypeVar("T")
Guard = Callable[[BlockId, Callable[[], T]], T]

FEW_FIELDS: Final = 64
"""A state of so many fields is read as a whole to find some of them."""


class _Part(NamedTuple):
    """Some fields of a state, as a state of its own. Nothing changes it."""

    of: BlockId
    fields: frozenset[str]
    trees: Trees
    root: Link


class WorkingState:
    """A version, and what was changed since; nothing of that is stored. Belongs to one thread."""

    def __init__(
        self, trees: Trees, guard: Any, *, key: BranchKey, manifest: BlockId, version: int, root: Link
    ) -> None:
        self.key = key
        self.manifest = manifest
        self.version = version
        self.base = root
        """Of the version."""
        self.root = root
        """With the changes."""
        self._trees = trees
        self._guard = guard
        self._made: dict[BlockId, Block] = {}
        self._viewed: _Part | None = None
        """What the last node saw: the next one often may see the same, and nothing has changed."""

    @property
    def is_changed(self) -> bool:
        """Whether a commit would make another state."""
        return self.root.id != self.base.id

    @property
    def trees(self) -> Trees:
        """Reads also what was changed."""
        return self._trees.over(self._made) if self._made else self._trees

    def view(self, fields: Iterable[str], store: StoreErrors | None = None) -> SmartStateBag:
        """A bag with these fields, and nothing else to be found in it. What is done to it changes nothing here. `store`
        notes what the store does not answer, also when the bag is read later."""
        wanted, known = frozenset(fields), self._viewed
        if known is None or known.of != self.root.id or known.fields != wanted:
            known = self._viewed = self._part(wanted)
        guard = self._guard if store is None else _noting(self._guard, store)
        return SmartStateBag._of_version(
            BagStore(object(), known.trees, guard),
            self.key,
            manifest=self.manifest,
            version=self.version,
            root=known.root,
        )

    def _part(self, wanted: frozenset[str]) -> _Part:
        trees, root = self.trees, self.root
        wires = _fields(trees, root, wanted)
        if len(wires) != root.count:
            # A state of its own, which shares what is below its fields: what is not granted is not there to be found.
            shared = [Operation("put", (name,), Stored(wire, MAXIMUM_DEPTH - 1)) for name, wire in wires.items()]
            made = apply_update(trees, None, DeltaUpdate(tuple(shared)))
            trees, root = trees.over(made.by_id), made.root
        return _Part(self.root.id, wanted, trees, root)

    def apply(self, operations: Sequence[Operation]) -> None:
        """Change it; Invalid, and nothing is changed, if the operations do not fit."""
        if not operations:
            return
        edited = apply_update(self.trees, self.root.id, DeltaUpdate(tuple(operations)))
        self._made.update({block.id: block for block in edited.blocks})
        self.root = edited.root

    def changes(self) -> list[Operation]:
        """What turns the version into this."""
        return self.trees.diff(self.base.id, self.root.id) if self.is_changed else []

    def tree(self) -> Edited:
        """For a commit: the state, and those of its blocks that the version does not have."""
        if not self.is_changed:
            return Edited(self.root, ())
        found: dict[BlockId, Block] = {}
        level = [self.root.id]
        while level:
            blocks = [self._made[block] for block in level if block in self._made and block not in found]
            found.update({block.id: block for block in blocks})
            level = [link for block in blocks for link in block.links]
        return Edited(self.root, tuple(found.values()))

    def copy(self) -> WorkingState:
        """One to change beside this one, which begins where this is."""
        return WorkingState(
            self.trees, self._guard, key=self.key, manifest=self.manifest, version=self.version, root=self.root
        )

    def committed(self, manifest: BlockId, version: int) -> WorkingState:
        """The same state as a version."""
        return WorkingState(self._trees, self._guard, key=self.key, manifest=manifest, version=version, root=self.root)


def fields_of(node: Mapping[str, Any], ring: str) -> frozenset[str]:
    """What a node, in the form that a segment's configuration has, may see."""
    return visible_fields({"nodes": [node]}, ring)


def operations_of(node: str, bag: SmartStateBag, result: Any) -> tuple[list[Operation], str | None]:
    """What a node wants changed, and its message: first what it did to the state, then what it returned."""
    operations = list(find_changes(bag, values=True).operations)
    if result is None or result is bag:
        return operations, None
    message = None
    deleted: tuple[str, ...] = ()
    if isinstance(result, Result):
        message, deleted, result = result.message, tuple(result.deleted), result.delta
    if not isinstance(result, Mapping | DeltaUpdate):
        raise Invalid(
            f"node {node} returned a {type(result).__name__}",
            hint="return None, a mapping of fields, or a Result",
            node=node,
        )
    return [*operations, *read_delta(result, deleted).operations], message


def check_writes(node: Mapping[str, Any], ring: str, operations: Iterable[Operation]) -> None:
    """Denied for what a node may not write: fields that are reserved, that its ring hides, or that it did not
    declare."""
    declared = [path_tokens(path) for path in node.get("writes", ())]
    hidden = ALWAYS_EXCLUDED | RING_RESTRICTIONS[ring]
    for operation in operations:
        path = operation.path
        if not path:
            raise Invalid(
                f"node {node['id']} puts something else in the place of the state",
                hint="write the fields that change",
                node=node["id"],
            )
        check_field(path[0], f"node {node['id']}")
        if path[0] in hidden:
            raise Denied(
                f"node {node['id']} writes {path[0]}, which its ring hides",
                hint="run it in a ring that may see the field",
                node=node["id"],
                field=path[0],
            )
        if declared and not any(path[: len(each)] == each for each in declared):
            raise Denied(
                f"node {node['id']} writes {format_pointer(path)}, which it does not declare",
                hint="add it to the node's writes",
                node=node["id"],
                field=path[0],
            )


def check_field(field: str, who: str) -> None:
    """Denied for a field that belongs to whoever runs the workflow."""
    if is_reserved(field) or field.startswith(RESERVED_PREFIXES):
        raise Denied(f"{who} writes {field}, which is reserved", hint="choose another name", field=field)


def _fields(trees: Trees, root: Link, wanted: frozenset[str]) -> dict[str, Wire]:
    """Those of the fields that there are, in stored form."""
    if not wanted:
        return {}
    if root.count <= FEW_FIELDS:
        content = trees.open().contents([link_wire(root)])[0]
        assert type(content) is dict
        return {name: wire for name, wire in content.items() if name in wanted}
    names = sorted(wanted)
    wires = trees.open().wires((root.id, (name,)) for name in names)
    return {name: wire for name, wire in zip(names, wires, strict=True) if wire is not MISSING}


def _noting(guard: Any, store: StoreErrors) -> Any:
    def noting(manifest: BlockId, read: Callable[[], T], /) -> T:
        with store.asking():
            return guard(manifest, read)  # type: ignore[no-any-return]

    return noting
