"""The states of a deploy: which follow which, and that the catalog holds to it."""

from __future__ import annotations

from itertools import product

import pytest

from analemma import DeployState
from analemma.catalog.deploy_states import TRANSITIONS, check_transition
from analemma.catalog.deploys import DeployRow, find_deploys, find_steps, move
from analemma.errors import Conflict
from tests.api.pipeline.shop import book, open_shop
from tests.api.pipeline.tables import query
from tests.stores import Store

LEGAL = {
    ("QUEUED", "RUNNING"),
    ("QUEUED", "FAILED"),
    ("RUNNING", "READY"),
    ("RUNNING", "FAILED"),
    ("READY", "SINKING"),
    ("READY", "DONE"),
    ("SINKING", "DONE"),
    ("SINKING", "FAILED"),
    ("FAILED", "QUEUED"),
}
PAIRS = sorted(product(DeployState, DeployState))


def test_the_table_has_every_state() -> None:
    assert set(TRANSITIONS) == set(DeployState)
    assert {(before.value, after.value) for before, found in TRANSITIONS.items() for after in found} == LEGAL


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=lambda each: each.value)
def test_every_other_transition_is_refused(before: DeployState, after: DeployState) -> None:
    if (before.value, after.value) in LEGAL:
        check_transition(before, after)
        return
    with pytest.raises(Conflict, match=f"{before} does not become {after}") as caught:
        check_transition(before, after)
    assert (caught.value.state, caught.value.wanted) == (before.value, after.value) and caught.value.hint


def test_a_retry_of_what_did_not_fail_says_what_to_do() -> None:
    with pytest.raises(Conflict, match="deploy again"):
        check_transition(DeployState.DONE, DeployState.QUEUED)
    with pytest.raises(Conflict, match="only a FAILED one is retried"):
        check_transition(DeployState.RUNNING, DeployState.QUEUED)


def test_the_catalog_writes_the_legal_ones_only(store: Store) -> None:
    with open_shop(store) as shop:
        app = shop._app
        id = shop.deploy("BOOK", "1", book("1"), ship=[]).id
        for before, after in PAIRS:
            query(store, "UPDATE deploy SET state = ?, attempt = 1", before.value)
            (row,) = find_deploys(app.catalog.engine, shop.id, id)
            steps = len(find_steps(app.catalog.engine, row.number))

            def attempt(row: DeployRow = row, after: DeployState = after) -> DeployRow | None:
                return app.catalog.engine.write(lambda tx: move(tx, row, after, now_us=7))

            if (before.value, after.value) not in LEGAL:
                with pytest.raises(Conflict):
                    attempt()
                assert query(store, "SELECT state FROM deploy") == [(before.value,)]
                assert len(find_steps(app.catalog.engine, row.number)) == steps
                continue
            moved = attempt()
            assert moved is not None and moved.state is after
            found = find_steps(app.catalog.engine, row.number)
            assert len(found) == steps + 1 and (found[-1].before, found[-1].state) == (before, after)
            # It is no longer where it was seen: nothing is written.
            assert attempt() is None
            assert len(find_steps(app.catalog.engine, row.number)) == steps + 1
            # Nor is an attempt that is over moved by somebody who comes late.
            query(store, "UPDATE deploy SET state = ?, attempt = 2", before.value)
            assert attempt() is None
            assert query(store, "SELECT state FROM deploy") == [(before.value,)]
