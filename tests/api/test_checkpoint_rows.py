"""Rows of LangGraph's checkpoints that name another's version: told as damage, never answered with."""

from __future__ import annotations

from typing import Any

import pytest

import analemma
from analemma.errors import Corrupt
from analemma.langgraph import AnalemmaSaver
from tests.raw_rows import change, select
from tests.stores import Store

OWNER = "lg"


def config(thread: str, checkpoint: str | None = None) -> Any:
    named = {} if checkpoint is None else {"checkpoint_id": checkpoint}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **named}}


def put(saver: AnalemmaSaver, thread: str, id: str, values: dict[str, Any], parent: str | None = None) -> None:
    checkpoint: Any = {
        "v": 1,
        "id": id,
        "ts": "2024-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, "1"),
        "versions_seen": {},
        "updated_channels": None,
    }
    saver.put(config(thread, parent), checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"said": "1"})


@pytest.fixture
def threads(store: Store) -> Store:
    with store.open() as app:
        saver = AnalemmaSaver(app, owner=OWNER)
        for thread in ("ann", "bob"):
            put(saver, thread, f"1-{thread}", {"said": f"secret of {thread}", "kept": thread})
            put(saver, thread, f"2-{thread}", {"said": "more", "kept": thread}, f"1-{thread}")
    return store


def point(store: Store, checkpoint: str, to: str) -> None:
    [(manifest,)] = select(store, "SELECT manifest FROM thread_checkpoint WHERE checkpoint = ?", (to,))
    sql = "UPDATE thread_checkpoint SET manifest = ? WHERE checkpoint = ?"
    assert change(store, sql, (bytes(manifest), checkpoint)) == 1


def verified(app: analemma.App, thread: str) -> bool:
    return app.kernel.verify(workflow_id=thread, owner_id=OWNER).ok


@pytest.mark.parametrize("to", ["2-bob", "1-bob", "1-ann"])
def test_a_checkpoint_does_not_answer_with_another_ones_state(threads: Store, to: str) -> None:
    point(threads, "2-ann", to)
    with threads.open() as app:
        saver = AnalemmaSaver(app, owner=OWNER)
        with pytest.raises(Corrupt, match="2-ann"):
            saver.get_tuple(config("ann", "2-ann"))
        with pytest.raises(Corrupt, match="2-ann"):
            list(saver.list(config("ann")))
        found = saver.get_tuple(config("bob"))
        assert found is not None and found.checkpoint["channel_values"] == {"said": "more", "kept": "bob"}


def test_nothing_is_built_on_another_ones_state(threads: Store) -> None:
    point(threads, "2-ann", "2-bob")
    with threads.open() as app:
        saver = AnalemmaSaver(app, owner=OWNER)
        # Nor is a delta channel put together of it, which goes by the parents of a checkpoint.
        put(saver, "ann", "3-ann", {"said": "on"}, "1-ann")
        change(threads, "UPDATE thread_checkpoint SET parent = '2-ann' WHERE checkpoint = '3-ann'")
        with pytest.raises(Corrupt, match="2-ann"):
            saver.get_delta_channel_history(config=config("ann", "3-ann"), channels=["kept"])
        # The channel that was not written would be taken over as the other has it.
        with pytest.raises(Corrupt, match="2-ann"):
            put(saver, "ann", "4-ann", {"said": "on", "kept": "ann"}, "2-ann")
        assert len(app.kernel.history(workflow_id="ann", owner_id=OWNER)) == 3


@pytest.mark.parametrize("to", ["2-bob", "1-bob", "1-ann"])
def test_verify_of_a_thread_finds_a_checkpoint_that_names_another_version(threads: Store, to: str) -> None:
    with threads.open() as app:
        assert verified(app, "ann") and verified(app, "bob")
        point(threads, "2-ann", to)
        problems = app.kernel.verify(workflow_id="ann", owner_id=OWNER).problems
        assert any("checkpoint 2-ann names the version of another" in problem for problem in problems)
        assert verified(app, "bob")


def test_verify_finds_two_checkpoints_of_a_thread_in_each_others_place(threads: Store) -> None:
    [(first,)] = select(threads, "SELECT manifest FROM thread_checkpoint WHERE checkpoint = '1-ann'")
    point(threads, "1-ann", "2-ann")
    change(threads, "UPDATE thread_checkpoint SET manifest = ? WHERE checkpoint = '2-ann'", (bytes(first),))
    with threads.open() as app:
        assert len(app.kernel.verify(workflow_id="ann", owner_id=OWNER).problems) == 2


def test_copies_rollbacks_and_pruned_threads_are_what_they_say(threads: Store) -> None:
    with threads.open() as app:
        saver = AnalemmaSaver(app, owner=OWNER)
        saver.copy_thread("ann", "eve")
        put(saver, "eve", "3-eve", {"said": "mine", "kept": "ann"}, "2-ann")
        app.kernel.rollback_to_version(workflow_id="ann", owner_id=OWNER, version=1)
        found = saver.get_tuple(config("ann"))
        assert found is not None and found.checkpoint["channel_values"]["said"] == "secret of ann"
        saver.prune(["ann"])
        for _ in range(2):
            app.gc.run(grace_s=0)
        for thread in ("ann", "bob", "eve"):
            assert list(saver.list(config(thread)))
            assert verified(app, thread)
        assert len(list(saver.list(config("eve")))) == 3
