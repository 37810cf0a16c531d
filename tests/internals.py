"""What tests of single modules reach for below the public surface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analemma import App, BlockId, BranchKey, Operation, Proposal, Tenant
from analemma.catalog.collecting import Collecting
from analemma.catalog.engine import Transaction
from analemma.state.committer import Outcome

KEY = BranchKey("ann", "report")


def commit_value(tenant: Tenant, value: Any, key: BranchKey = KEY) -> Outcome:
    """A version with this state, on whatever is there."""
    return tenant.committer.commit(Proposal(key, tenant.trees.build(value), tenant.head(key)))


def commit_change(tenant: Tenant, *operations: Operation, key: BranchKey = KEY) -> Outcome:
    """A version with these changes to the current state."""
    head = tenant.head(key)
    assert head is not None
    tree = tenant.trees.edit(tenant.manifest(head.manifest).root.id, operations)
    return tenant.committer.commit(Proposal(key, tree, head))


def state_of(tenant: Tenant, key: BranchKey = KEY) -> Any:
    """The branch's current state."""
    head = tenant.head(key)
    assert head is not None
    return tenant.trees.read(root_of(tenant, head.manifest))


def root_of(tenant: Tenant, manifest: BlockId) -> BlockId:
    return tenant.manifest(manifest).root.id


def doom_blocks(app: App, number: int, blocks: Sequence[BlockId] | None = None) -> None:
    """Doom these blocks, or all there are, as the pass of this number would."""
    catalog = Collecting(app.catalog.engine)
    for tenant, _ in catalog.tenants():
        chosen = catalog.chosen(list(catalog.scan(tenant)) if blocks is None else blocks)
        app.catalog.engine.execute("gc_doom", tenant=tenant, **{"pass": number}, **chosen)


def delete_doomed_blocks(app: App) -> None:
    """Delete all that are doomed, without asking whether something leads to them."""
    catalog = Collecting(app.catalog.engine)
    for tenant, _ in catalog.tenants():
        chosen = catalog.chosen([block for block, _ in catalog.scan_doomed(tenant)])

        def move(tx: Transaction, whose: dict[str, Any] = {"tenant": tenant, "limit": 1 << 62, **chosen}) -> None:  # noqa: B006
            tx.all("gc_delete", **whose)
            if catalog.engine.dialect == "sqlite":
                tx.execute("gc_drop_dooms", **whose)

        app.catalog.engine.write(move)
