"""What changed between two documents: paths and the hashes of what was and is there.

Objects are compared member by member down to their leaves; an added or removed subtree is its leaves. A list is one
value, and so is an empty object. Values that are the same in canonical JSON are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from analemma.canon.canonical_json import canonical_json
from analemma.canon.pointer import Path, format_pointer

Document = dict[str, Any]


class ChangeKind(StrEnum):
    """What happened to the document as a whole."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    NO_CHANGE = "NO_CHANGE"


@dataclass(frozen=True, slots=True)
class Change:
    """One place that changed. A hash is None where there was, or is, nothing."""

    path: Path
    old_hash: str | None
    new_hash: str | None

    @property
    def pointer(self) -> str:
        """The path as a JSON pointer."""
        return format_pointer(self.path)


@dataclass(frozen=True)
class ChangeSet:
    """Everything that changed, in the order of the paths."""

    kind: ChangeKind
    changes: tuple[Change, ...]

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The places that changed."""
        return tuple(change.path for change in self.changes)


def content_hash(value: Any) -> str:
    """`sha256:` of the canonical JSON of a value."""
    return f"sha256:{hashlib.sha256(canonical_json(value)).hexdigest()}"


def compare_documents(old: Document | None, new: Document | None) -> ChangeSet:
    """The changes from one version of a document to another; None is a document that is not there.

    >>> [change.pointer for change in compare_documents({"a": {"b": 1}}, {"a": {"b": 2}, "c": []}).changes]
    ['/a/b', '/c']
    """
    if old is None and new is None:
        return ChangeSet(ChangeKind.NO_CHANGE, ())
    if old is None:
        return ChangeSet(ChangeKind.CREATE, tuple(_added(new, ())))
    if new is None:
        return ChangeSet(ChangeKind.DELETE, tuple(_removed(old, ())))
    changes = tuple(_differences(old, new, ()))
    return ChangeSet(ChangeKind.UPDATE if changes else ChangeKind.NO_CHANGE, changes)


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if type(value) is dict and value:
        for name in sorted(value):
            yield from _leaves(value[name], (*path, name))
    else:
        yield path, value


def _added(value: Any, path: Path) -> Iterator[Change]:
    return (Change(at, None, content_hash(leaf)) for at, leaf in _leaves(value, path))


def _removed(value: Any, path: Path) -> Iterator[Change]:
    return (Change(at, content_hash(leaf), None) for at, leaf in _leaves(value, path))


def _differences(old: Any, new: Any, path: Path) -> Iterator[Change]:
    if old is new:
        return
    if type(old) is dict and type(new) is dict:
        # That one of them is empty needs no change of its own: the leaves that came or went tell it.
        for name in sorted({*old, *new}):
            below = (*path, name)
            if name not in new:
                yield from _removed(old[name], below)
            elif name not in old:
                yield from _added(new[name], below)
            else:
                yield from _differences(old[name], new[name], below)
        return
    # Inside lists, Python takes 1 for True.
    if type(old) is type(new) and old == new and (type(old) is not list or canonical_json(old) == canonical_json(new)):
        return
    before = {at: content_hash(leaf) for at, leaf in _leaves(old, path)}
    after = {at: content_hash(leaf) for at, leaf in _leaves(new, path)}
    for at in sorted({*before, *after}):
        if before.get(at) != after.get(at):
            yield Change(at, before.get(at), after.get(at))
