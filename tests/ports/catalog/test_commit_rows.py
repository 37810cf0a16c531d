"""Rows of others in the transaction of a commit: all of it becomes visible, or none."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import BranchKey, Proposal
from analemma.catalog.port import RowChange
from analemma.errors import Conflict
from tests.internals import KEY, commit_value, state_of
from tests.stores import Store


def policy(tenant: Any, workflow: str) -> RowChange:
    """Any row of another table will do."""
    rules = dict.fromkeys(("keep_newer_than_s", "keep_hourly", "keep_daily", "keep_weekly"))
    return RowChange("set_retention", {"tenant": tenant, "owner": "ann", "workflow": workflow, "keep_last": 3, **rules})


def missing(tenant: Any) -> RowChange:
    return RowChange("drop_pin", {"tenant": tenant, "manifest": b"\0" * 32})


@pytest.mark.parametrize("begins", [True, False])
def test_rows_become_visible_with_the_version(store: Store, begins: bool) -> None:
    with store.open() as app:
        tenant = app.default
        if not begins:
            commit_value(tenant, {"n": 0})
        head = tenant.head(KEY)
        seen = []

        def rows(manifest: bytes) -> list[RowChange]:
            seen.append(manifest)
            return [policy(tenant.id, "one"), policy(tenant.id, "two")]

        outcome = tenant.committer.commit(Proposal(KEY, tenant.trees.build({"n": 1}), head, rows=rows))
        assert seen == [outcome.receipt.manifest]
        assert app.kernel.get_retention(owner_id="ann", workflow_id="two").keep_last == 3
        assert state_of(tenant) == {"n": 1}


@pytest.mark.parametrize("begins", [True, False])
def test_a_row_that_is_not_as_expected_undoes_everything(store: Store, begins: bool) -> None:
    with store.open() as app:
        tenant = app.default
        if not begins:
            commit_value(tenant, {"n": 0})
        head = tenant.head(KEY)
        changes = [policy(tenant.id, "one"), missing(tenant.id)]
        tree = tenant.trees.build({"n": "never" * 900})
        before = app.stats()
        with pytest.raises(Conflict, match="drop_pin"):
            tenant.committer.commit(Proposal(KEY, tree, head, rows=lambda _: changes))
        assert app.stats() == before and tenant.head(KEY) == head
        assert app.kernel.get_retention(owner_id="ann", workflow_id="one").keep_last is None
        # The connection is as good as before.
        tenant.committer.commit(Proposal(KEY, tree, head))


def test_rows_that_may_touch_any_number(store: Store) -> None:
    with store.open() as app:
        tenant = app.default
        change = missing(tenant.id)._replace(touches=None)
        tenant.committer.commit(Proposal(KEY, tenant.trees.build({}), None, rows=lambda _: [change]))
        assert tenant.head(KEY) is not None
        assert tenant.head(BranchKey("ann", "other")) is None
