"""The dict that users work on: a whole state, read when it is asked for, that knows what was changed in it."""

from __future__ import annotations

from typing import Any

from analemma.bag.base import BagStore, Base
from analemma.bag.changes import find_changes, notice_moves
from analemma.bag.tracked_dict import TrackedDict
from analemma.bag.tracking import Tracked
from analemma.canon.identity import BlockId
from analemma.canon.values import Link, decode, link_wire
from analemma.catalog.port import BranchKey
from analemma.state.delta import DeltaUpdate
from analemma.state.records import Commit


class SmartStateBag(TrackedDict):
    """The state of a workflow, as a dict. Fields are read from the store when they are first asked for; changes, also
    inside of nested dicts and lists, are noticed, and `save` stores only them.

    A bag made from a plain dict has no version yet: everything in it is new. Like a dict, a bag is for one thread at a
    time. Copies and pickles of it, and of what is in it, are plain dicts and lists.

    >>> bag = SmartStateBag({"n": 1, "plan": ["a"]})
    >>> bag["plan"].append("b")
    >>> [tuple(operation) for operation in bag.get_delta().operations]
    [('put', ('n',), 1), ('put', ('plan',), ['a', 'b'])]
    """

    __slots__ = ("_key", "_unsure", "_version", "commit")

    commit: Commit | None
    """What the last save of this bag gave."""
    _key: BranchKey | None
    _version: int | None
    _unsure: bool
    """Whether it was saved, and then could not be brought up to what was saved."""

    def __new__(cls, /, *args: Any, **fields: Any) -> Any:
        return cls._made(Base(), None, 0)

    @classmethod
    def _made(cls, base: Base, wire: Any, depth: int) -> Any:
        made = super()._made(base, wire, depth)
        made.commit = made._key = made._version = None
        made._unsure = False
        return made

    @classmethod
    def _of_version(
        cls, store: BagStore, key: BranchKey, *, manifest: BlockId, version: int, root: Link
    ) -> SmartStateBag:
        made: SmartStateBag = cls._made(Base(store, manifest, root.id), link_wire(root), 0)
        made._become_shell(root.count)
        made._key, made._version = key, version
        return made

    @property
    def manifest_id(self) -> str | None:
        """The version that the changes are relative to; None: nothing was saved yet."""
        return None if self._base.manifest is None else self._base.manifest.hex()

    @property
    def version(self) -> int | None:
        """The number of that version."""
        return self._version

    @property
    def workflow_id(self) -> str | None:
        """Whose state this is."""
        return None if self._key is None else self._key.workflow

    @property
    def owner_id(self) -> str | None:
        """Whose workflow that is."""
        return None if self._key is None else self._key.owner

    @property
    def branch(self) -> str | None:
        """The branch it was read from, and is saved to."""
        return None if self._key is None else self._key.branch

    @property
    def is_changed(self) -> bool:
        """Whether anything was changed since the version. What was set to an equal value may count as changed."""
        return bool(find_changes(self).operations)

    def get_delta(self) -> DeltaUpdate:
        """The operations, in order, that turn the version into what the bag is now. What they hold is a copy."""
        return DeltaUpdate(tuple(find_changes(self, values=True).operations))

    def reset(self) -> None:
        """Forget all changes: the bag, and every container in its version that was handed out, is again as it was
        saved."""
        notice_moves(self._base)
        stack: list[Any] = [self]
        while stack:
            container = stack.pop()
            if isinstance(container, Tracked) and container._base is self._base and container._dirty:
                stack += container._base_children()
                _reset(container)

    def _stored(self, depth: int) -> None:
        # A root is a node of its own however small it is; as a part of something else it may have to stand inline.
        return None


def _reset(container: Tracked) -> None:
    container._restore()
    container._touched = {}
    for key, form in list(container._watched.items()):
        if form is not None:
            container._unload(key, decode(form))
            del container._watched[key]
    container._dirty = bool(container._watched)
