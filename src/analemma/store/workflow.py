"""A workflow as people work with it: a handle whose verbs are those of the kernel, without repeating whose they are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from analemma.catalog.port import BranchKey, Tag, Verdict, Version
from analemma.errors import Invalid, NotFound
from analemma.state import history
from analemma.state.arguments import CURRENT_HEAD, MAIN, CurrentHead, DeltaUpdate, branch_key, place
from analemma.state.contents import read_fields, read_state
from analemma.state.history import roll_back
from analemma.state.records import Commit, Receipt
from analemma.state.workflows import Branch
from analemma.store.provenance import read_metadata, why_of
from analemma.store.revisions import HEAD, Revision, find_own_version, find_version

if TYPE_CHECKING:
    from analemma.bag.bag import BagKernel, SmartStateBag
    from analemma.state.checkpoints import Ticket
    from analemma.state.merge.histories import Merge
    from analemma.state.merge.values import Strategy
    from analemma.state.removal import DeletedBranch
    from analemma.state.verify import Report

Why = Mapping[str, Any]
"""Where a version comes from: `model`, `prompt`, `tool`, `code_revision`, `actor`, `reason`, or what else one knows."""


class OnBranch(Protocol):
    """A handle on a workflow, also that of `analemma.aio`."""

    @property
    def key(self) -> BranchKey: ...


class Workflow:
    """A workflow, seen from one of its branches. Making one reads nothing; each verb looks at the store anew.

    Where a version is expected, a revision names it: a number, a tag, a branch, `draft@3`, `HEAD~2`, the first digits
    of an id, `@{2026-11-01}`, or what a save gave.

    >>> import analemma
    >>> with analemma.open("sqlite:///:memory:") as store:
    ...     trip = store.workflow("trip", owner="ann")
    ...     first = trip.save({"goal": "Seoul", "plan": []}, message="begin")
    ...     with trip.edit(message="plan") as state:
    ...         state["plan"].append({"day": 1})
    ...     trip.diff(first, "HEAD"), trip.get("/plan/0/day"), trip.load(at=1)
    ([{'op': 'add', 'path': '/plan/0', 'value': {'day': 1}}], 1, {'goal': 'Seoul', 'plan': []})
    """

    key: BranchKey
    """Which branch of which owner's workflow: `key.owner`, `key.workflow`, `key.branch`."""

    def __init__(self, kernel: BagKernel, key: BranchKey) -> None:
        self.key = key
        self._kernel = kernel
        self._place: dict[str, Any] = {"owner_id": key.owner, "workflow_id": key.workflow, "branch": key.branch}

    def __repr__(self) -> str:
        return f"<{place(self.key)}>"

    def save(
        self,
        changes: Mapping[str, Any] | DeltaUpdate,
        *,
        delete: Iterable[str] = (),
        expect: Revision | CurrentHead | None = CURRENT_HEAD,
        key: str | None = None,
        message: str | None = None,
        why: Why | None = None,
        metadata: Mapping[str, Any] | None = None,
        execution: str | None = None,
        segment: int | None = None,
    ) -> Commit:
        """Apply changes, by field or JSON pointer, to the newest state, and make the result the next version.

        With `expect`, only if that version is still the newest (None: if there is none yet): HeadMoved otherwise. The
        same `key` gives the same commit, however often it is asked for."""
        expected = expect if expect is None or isinstance(expect, CurrentHead) else self._id(expect)
        self._check_branch()
        return self._kernel.save_state_delta(
            changes,
            deleted=delete,
            previous_manifest_id=expected,
            idempotency_key=key,
            message=message,
            why=why,
            metadata=metadata,
            execution_id=execution,
            segment_id=segment,
            **self._place,
        )

    def edit(
        self,
        *,
        key: str | None = None,
        message: str | None = None,
        why: Why | None = None,
        metadata: Mapping[str, Any] | None = None,
        execution: str | None = None,
        segment: int | None = None,
        rebase: bool = False,
        strategies: Mapping[str, Strategy] | None = None,
    ) -> AbstractContextManager[SmartStateBag]:
        """`with trip.edit() as state:` gives the newest state as a dict, and saves at the end what was changed in it:
        no version if nothing was, and none after an exception. Afterwards its `commit` is the commit. HeadMoved if
        somebody else saved meanwhile; with `rebase`, both changes stand where they fit, and `strategies` decide."""
        self._check_branch()
        return self._kernel.session(
            idempotency_key=key,
            message=message,
            why=why,
            metadata=metadata,
            execution_id=execution,
            segment_id=segment,
            rebase=rebase,
            strategies=strategies,
            **self._place,
        )

    def update(
        self,
        function: Callable[[SmartStateBag], object],
        *,
        key: str | None = None,
        message: str | None = None,
        why: Why | None = None,
        metadata: Mapping[str, Any] | None = None,
        execution: str | None = None,
        segment: int | None = None,
    ) -> Commit | None:
        """Change the newest state by a function, again if somebody else was faster. The function changes the state that
        it is given, or gives back the changes, as `save` takes them. None, and no version, if it changed nothing."""
        from analemma.bag.settle import take
        from analemma.bag.tracked_dict import TrackedDict

        self._check_branch()

        def change(state: SmartStateBag) -> object:
            given = function(state)
            if not isinstance(given, DeltaUpdate | Mapping) or isinstance(given, TrackedDict):
                return given
            if state.is_changed:
                raise Invalid("the function changed the state and gave changes back", hint="do one of the two")
            take(state, self._kernel._trees, given)
            return None

        return self._kernel.update(
            change,
            idempotency_key=key,
            message=message,
            why=why,
            metadata=metadata,
            execution_id=execution,
            segment_id=segment,
            **self._place,
        )

    def checkpoint(
        self,
        changes: Mapping[str, Any] | DeltaUpdate,
        *,
        delete: Iterable[str] = (),
        key: str | None = None,
        message: str | None = None,
        why: Why | None = None,
        metadata: Mapping[str, Any] | None = None,
        execution: str | None = None,
        segment: int | None = None,
    ) -> WorkflowTicket:
        """Accept changes, durably, without waiting until they are a version: soon they will be, in order and once.
        `ticket.wait(30)` gives the commit."""
        self._check_branch()
        ticket = self._kernel.checkpoint_async(
            changes,
            deleted=delete,
            idempotency_key=key,
            message=message,
            why=why,
            metadata=metadata,
            execution_id=execution,
            segment_id=segment,
            **self._place,
        )
        return WorkflowTicket(self._kernel, ticket)

    def load(self, at: Revision = HEAD) -> dict[str, Any]:
        """The whole state of a version; NotFound if there is none."""
        return read_state(self._kernel, self._find(at).id)

    def get(self, path: str, default: Any = None, *, at: Revision = HEAD) -> Any:
        """What stands at a field or JSON pointer, of which no more is read; or the default."""
        return read_fields(self._kernel, self._find(at).id, [path]).get(path, default)

    def __getitem__(self, path: str) -> Any:
        found = read_fields(self._kernel, self._find(HEAD).id, [path])
        if path not in found:
            raise NotFound(f"{place(self.key)} has nothing at {path}", hint="get() gives a default", path=path)
        return found[path]

    def at(self, revision: Revision) -> WorkflowVersion:
        """One version, for good: `metadata`, `why`, `load()`, `get(path)`."""
        return WorkflowVersion(self._kernel, self._find(revision))

    def log(
        self,
        *,
        execution: str | None = None,
        segment: int | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        decision: Verdict | None = None,
    ) -> Iterator[Version]:
        """All versions of the branch, newest first, and on into those that it was forked from; or those of one
        execution, one segment, a time, or a newest decision. Reads a page when it comes to it."""
        return history.walk(
            self._kernel,
            self.key,
            execution_id=execution,
            segment_id=segment,
            since=since,
            until=until,
            decision=decision,
        )

    def diff(self, old: Revision, new: Revision = HEAD, *, old_values: bool = False) -> list[dict[str, Any]]:
        """How one version becomes another, as JSON Patch operations; with `old_values`, each that replaces or removes
        something says under `old` what."""
        before, after = self._find(old), self._find(new)
        changes = history.changes_between(self._kernel, before, after)
        patches = [history.patch_of(change) for change in changes]
        if old_values:
            from analemma.bag.settle import replaced

            state = self._kernel.load_state(before.manifest_id, lazy=True)
            for change, patch, old in zip(changes, patches, replaced(state, changes), strict=True):
                if change.op != "add":
                    patch["old"] = old
        return patches

    def blame(self, path: str) -> Version:
        """The version that last changed what stands at a field or JSON pointer."""
        return self._kernel.blame(path=path, **self._place)

    def verify(self, *, expect: Receipt | Commit | None = None) -> Report:
        """Check the branch down to its last block; with a receipt that was kept elsewhere, also that it still shows
        what that is for."""
        return self._kernel.verify(expect=expect.receipt if isinstance(expect, Commit) else expect, **self._place)

    def watch(self, *, since: int | None = None, timeout_s: float | None = None) -> Iterator[Version]:
        """Every version from now on, or after the number `since`, as it is committed; ends after `timeout_s` without
        any."""
        return self._kernel.watch(since=since, timeout_s=timeout_s, **self._place)

    def branch(self, name: str, *, at: Revision | None = None, message: str | None = None) -> Workflow:
        """The same workflow, seen from another branch; NotFound if there is none. With `at`, a new one that begins at
        that version; Conflict if there is one already."""
        key = branch_key(self.key.owner, self.key.workflow, name)
        if at is None:
            self._kernel._commits.head(key)
        else:
            source = self._own(at).manifest_id
            self._kernel.fork(source, branch=name, owner_id=key.owner, message=message)
        return Workflow(self._kernel, key)

    def branches(self) -> list[Branch]:
        """All branches, oldest first: where each began, and where it stands."""
        return self._kernel.branches(owner_id=self.key.owner, workflow_id=self.key.workflow)

    def merge(
        self,
        source: OnBranch | Revision,
        *,
        strategy: Strategy = "refuse",
        strategies: Mapping[str, Strategy] | None = None,
        message: str | None = None,
        preview: bool = False,
    ) -> Merge:
        """Bring into this branch what another has changed since the two were one; Conflict, with `conflicts`, where no
        strategy decides."""
        if isinstance(source, Workflow):
            same = source.key._replace(branch=self.key.branch) == self.key
            named = source.key.branch if same else source._find(HEAD).manifest_id
        else:
            named = self._id(cast(Revision, source))
        return self._kernel.merge(
            source=named,
            into=self.key.branch,
            owner_id=self.key.owner,
            workflow_id=self.key.workflow,
            strategy=strategy,
            strategies=strategies,
            message=message,
            preview=preview,
        )

    def rollback(self, to: Revision, *, expect: Revision | None = None, deep: bool = False) -> Commit:
        """Make the state of an earlier version the newest again, as a new version; with `expect`, only on that one."""
        expected = None if expect is None else self._id(expect)
        return roll_back(self._kernel, self.key, self._own(to), previous_manifest_id=expected, deep=deep)

    def tag(self, name: str, at: Revision = HEAD, *, message: str | None = None, force: bool = False) -> Tag:
        """Name a version, which then never expires. A name that is on another is moved only with `force`."""
        return self._kernel.tag(self._own(at).manifest_id, name, owner_id=self.key.owner, message=message, force=force)

    def tags(self) -> list[Tag]:
        """All tags of the workflow, oldest first."""
        return self._kernel.tags(owner_id=self.key.owner, workflow_id=self.key.workflow)

    def untag(self, name: str) -> None:
        """Remove a tag; NotFound if there is none."""
        self._kernel.untag(name, owner_id=self.key.owner, workflow_id=self.key.workflow)

    def delete(self, *, force: bool = False) -> list[DeletedBranch]:
        """Delete the workflow with all that belongs to it, whatever branch this is; until the grace is over, `undelete`
        brings it back. Conflict while a run goes on, unless with `force`, which cancels it."""
        return self._kernel.delete(owner_id=self.key.owner, workflow_id=self.key.workflow, force=force)

    def delete_branch(self, name: str, *, force: bool = False) -> DeletedBranch:
        """The same with one branch. Those that were forked from it keep what they have from it."""
        return self._kernel.delete(**{**self._place, "branch": name}, force=force)[0]

    def undelete(self) -> list[DeletedBranch]:
        """Have back what was deleted last of the workflow, as it was; NotFound if nothing is deleted, Conflict if a
        name was used again since: then that branch cannot be had back any more."""
        return self._kernel.undelete(owner_id=self.key.owner, workflow_id=self.key.workflow)

    def undelete_branch(self, name: str) -> DeletedBranch:
        """The same with one branch."""
        return self._kernel.undelete(**{**self._place, "branch": name})[0]

    def deleted(self) -> list[DeletedBranch]:
        """The branches that are deleted and can be had back, and until when."""
        return self._kernel.deleted(owner_id=self.key.owner, workflow_id=self.key.workflow)

    def _find(self, revision: Revision) -> Version:
        key = self.key
        return find_version(self._kernel, revision, owner=key.owner, workflow=key.workflow, branch=key.branch)

    def _id(self, revision: Revision) -> str:
        """The manifest that a revision names; what an earlier call gave needs no look."""
        named = getattr(revision, "manifest_id", None)
        return named if isinstance(named, str) else self._find(revision).manifest_id

    def _own(self, revision: Revision) -> Version:
        return find_own_version(self._kernel, revision, self.key)

    def _check_branch(self) -> None:
        """A save begins a workflow, but no branch: one whose name was mistyped would go unnoticed."""
        if self.key.branch != MAIN:
            self._kernel._commits.head(self.key)


