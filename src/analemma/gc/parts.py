"""What planning and running a collection have in common: what they ask of the rest of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from analemma.blocks.store import BlockStore
from analemma.catalog.collecting import Collecting
from analemma.catalog.collecting_uploads import CollectingUploads
from analemma.clock import Clock
from analemma.gc.uploads import UploadCollector
from analemma.settings import Settings
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
    settings: Settings
    clock: Clock


def silent(stage: str, count: int) -> None:
    """Tell nobody."""
