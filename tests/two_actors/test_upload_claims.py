"""The collector has found uploads that nobody needs, and that changes before it claims them: it looks again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from analemma.testing import failpoints
from tests.actors import Actor
from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
OTHER: dict[str, Any] = {"workflow_id": "journey", "owner_id": "ann"}
SETTINGS: dict[str, Any] = {"pack_threshold_bytes": 20_000, "gc_object_delay_s": 0}
BLOB = random.Random(1).randbytes(90_000)
ANOTHER = random.Random(2).randbytes(90_000)


def collect(url: str, objects: str | None) -> None:
    with Store(url, objects).open(**SETTINGS) as app:
        app.gc.run(grace_s=0)
        print(len(app.gc.audit()))


def collector(store: Store) -> Actor:
    """A pass in a process of its own, which stops when it has found what to claim."""
    return Actor(collect, store.url, store.objects, at="gc.before_claim")


def go_on(actor: Actor, deleted: int) -> None:
    """Let the pass go on to its end, and see how many objects it has deleted."""
    actor.thaw()
    assert actor.wait() == 0, actor.errors
    assert actor.output == f"{deleted}\n"


def test_a_commit_that_comes_after_all_keeps_its_upload(store: Store) -> None:
    """Guard: an upload that seems abandoned is claimed only if no commit has finished it meanwhile."""
    with store.open(**SETTINGS) as app:
        save = lambda: app.kernel.save_state_delta({"blob": BLOB}, **PLACE)  # noqa: E731
        with failpoints.paused("commit.before_transaction", save) as held:
            assert change(store, "UPDATE upload SET created_at = 0 WHERE state = 'temp'") == 1
            with collector(store) as actor:
                actor.wait_until_stopped()
                held.go_on()
                go_on(actor, deleted=0)
        assert select(store, "SELECT state FROM upload") == [("ready",)]
    with store.open(**SETTINGS) as app:
        assert app.kernel.load_latest_state(**PLACE) == {"blob": BLOB}


def blocks_lie_in_it(store: Store) -> None:
    [(upload,)] = select(store, "SELECT id FROM upload WHERE workflow = 'trip'")
    one = "id = (SELECT min(id) FROM block WHERE upload IS NOT NULL)"
    assert change(store, f"UPDATE block SET upload = ? WHERE {one}", (upload,)) == 1  # noqa: S608


def it_names_another_object(store: Store) -> None:
    [(key,)] = select(store, "SELECT object_key FROM upload WHERE workflow = 'journey'")
    assert change(store, "UPDATE upload SET object_key = ? WHERE workflow = 'trip'", (key,)) == 1


@pytest.mark.parametrize("state", ["temp", "ready"])
@pytest.mark.parametrize("happens", [blocks_lie_in_it, it_names_another_object], ids=lambda each: each.__name__)
def test_an_upload_is_looked_at_again_when_it_is_claimed(
    store: Store, happens: Callable[[Store], None], state: str
) -> None:
    """Guard: a claim takes no upload in which blocks lie by then, nor the object of another."""
    with store.open(**SETTINGS) as app:
        app.kernel.save_state_delta({"blob": BLOB}, **PLACE)
        app.kernel.save_state_delta({"blob": ANOTHER}, **OTHER)
        app.kernel.save_state_delta({"blob": None}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        app.gc.run(grace_s=0)
        if state == "temp":
            assert change(store, "UPDATE upload SET state = 'temp', created_at = 0 WHERE workflow = 'trip'") == 1
    with collector(store) as actor:
        actor.wait_until_stopped()
        happens(store)
        go_on(actor, deleted=0)
    assert select(store, "SELECT state FROM upload WHERE workflow = 'trip'") == [(state,)]
