"""What the kernel's verbs cost, counted: cost follows the change, not the state."""

from __future__ import annotations

import random
from typing import Any

import pytest

from analemma import App
from tests.stores import Store

WORDS = [random.Random(n).randbytes(4).hex() for n in range(400)]
NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def state_of_size(kilobytes: int) -> dict[str, Any]:
    pick = random.Random(kilobytes)
    return {"entries": {f"key {n}": " ".join(pick.choices(WORDS, k=110)) for n in range(kilobytes)}, "n": 0}


def change_cost(app: App, kilobytes: int) -> tuple[int, int]:
    """Statements and bytes of a change of about 1 KB to a state of this size, in a process that has not seen it."""
    kernel = app.kernel
    before = app.catalog.engine.statements.copy()
    text = " ".join(random.Random(1).choices(WORDS, k=110))
    commit = kernel.save_state_delta({f"/entries/key {kilobytes // 2}": text}, **NAME)
    return sum((app.catalog.engine.statements - before).values()), commit.bytes_written


def test_a_small_change_costs_the_same_whatever_the_size_of_the_state(store: Store) -> None:
    costs = []
    for kilobytes in (1_000, 20_000):
        with store.open(tenant=f"t{kilobytes}") as app:
            app.kernel.save_state_delta(state_of_size(kilobytes), **NAME)
        with store.open(tenant=f"t{kilobytes}") as app:
            app.kernel  # noqa: B018  (looking the tenant up is not part of a save)
            costs.append(change_cost(app, kilobytes))
    (few, small), (many, large) = costs
    # One more level of the tree is one more read, and never more than that at this ratio.
    assert many <= few + 2
    assert large <= 3 * small


def test_rollback_and_fork_write_the_same_few_rows_whatever_the_size(store: Store) -> None:
    costs = []
    for kilobytes in (10, 2_000):
        with store.open(tenant=f"t{kilobytes}") as app:
            kernel = app.kernel
            first = kernel.save_state_delta(state_of_size(kilobytes), **NAME)
            kernel.save_state_delta({"n": 1}, **NAME)
            before = app.stats()
            back = kernel.rollback_to_version(version=1, **NAME)
            fork = kernel.fork(first.manifest_id, workflow_id="fork", owner_id="ann")
            after = app.stats()
            assert (back["blocks_stored"], fork.blocks_stored) == (1, 1)
            costs.append((after.blocks - before.blocks, after.manifests - before.manifests))
    assert costs[0] == costs[1] == (2, 2)


def test_history_reads_no_blocks(store: Store) -> None:
    with store.open() as app:
        kernel = app.kernel
        for number in range(150):
            kernel.save_state_delta({"n": number}, **NAME)
    with store.open() as app:
        kernel = app.kernel
        before = app.catalog.engine.statements.copy()
        assert [version.version for version in kernel.history(limit=1000, **NAME)] == list(range(150, 0, -1))
        spent = app.catalog.engine.statements - before
        assert set(spent) == {"history"} and sum(spent.values()) == 1
        pages: list[int] = []
        after = None
        while page := kernel.history(limit=40, after=after, **NAME):
            pages += [version.version for version in page]
            after = pages[-1]
        assert pages == list(range(150, 0, -1))


def test_equal_values_of_many_workflows_are_stored_once(store: Store) -> None:
    value = random.Random(1).randbytes(1_000_000)
    with store.open() as app:
        for number in range(30):
            app.kernel.save_state_delta({"value": value, "n": number}, workflow_id=f"w{number}", owner_id="ann")
        assert app.stats().stored_bytes <= 1_050_000


def test_diff_reads_only_what_differs(store: Store) -> None:
    with store.open() as app:
        first = app.kernel.save_state_delta(state_of_size(3000), **NAME)
        second = app.kernel.save_state_delta({"/entries/key 7": "x", "/entries/key 2500": "y", "n": 1}, **NAME)
    with store.open() as app:
        read = 0
        fetch = app.default.blocks.fetch

        def counted(blocks: Any) -> Any:
            nonlocal read
            read += len(blocks)
            return fetch(blocks)

        object.__setattr__(app.default.trees, "fetch", counted)
        changes = app.kernel.diff(first.manifest_id, second.manifest_id)
        assert {change["path"] for change in changes} == {"/entries/key 7", "/entries/key 2500", "/n"}
        assert read <= 20


@pytest.mark.parametrize("size", [1, 500])
def test_a_save_that_changes_nothing_still_is_a_version(store: Store, size: int) -> None:
    with store.open() as app:
        first = app.kernel.save_state_delta(state_of_size(size), **NAME)
        second = app.kernel.save_state_delta({}, **NAME)
        assert (second.version, second.root_hash, second.blocks_stored) == (2, first.root_hash, 1)
