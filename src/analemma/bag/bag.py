"""The kernel's verbs that load and save bags: the dicts that users work on. Each is a whole state, read when it is
asked for, and knows what was changed in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from analemma.bag.changes import Changes, find_changes, forget_places, notice_moves
from analemma.bag.settle import follow, separate, settle
from analemma.bag.tracked import BagStore, Base, Tracked
from analemma.bag.tracked_dict import TrackedDict
from analemma.canon.nodes import Block, BlockId, Link, decode, link_wire
from analemma.canon.pointer import MAXIMUM_DEPTH
from analemma.canon.trees import Edited, Operation, Trees
from analemma.catalog.port import BranchKey, Head
from analemma.errors import Conflict, Corrupt, Expired, HeadMoved, Internal, Invalid, NotFound
from analemma.state.arguments import (
    CURRENT_HEAD,
    MAIN,
    DeltaUpdate,
    branch_key,
    check_name,
    check_new_branch,
    explained,
    place,
)
from analemma.state.commits import Proposal
from analemma.state.contents import digest, empty_state, latest_version, read_state
from analemma.state.kernel import Kernel
from analemma.state.records import Commit

# Loaded by who rebases: every program has the verbs.
if TYPE_CHECKING:
    from analemma.state.merge.values import Strategies, Strategy

T = TypeVar("T")


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
            if not isinstance(container, Tracked) or container._base is not self._base or not container._dirty:
                continue
            stack += container._base_children()
            container._restore()
            container._touched = {}
            for key, form in list(container._watched.items()):
                if form is not None:
                    container._unload(key, decode(form))
                    del container._watched[key]
            container._dirty = bool(container._watched)

    def _stored(self, depth: int) -> None:
        # A root is a node of its own however small it is; as a part of something else it may have to stand inline.
        return None


@dataclass(frozen=True, slots=True)
class _Request:
    """What a save was asked for."""

    key: BranchKey
    rebase: bool
    execution_id: str | None
    segment_id: int | None
    idempotency_key: str | None
    message: str | None
    metadata: Mapping[str, Any] | None
    why: Mapping[str, Any] | None
    strategies: Strategies | None = None
    is_update: bool = False
    """Whether the same request may be made of another version, and come to something else there."""

    def __post_init__(self) -> None:
        self.explained()

    def explained(self) -> dict[str, Any] | None:
        """What is to be kept beside the version: whoever has a session may say it until the end."""
        return explained(self.metadata, self.why)


@overload
def load_latest_state(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    execution_id: str | None = None,
    branch: str = MAIN,
    lazy: Literal[False] = False,
) -> dict[str, Any]: ...


@overload
def load_latest_state(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    execution_id: str | None = None,
    branch: str = MAIN,
    lazy: Literal[True],
) -> SmartStateBag: ...


def load_latest_state(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    execution_id: str | None = None,
    branch: str = MAIN,
    lazy: bool = False,
) -> dict[str, Any]:
    """The newest state of a branch, or of one execution on it; NotFound if there is none. With `lazy`, a
    SmartStateBag: its fields are read when they are asked for, and `save` stores what was changed in it."""
    found = latest_version(kernel, branch_key(owner_id, workflow_id, branch), execution_id)
    return open_bag(kernel, found) if lazy else read_state(kernel, found)


@overload
def load_state(
    kernel: Kernel, manifest_id: str, *, owner_id: str | None = None, lazy: Literal[False] = False
) -> dict[str, Any]: ...


@overload
def load_state(
    kernel: Kernel, manifest_id: str, *, owner_id: str | None = None, lazy: Literal[True]
) -> SmartStateBag: ...


def load_state(kernel: Kernel, manifest_id: str, *, owner_id: str | None = None, lazy: bool = False) -> dict[str, Any]:
    """The whole state of one version; with `lazy`, as a SmartStateBag."""
    found = kernel._row(manifest_id, owner_id).id
    return open_bag(kernel, found) if lazy else read_state(kernel, found)


def save(
    kernel: Kernel,
    bag: SmartStateBag,
    *,
    rebase: bool = False,
    workflow_id: str | None = None,
    owner_id: str | None = None,
    branch: str | None = None,
    execution_id: str | None = None,
    segment_id: int | None = None,
    idempotency_key: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    why: Mapping[str, Any] | None = None,
    strategies: Mapping[str, Strategy] | None = None,
) -> Commit:
    """Make what the bag is now the next version of its branch; what it costs follows what was changed.

    The head must still be the version that the bag was read or saved as, or HeadMoved is raised and nothing
    changes, neither the store nor the bag. With `rebase`, what others changed meanwhile stays, and the bag shows it
    afterwards. What both appended to a list stands, theirs first. Where both changed the same, also if they came to
    the same, `strategies` (as those of `merge`: ours is the branch, theirs the bag) decide, or Conflict is raised,
    with `conflicts`. `why` is that of `save_state_delta`. Every save makes a version, also one without changes. A
    bag that was made from a plain dict needs `workflow_id` and `owner_id` at its first save, which begins the
    branch."""
    if not isinstance(bag, SmartStateBag):
        raise Invalid(f"a {type(bag).__name__} is no bag", hint="load one with lazy=True, or make a SmartStateBag")
    key, chosen = _bag_key(kernel, bag, owner_id, workflow_id, branch), _strategies(strategies, rebase)
    asked = (execution_id, segment_id, idempotency_key, message, metadata, why)
    commit = _save_bag(kernel, bag, _Request(key, rebase, *asked, chosen))
    assert commit is not None
    return commit


def _save_bag(kernel: Kernel, bag: SmartStateBag, request: _Request, *, only_changes: bool = False) -> Commit | None:
    """Save a bag; None, if only changes are to be saved and there are none."""
    gone: set[BlockId] = set()
    while True:
        work = _Save(kernel, bag, request, gone)
        if only_changes and work.edited.root.id == work.base_root:
            return None
        try:
            return work.run()
        except Expired:
            # What came from a version that is no more can still be written as a value, as long as it can be read.
            missing = {each for each in work.changes.bases if kernel._catalog.manifest(kernel._tenant, each) is None}
            if missing <= gone:
                raise
            gone |= missing


def session(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    rebase: bool = False,
    execution_id: str | None = None,
    segment_id: int | None = None,
    idempotency_key: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    why: Mapping[str, Any] | None = None,
    strategies: Mapping[str, Strategy] | None = None,
) -> AbstractContextManager[SmartStateBag]:
    """`with k.session(...) as state:` gives the newest state as a bag, an empty one if the branch does not exist
    yet, and saves it at the end; an exception saves nothing. Afterwards the bag's `commit` is the commit, or None
    if nothing was changed: then there is no new version. `rebase`, `why` and `strategies` are those of `save`."""
    key, chosen = branch_key(owner_id, workflow_id, branch), _strategies(strategies, rebase)
    asked = (execution_id, segment_id, idempotency_key, message, metadata, why)
    return _session(kernel, _Request(key, rebase, *asked, chosen))


def update(
    kernel: Kernel,
    function: Callable[[SmartStateBag], object],
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    execution_id: str | None = None,
    segment_id: int | None = None,
    idempotency_key: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    why: Mapping[str, Any] | None = None,
) -> Commit | None:
    """Change the newest state by a function, and if somebody else was faster, do it again with what is newest then.

    The function gets the state as a bag, an empty one if the branch does not exist yet, and changes it. It is
    called once for each attempt, so it should do nothing else. None if it changed nothing: then there is no new
    version. Under an `idempotency_key` that was used already the function is not called, and the commit is that of
    the first time; functions are not compared."""
    key = branch_key(owner_id, workflow_id, branch)
    asked = (execution_id, segment_id, idempotency_key, message, metadata, why)
    request = _Request(key, False, *asked, is_update=True)
    fingerprint = _fingerprint(kernel, request, ["update"])
    for _ in kernel._commits.attempts(key):
        known = kernel._commits.known(key, idempotency_key, fingerprint)
        if known is not None:
            return known
        bag = _session_bag(kernel, key)
        try:
            _change(bag, function)
        except Expired:
            # The version may have gone while the function read it, but the newest never does.
            if kernel._commits.head(key).manifest == bag._base.manifest:
                raise
        else:
            with suppress(HeadMoved):
                return _save_session(kernel, bag, request)
    raise AssertionError("unreachable")


@contextmanager
def _session(kernel: Kernel, request: _Request) -> Iterator[SmartStateBag]:
    bag = _session_bag(kernel, request.key)
    yield bag
    _save_session(kernel, bag, request)


def _session_bag(kernel: Kernel, key: BranchKey) -> SmartStateBag:
    head = kernel._commits.head_after_pending(key)
    return SmartStateBag() if head is None else open_bag(kernel, head.manifest)


def _save_session(kernel: Kernel, bag: SmartStateBag, request: _Request) -> Commit | None:
    """Save what was changed; None if nothing was."""
    _bag_key(kernel, bag, request.key.owner, request.key.workflow, request.key.branch)
    return _save_bag(kernel, bag, request, only_changes=True)


def _domain(kernel: Kernel) -> object:
    """Equal for the kernels of one tenant of one store."""
    return id(kernel._catalog), kernel._tenant


def _store(kernel: Kernel) -> BagStore:
    return BagStore(_domain(kernel), kernel._trees, kernel._commits.guarded)


def open_bag(kernel: Kernel, manifest: BlockId) -> SmartStateBag:
    """The state of a version that is known to be there."""
    found = kernel._commits.manifest(manifest)
    if found.root.kind != "map":
        raise Corrupt(f"the state of manifest {manifest.hex()} is no dict", block=manifest.hex())
    return SmartStateBag._of_version(
        _store(kernel), found.key, manifest=manifest, version=found.version, root=found.root
    )


def _bag_key(
    kernel: Kernel, bag: SmartStateBag, owner_id: str | None, workflow_id: str | None, branch: str | None
) -> BranchKey:
    known = bag._key
    if bag._unsure:
        raise Conflict(
            "the bag was saved, but could not be brought up to what was saved", hint="load the newest state again"
        )
    if known is None:
        if owner_id is None or workflow_id is None:
            raise Invalid("the bag belongs to no workflow yet", hint="pass workflow_id and owner_id")
        bag._base.store = _store(kernel)
        return branch_key(owner_id, workflow_id, MAIN if branch is None else branch)
    if _domain(kernel) != getattr(bag._base.store, "domain", None):
        raise Invalid("the bag was read from another store or tenant", hint="save it with the kernel it came from")
    asked = (owner_id or known.owner, workflow_id or known.workflow, branch or known.branch)
    if asked != (known.owner, known.workflow, known.branch):
        raise Invalid(f"the bag belongs to {place(known)}", hint="fork the version, and load the fork")
    return known


class _Save:
    """A save under way. Until it is committed nothing is changed, neither the store nor the bag."""

    def __init__(self, kernel: Kernel, bag: SmartStateBag, request: _Request, gone: set[BlockId]) -> None:
        self._kernel = kernel
        self._bag = bag
        self._request = request
        self._gone = gone
        """Versions that have expired: what came from them is written as values."""
        base, trees = bag._base, kernel._trees
        forget_places(base)
        self.changes = find_changes(bag, by_value=gone)
        if base.root is None:
            trees, empty = empty_state(trees)
            self.base_root = empty.root.id
            edited = self._edit(trees, self.base_root, self.changes.operations)
            self.edited = edited if edited.blocks else empty
        else:
            self.base_root = base.root
            self.edited = self._edit(trees, base.root, self.changes.operations)
        self._base_trees = trees
        self._metadata: Any = None
        self._metadata_blocks: tuple[Block, ...] = ()
        metadata = request.explained()
        if metadata is not None:
            self._metadata, self._metadata_blocks = kernel._trees.pack(metadata)
        came_to = ["update"] if request.is_update else [bag.manifest_id, self.edited.root.id]
        self._fingerprint = _fingerprint(kernel, request, came_to)

    @property
    def _trees(self) -> Trees:
        """Reads also what the save has made and not stored yet."""
        return self._base_trees.over(self.edited.by_id)

    def run(self) -> Commit:
        """Commit, and let the bag stand for the version that it was saved as."""
        commits, request, base = self._kernel._commits, self._request, self._bag._base.manifest
        asked = request.idempotency_key, self._fingerprint
        try:
            commit = commits.commit_next(request.key, base, lambda head: self._proposal(self.edited, head), asked)
        except HeadMoved:
            if not request.rebase:
                raise
            commit = self._guarded([] if base is None else [base], self._commit_rebased)
        self._settle(commit)
        return commit

    def _edit(self, trees: Trees, root: BlockId, operations: Iterable[Operation]) -> Edited:
        return self._guarded(self.changes.bases, lambda: trees.edit(root, operations))

    def _guarded(self, manifests: Iterable[BlockId], read: Callable[[], T]) -> T:
        """Read what is of these versions; Expired if one of them went meanwhile."""
        for manifest in manifests:
            read = partial(self._kernel._commits.guarded, manifest, read)
        return read()

    def _commit_rebased(self) -> Commit:
        from analemma.state.merge.values import Roots, Strategies, rebase

        kernel, request = self._kernel, self._request
        strategies = request.strategies or Strategies()

        def propose(head: Head | None) -> Proposal:
            if head is None:
                raise NotFound(f"there is no {place(request.key)}", hint="fork the bag's version instead")
            root = kernel._commits.manifest(head.manifest).root.id
            roots = Roots(self.base_root, root, self.edited.root.id)
            operations = rebase(roots, self.changes.operations, self._trees, strategies)
            return self._proposal(self._edit(kernel._trees, root, operations), head)

        return kernel._commits.commit_next(
            request.key, CURRENT_HEAD, propose, (request.idempotency_key, self._fingerprint)
        )

    def _proposal(self, edited: Edited, head: Head | None) -> Proposal:
        request = self._request
        if head is None:
            check_new_branch(request.key.branch)
        base = None if head is None else self._kernel._commits.manifest(head.manifest)
        return Proposal.on(
            base,
            request.key,
            Edited(edited.root, (*edited.blocks, *self._metadata_blocks)),
            head,
            bases=tuple(self.changes.bases),
            execution=request.execution_id,
            segment=request.segment_id,
            message=request.message,
            metadata=self._metadata,
            idempotency_key=request.idempotency_key,
            fingerprint=self._fingerprint,
        )

    def _settle(self, commit: Commit) -> None:
        bag, changes, receipt = self._bag, self.changes, commit.receipt
        # Until the end: whatever fails from here on, the commit has happened, and the bag may not show it.
        bag._unsure = True
        bag.commit = commit
        if receipt.root != self.edited.root.id:
            changes = self._catch_up(receipt.root)
        # The operations hold what was put into the bag; only without them can it be seen who else does.
        self.changes.operations.clear()
        changes.operations.clear()
        settle(bag, changes, receipt.manifest, receipt.root)
        bag._key, bag._version = self._request.key, receipt.version
        bag._unsure = False

    def _catch_up(self, root: BlockId) -> Changes:
        """Make the bag show a tree that has more changes than its own; all of them, relative to its base."""
        bag, made, length = self._bag, self._trees, MAXIMUM_DEPTH
        # Where one container stands at several places, what others did to each of them is done to it more than once, if
        # that is possible at all; what comes out is compared with the tree in any case.
        with suppress(LookupError, TypeError, ValueError):
            follow(bag, made.diff(self.edited.root.id, root))
        while True:
            changes = find_changes(bag, by_value=self._gone)
            shown = made.edit(self.base_root, changes.operations)
            if shown.root.id == root:
                return changes
            if length == 1:
                raise Internal("a bag does not show what was saved", root=root.hex())
            # The innermost containers first, so that as much as possible stays the object that it was.
            trees = made.over(shown.by_id)
            paths = [operation.path for operation in trees.diff(shown.root.id, root)]
            length = max(1, min(length - 1, max([2, *[len(path) - 1 for path in paths]])))
            separate(bag, paths, trees, root, length)


def _fingerprint(kernel: Kernel, request: _Request, came_to: list[Any]) -> bytes:
    """What tells whether a request under the same idempotency key is the same; of an update, what is the same however
    often it is tried."""
    if request.idempotency_key is None:
        return b""
    check_name(request.idempotency_key, "idempotency key")
    key, trees = request.key, kernel._trees
    asked: list[Any] = [
        [key.owner, key.workflow, key.branch, *came_to],
        [request.execution_id, request.segment_id, request.message],
        request.explained(),
    ]
    try:
        return sha256(b"bag" + trees.build(asked).root.id).digest()
    except Invalid:
        # As in `_fingerprint` of a delta: with a list around it, metadata can be nested too deep.
        asked[2] = digest(kernel, asked[2], ())
        return sha256(b"deep bag" + trees.build(asked).root.id).digest()


def _strategies(strategies: Mapping[str, Strategy] | None, rebase: bool) -> Strategies | None:
    if strategies and not rebase:
        raise Invalid("there are strategies, but no rebase that would ask them", hint="pass rebase=True too")
    if not strategies:
        return None
    from analemma.state.merge.values import Strategies

    return Strategies(patterns=strategies)


def _change(bag: SmartStateBag, function: Callable[[SmartStateBag], object]) -> None:
    """Let a function change the bag. One that makes another dict, or a coroutine, would change nothing unnoticed."""
    answer = function(bag)
    if inspect.iscoroutine(answer):
        answer.close()
        raise Invalid("the function of an update is asynchronous", hint="pass a plain function, which runs in a thread")
    if isinstance(answer, Mapping) and not isinstance(answer, TrackedDict):
        raise Invalid(
            f"the function of an update gave a {type(answer).__name__} back", hint="change the state that it is given"
        )


class BagKernel(Kernel):
    """The kernel with the verbs that load and save bags."""

    load_latest_state = load_latest_state
    load_state = load_state
    save = save
    session = session
    update = update
