"""What planning and running a collection have in common: options, and what they ask of the rest of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from analemma.blocks.store import BlockStore
from analemma.catalog.collecting import Collecting
from analemma.catalog.collecting_uploads import CollectingUploads
from analemma.clock import Clock
from analemma.gc.brakes import BrakeLimits
from analemma.gc.uploads import UploadCollector
from analemma.state.object_ownership import ObjectOwnership
from analemma.state.retention import BranchExpiry, ExpiryPlan

Progress = Callable[[str, int], None]
"""Hears what is being done, and how far."""


class Expiring(Protocol):
    """What a run asks of a tenant's kernel."""

    def expire_all(self, *, dry_run: bool = False, now_us: int | None = None) -> list[BranchExpiry]: ...

    def expire(
        self,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = ...,
        dry_run: bool = False,
        now_us: int | None = None,
    ) -> ExpiryPlan: ...


class TenantPart(Protocol):
    """What a run asks of a tenant."""

    @property
    def blocks(self) -> BlockStore: ...

    @property
    def kernel(self) -> Expiring: ...


@dataclass(frozen=True, slots=True)
class GcOptions:
    """How collections are run, unless a call says otherwise."""

    grace_s: float = 86_400
    """A doomed block stays this long."""
    upload_age_s: float = 86_400
    """An upload whose commit has not come for so long is abandoned."""
    object_delay_s: float = 7 * 86_400
    """An object stays this long after it was claimed."""
    session_idle_s: float = 86_400
    """A session that has written nothing for so long is given up."""
    lease_s: float = 300
    """A collector that was not heard of for so long has died."""
    key_keep_s: float = 2_592_000
    """An idempotency key counts so long at least, and for as long as its version is there."""
    payload_lease_s: float = 2_592_000
    """The leases of an execution that nobody released end when none was used for so long."""
    brakes: BrakeLimits = field(default_factory=BrakeLimits)


@dataclass(frozen=True, slots=True)
class Parts:
    """One store, as its collector sees it."""

    store_id: str
    catalog: Collecting
    upload_rows: CollectingUploads
    uploads: UploadCollector
    has_objects: bool
    ownership: ObjectOwnership | None
    """Whose the objects are; None if nobody else can have them."""
    open_tenant: Callable[[str], TenantPart]
    options: GcOptions
    clock: Clock


def silent(stage: str, count: int) -> None:
    """Tell nobody."""
