"""What a caller wants changed: a mapping of fields and pointers, or an ordered list of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analemma.canon.edit import Operation
from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path, format_pointer, parse_pointer
from analemma.canon.trees import Edited, Trees
from analemma.errors import Invalid, NotFound


@dataclass(frozen=True, slots=True)
class DeltaUpdate:
    """Changes in the order in which they happened."""

    operations: tuple[Operation, ...]

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """The top-level fields in which something is set, in order of first change."""
        return _fields(operation for operation in self.operations if not _deletes(operation))

    @property
    def deleted_fields(self) -> tuple[str, ...]:
        """The top-level fields that are deleted as a whole."""
        return _fields(operation for operation in self.operations if _deletes(operation) and len(operation.path) == 1)


def read_delta(delta: Mapping[str, Any] | DeltaUpdate, deleted: Iterable[str] = ()) -> DeltaUpdate:
    """The operations that a delta and a list of deletions ask for: first what is set, in order, then what is deleted,
    in order too, or of a set from the end.

    >>> [operation.path for operation in read_delta({"n": 1, "/plan/0/done": True}, ["scratch"]).operations]
    [('n',), ('plan', '0', 'done'), ('scratch',)]
    """
    if isinstance(deleted, str):
        raise Invalid("deleted is one string", hint="pass a list of names or pointers")
    gone = [_path(name) for name in deleted]
    if isinstance(deleted, set | frozenset):
        # It has no order, or another one in each process: from the end, so that each position in a list is that of
        # before, and a request that is made again is the same.
        gone.sort(key=lambda path: [(len(token), token) for token in path], reverse=True)
    if isinstance(delta, DeltaUpdate):
        kept = delta.operations
    elif isinstance(delta, Mapping):
        kept = tuple(Operation("put", _path(key), value) for key, value in delta.items())
    else:
        raise Invalid(f"a delta is a mapping, not a {type(delta).__name__}", hint="pass a dict of changed fields")
    deleted_paths = set(gone)
    # By the lengths that there are: many changes with many deletions would otherwise be compared each with each.
    lengths = {len(path) for path in deleted_paths}
    for operation in kept if lengths else ():
        if not _deletes(operation) and any(tuple(operation.path[:length]) in deleted_paths for length in lengths):
            pointer = format_pointer(operation.path)
            raise Invalid(f"{pointer} is both set and deleted", hint="leave one of the two out", pointer=pointer)
    return DeltaUpdate((*kept, *[Operation("discard", path) for path in gone]))


def apply_update(trees: Trees, root: BlockId | None, update: DeltaUpdate) -> Edited:
    """The tree after the changes to the one at `root` (None: to an empty state); Invalid if they do not fit it."""
    try:
        edited = _edit_empty(trees, update) if root is None else trees.edit(root, update.operations)
    except NotFound as exc:
        raise Invalid(
            f"the delta cannot be applied: {exc.message}",
            hint="what a pointer goes through must exist",
            pointer=exc.facts.get("pointer"),
        ) from exc
    if edited.root.kind != "map":
        raise Invalid("the delta puts something else in the place of the state", hint="a state is a dict of fields")
    return edited


def _edit_empty(trees: Trees, update: DeltaUpdate) -> Edited:
    empty = trees.build({})
    only = {block.id: block.data for block in empty.blocks}
    edited = Trees(lambda blocks: {block: only[block] for block in blocks}, trees.registry).edit(
        empty.root.id, update.operations
    )
    return edited if edited.blocks else empty


def _path(name: Any) -> Path:
    """A field's name, or a JSON pointer when it starts with a slash."""
    if type(name) is not str:
        raise Invalid(f"a delta has a key of type {type(name).__name__}", hint="keys are field names or JSON pointers")
    return parse_pointer(name) if name.startswith("/") else (name,)


def _deletes(operation: Operation) -> bool:
    return operation.op in ("remove", "discard")


def _fields(operations: Iterable[Operation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(operation.path[0] for operation in operations if operation.path))
