"""What the kernel sees of a catalog's ledger: acknowledged deltas go in, versions and tickets come out.

A backend that has one implements `LedgerCatalog` and passes `analemma.testing.catalog_ledger.CatalogLedgerSuite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from analemma.catalog.port import BranchKey, CommitRequest, Head, Idempotency, KernelCatalog, TenantId, Version


@dataclass(frozen=True, slots=True)
class Delta:
    """A delta as it is kept: canonical bytes, stored as `codec` says."""

    codec: int
    size: int
    """Length of the canonical bytes."""
    body: bytes
    digest: bytes
    """SHA-256 of the canonical bytes."""

    @property
    def length(self) -> int:
        """Of the stored bytes."""
        return len(self.body)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A delta that is to become the next version of a branch."""

    key: BranchKey
    secret: bytes
    """16 random bytes: whoever holds a ticket shows them."""
    delta: Delta
    created_at_us: int
    idempotency_key: str | None = None
    fingerprint: bytes | None = None


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry, with its place among those of its branch."""

    seq: int
    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to become of one entry: a version (`commit`), a version that there is already, or a failure."""

    seq: int
    commit: CommitRequest | None = None
    receipt: bytes | None = None
    """Of the version; None: it failed."""
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class BranchSettlement:
    """The next entries of one branch, oldest first, as versions each on the one before; all of them or none."""

    key: BranchKey
    expected: Head | None
    """The head they were built on; None: the branch begins with them."""
    steps: tuple[Settlement, ...]

    @property
    def head(self) -> Head | None:
        """Where the branch is then."""
        commits = self.commits
        return commits[-1].head if commits else self.expected

    @property
    def first(self) -> Version | None:
        """The first version to make."""
        commits = self.commits
        return commits[0].manifest if commits else None

    @property
    def commits(self) -> list[CommitRequest]:
        """The versions to make, in order."""
        return [step.commit for step in self.steps if step.commit is not None]


@dataclass(frozen=True, slots=True)
class TicketRow:
    """Where an entry stands: neither receipt nor failure while it is pending."""

    key: BranchKey
    at_us: int
    """When it was entered or, later, settled."""
    receipt: bytes | None
    failure: str | None


class LedgerCatalog(KernelCatalog, Protocol):
    """A catalog with a ledger. The entries of one branch have places in the order in which they became durable."""

    def enter(self, tenant: TenantId, entry: LedgerEntry) -> int:
        """Keep the delta, durably; its place."""

    def enter_all(self, tenant: TenantId, entries: Sequence[LedgerEntry]) -> list[int]:
        """Keep these deltas, durably and in one transaction; the place of each."""

    def ticket(self, tenant: TenantId, seq: int, secret: bytes) -> TicketRow | None:
        """Where an entry stands; None unless place, secret and tenant all are its own."""

    def kept_delta(self, tenant: TenantId, seq: int, secret: bytes) -> Delta | None:
        """The delta of an entry that is pending or has failed."""

    def pending_request(self, tenant: TenantId, key: BranchKey, idempotency_key: str) -> bytes | None:
        """The fingerprint of what is pending under this key, if anything."""

    def newest_pending(self, tenant: TenantId, key: BranchKey | None = None) -> int | None:
        """The last place that is taken by an entry that is pending, on one branch or on any."""

    def pending_count(self, tenant: TenantId) -> int:
        """How many entries are pending."""

    def pending_branches(
        self, tenant: TenantId, *, before_us: int | None = None, through: int | None = None, limit: int = 100
    ) -> list[BranchKey]:
        """Branches with entries that are pending; with such as were made before a time, or have a place up to one."""

    def pending_entries(
        self,
        tenant: TenantId,
        keys: Sequence[BranchKey],
        *,
        through: int | None = None,
        most_entries: int,
        most_bytes: int,
    ) -> list[PendingEntry]:
        """By place: the first entries of each branch, up to `through`, at most so many in all; and no further ones
        once their stored bytes reach `most_bytes`."""

    def heads(self, tenant: TenantId, keys: Sequence[BranchKey]) -> dict[BranchKey, Head]:
        """Where those of the branches stand that exist."""

    def settle(self, tenant: TenantId, settlements: Sequence[BranchSettlement]) -> list[bool]:
        """Make versions of entries and take them out of the ledger, durably and in one transaction; for each branch
        whether it was done, which it is not if its head is another by now or one of its entries is not pending any
        more. Raises as `commit` does, and then nothing of any branch is changed."""

    def known_requests(self, tenant: TenantId, entries: Sequence[PendingEntry]) -> dict[int, Idempotency]:
        """What was committed before under the keys of these entries, by place."""

    def forget_tickets(self, tenant: TenantId, *, before_us: int) -> int:
        """Remove what is known of entries that were settled before a time; how many."""
