"""What the kernel's verbs write, in blocks and bytes: it follows the change, not the state."""

from __future__ import annotations

import random
from typing import Any

from tests.depth import count
from tests.stores import Store

WORDS = [random.Random(n).randbytes(4).hex() for n in range(400)]
NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def state_of_size(kilobytes: int) -> dict[str, Any]:
    pick = random.Random(kilobytes)
    return {"entries": {f"key {n}": " ".join(pick.choices(WORDS, k=110)) for n in range(kilobytes)}, "n": 0}


def test_a_small_change_writes_the_same_whatever_the_size_of_the_state(store: Store) -> None:
    """About 1 KB changed, in a process that has not seen the state."""
    text = " ".join(random.Random(1).choices(WORDS, k=110))
    written, stored = [], []
    for kilobytes in (500, count(test=6_000, deep=20_000)):
        with store.open(tenant=f"t{kilobytes}") as app:
            app.kernel.save_state_delta(state_of_size(kilobytes), **NAME)
        with store.open(tenant=f"t{kilobytes}") as app:
            before = app.stats(f"t{kilobytes}")
            commit = app.kernel.save_state_delta({f"/entries/key {kilobytes // 2}": text}, **NAME)
            assert app.stats(f"t{kilobytes}").blocks - before.blocks == commit.blocks_stored
            written.append(commit.bytes_written)
            stored.append(commit.blocks_stored)
    # One more level of the tree is one more block, and never more than that at this ratio.
    assert stored[1] <= stored[0] + 2
    assert written[1] <= 3 * written[0]


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


def test_equal_values_of_many_workflows_are_stored_once(store: Store) -> None:
    value = random.Random(1).randbytes(1_000_000)
    with store.open() as app:
        for number in range(30):
            app.kernel.save_state_delta({"value": value, "n": number}, workflow_id=f"w{number}", owner_id="ann")
        assert app.stats().stored_bytes <= 1_050_000


def test_a_save_that_changes_nothing_still_is_a_version(store: Store) -> None:
    with store.open() as app:
        for size in (1, 500):
            name: dict[str, Any] = {"workflow_id": f"report {size}", "owner_id": "ann"}
            first = app.kernel.save_state_delta(state_of_size(size), **name)
            second = app.kernel.save_state_delta({}, **name)
            assert (second.version, second.root_hash, second.blocks_stored) == (2, first.root_hash, 1)
