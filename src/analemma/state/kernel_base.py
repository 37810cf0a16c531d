"""What the kernel's verbs share: finding heads and versions, reading through expiry, committing on whatever is
newest."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from analemma.canon.identity import BlockId, parse_block_id
from analemma.canon.pointer import Path, parse_pointer
from analemma.canon.tree import Trees
from analemma.catalog.port import BranchKey, ExpiredRow, Head, KernelCatalog, ManifestRow, TenantId
from analemma.clock import Clock
from analemma.errors import Conflict, Corrupt, Expired, HeadMoved, NotFound
from analemma.state.arguments import check_version
from analemma.state.block_store import BlockStore, Carried
from analemma.state.committer import Committer, Outcome, Proposal
from analemma.state.manifests import Manifest, decode_manifest

T = TypeVar("T")

MAIN = "main"
MOST_TRIES = 1000
"""A save without a stated predecessor builds on whatever is newest; so often in a row someone else may be faster."""


class CurrentHead:
    """Stands for "whatever is newest" where a caller could name a predecessor or None."""

    def __repr__(self) -> str:
        return "<current head>"


CURRENT_HEAD = CurrentHead()


class KernelBase:
    """One tenant's part of a store, as the verbs see it."""

    def __init__(
        self,
        catalog: KernelCatalog,
        tenant: TenantId,
        *,
        blocks: BlockStore,
        trees: Trees,
        committer: Committer,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._blocks = blocks
        self._trees = trees
        self._committer = committer
        self._clock = clock

    def _commit(
        self, key: BranchKey, expected: BlockId | CurrentHead | None, propose: Callable[[Head | None], Proposal]
    ) -> Outcome:
        """Commit on the expected head, or on whatever is newest, again and again until nobody was faster. A proposal
        that cannot be made at all raises anything but HeadMoved."""
        carried = Carried()
        for attempt in range(MOST_TRIES):
            head = self._catalog.head(self._tenant, key)
            if not isinstance(expected, CurrentHead) and (None if head is None else head.manifest) != expected:
                raise _moved(key, expected, head)
            try:
                return self._committer.commit(propose(head), carried)
            except HeadMoved:
                # A journal record alone (a tag, a decision) moves the tip but not the manifest: that is no conflict
                # either.
                if attempt > 3:
                    self._clock.sleep(random.uniform(0, 0.002 * min(attempt, 10)))
        raise Conflict(f"{place(key)} changes too fast to save", hint="save less often, or from fewer places")

    def _read_manifest(self, manifest: BlockId) -> Manifest:
        return self._guarded(manifest, lambda: decode_manifest(manifest, self._blocks.fetch([manifest])[manifest]))

    def _guarded(self, manifest: BlockId, read: Callable[[], T]) -> T:
        """Read something of a version. A block that is gone means damage, unless the version itself went meanwhile."""
        try:
            return read()
        except Corrupt as exc:
            if exc.facts.get("missing") and self._catalog.manifest(self._tenant, manifest) is None:
                raise Expired(f"manifest {manifest.hex()} has expired", manifest=manifest.hex()) from exc
            raise

    def _row(self, manifest_id: str, owner_id: str | None) -> ManifestRow:
        manifest = parse_block_id(manifest_id)
        row = self._catalog.manifest(self._tenant, manifest)
        if row is None:
            gone = self._catalog.expired(self._tenant, manifest)
            if gone is not None and owner_id in (None, gone.key.owner):
                raise expired(gone)
        if row is None or (owner_id is not None and row.key.owner != owner_id):
            raise NotFound(f"there is no manifest {manifest_id}", manifest=manifest_id)
        return row

    def _version_row(self, key: BranchKey, version: int) -> ManifestRow:
        check_version(version)
        rows = self._catalog.history(self._tenant, key, before_version=version + 1, limit=1)
        if not rows or rows[0].version != version:
            gone = self._catalog.expired_version(self._tenant, key, version)
            if gone is not None:
                raise expired(gone)
            newest = self._head(key).version
            raise NotFound(f"{place(key)} has no version {version}", hint=f"its newest is {newest}", version=version)
        return rows[0]

    def _head(self, key: BranchKey) -> Head:
        head = self._catalog.head(self._tenant, key)
        if head is None:
            raise NotFound(f"there is no {place(key)}", hint="check the owner, the workflow and the branch")
        return head


def expired(gone: ExpiredRow) -> Expired:
    """What whoever asks for a version that expired is told."""
    return Expired(
        f"version {gone.version} of {place(gone.key)} has expired",
        hint="tag or pin versions that must stay",
        manifest=gone.manifest.hex(),
        version=gone.version,
        expired_at_us=gone.expired_at_us,
    )


def field_path(name: str) -> Path:
    """A field's name, or a JSON pointer when it starts with a slash."""
    return parse_pointer(name) if name.startswith("/") else (name,)


def place(key: BranchKey) -> str:
    """A branch as messages name it."""
    return f"workflow {key.owner}/{key.workflow}" + ("" if key.branch == MAIN else f" on branch {key.branch}")


def _moved(key: BranchKey, expected: BlockId | CurrentHead | None, found: Head | None) -> HeadMoved:
    if not isinstance(expected, bytes):
        message = f"{place(key)} exists already" if found is not None else f"there is no {place(key)}"
    elif found is None:
        message = f"{place(key)} has no version yet, so none to build on"
    else:
        message = f"{place(key)} has moved on from manifest {expected.hex()[:12]}: it is at version {found.version}"
    return HeadMoved(message, hint="reload and retry", key=key, expected=expected, found=found)