class WorkflowVersion:
    """One version of a workflow, which never changes."""

    manifest_id: str
    version: int
    row: Version
    """All that is known of it without reading it: who made it, when, on what, with which message."""
    metadata: dict[str, Any] | None
    """What was kept with it."""
    why: dict[str, Any] | None
    """Of the metadata, where the version comes from."""

    def __init__(self, kernel: BagKernel, row: Version) -> None:
        self._kernel = kernel
        self.row = row
        self.manifest_id = row.manifest_id
        self.version = row.version
        self.metadata = read_metadata(kernel, row.id)
        self.why = why_of(self.metadata)

    def __repr__(self) -> str:
        return f"<version {self.version} of {place(self.row.key)}>"

    def load(self) -> dict[str, Any]:
        """Its whole state."""
        return read_state(self._kernel, self.row.id)

    def get(self, path: str, default: Any = None) -> Any:
        """What stands at a field or JSON pointer, or the default."""
        return read_fields(self._kernel, self.row.id, [path]).get(path, default)


class WorkflowTicket:
    """A checkpoint that is on its way to becoming a version. Its text is a token, which any process can ask about."""

    ticket: Ticket

    def __init__(self, kernel: BagKernel, ticket: Ticket) -> None:
        self._kernel = kernel
        self.ticket = ticket

    def __str__(self) -> str:
        return str(self.ticket)

    def __repr__(self) -> str:
        return f"<{self}>"

    def wait(self, timeout_s: float = 30.0) -> Commit:
        """The commit that it became; Timeout if there is none yet, or the reason why there will be none."""
        return self._kernel.wait_for(self.ticket, timeout_s)

    def look(self) -> Ticket:
        """What is known of it now: `status`, and `version` or `reason`."""
        return self._kernel.ticket(self.ticket)
