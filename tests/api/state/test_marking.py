"""Tags and pins: one row and one journal record each, together or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from analemma import App, Commit
from analemma.errors import Conflict, Invalid, NotFound
from tests.api.state.journal_rows import journal
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def save(app: App, value: int, branch: str = "main") -> Commit:
    return app.kernel.save_state_delta({"n": value}, **PLACE, branch=branch)


def told(store: Store, branch: str = "main") -> list[tuple[str, str | None]]:
    """The journal as (kind, tag)."""
    return [(record["kind"], record["facts"].get("tag")) for record in journal(store, branch=branch)]


def test_a_tag_names_a_version(app: App, store: Store) -> None:
    first, second = save(app, 1), save(app, 2)
    tag = app.kernel.tag(first.manifest_id, "v1.0", owner_id="ann", message="the first")
    assert (tag.name, tag.manifest_id, tag.version, tag.branch) == ("v1.0", first.manifest_id, 1, "main")
    app.kernel.tag(second.manifest_id, "release/2", owner_id="ann")
    found = app.kernel.tags(**PLACE)
    assert [(tag.name, tag.version, tag.message) for tag in found] == [("v1.0", 1, "the first"), ("release/2", 2, None)]
    assert told(store)[2:] == [("tagged", "v1.0"), ("tagged", "release/2")]
    assert app.kernel.verify(**PLACE).ok


def test_a_taken_name_moves_only_by_force(app: App, store: Store) -> None:
    first, second = save(app, 1), save(app, 2)
    app.kernel.tag(first.manifest_id, "good", owner_id="ann")
    with pytest.raises(Conflict, match="version 1"):
        app.kernel.tag(second.manifest_id, "good", owner_id="ann")
    assert len(told(store)) == 3
    app.kernel.tag(second.manifest_id, "good", owner_id="ann", force=True, message="better")
    (tag,) = app.kernel.tags(**PLACE)
    assert (tag.version, tag.message) == (2, "better")
    assert journal(store)[-1]["facts"]["moved_from"] == first.manifest_id


def test_the_same_tag_again_changes_nothing(app: App, store: Store) -> None:
    first = save(app, 1)
    again = [app.kernel.tag(first.manifest_id, "good", owner_id="ann") for _ in range(2)]
    assert again[0] == again[1]
    assert told(store) == [("committed", None), ("tagged", "good")]


def test_a_tag_can_move_to_another_branch(app: App, store: Store) -> None:
    first = save(app, 1)
    fork = app.kernel.fork(first.manifest_id, owner_id="ann", branch="idea")
    app.kernel.tag(first.manifest_id, "good", owner_id="ann")
    app.kernel.tag(fork.manifest_id, "good", owner_id="ann", force=True)
    assert told(store, "idea")[-1] == ("tagged", "good")
    app.kernel.untag("good", **PLACE)
    assert told(store, "idea")[-1] == ("untagged", "good")
    assert app.kernel.tags(**PLACE) == []


def test_untag_removes_the_name_and_says_so(app: App, store: Store) -> None:
    first = save(app, 1)
    app.kernel.tag(first.manifest_id, "good", owner_id="ann")
    app.kernel.untag("good", **PLACE)
    assert app.kernel.tags(**PLACE) == []
    assert told(store)[1:] == [("tagged", "good"), ("untagged", "good")]
    with pytest.raises(NotFound):
        app.kernel.untag("good", **PLACE)


def test_odd_names_are_refused(app: App) -> None:
    first = save(app, 1)
    for name in ["", "a b", "-x", "é", "a\n", "12", "ab" * 32, "x" * 129, "a\0", ".hidden"]:
        with pytest.raises(Invalid):
            app.kernel.tag(first.manifest_id, name, owner_id="ann")


def test_odd_messages_are_refused(app: App) -> None:
    first = save(app, 1)
    for text in ["a\0b", "\ud800", "x" * 10_001]:
        with pytest.raises(Invalid):
            app.kernel.tag(first.manifest_id, "good", owner_id="ann", message=text)
        with pytest.raises(Invalid):
            app.kernel.pin(first.manifest_id, owner_id="ann", reason=text)


def test_a_foreign_version_cannot_be_marked(app: App) -> None:
    first = save(app, 1)
    for mark in (
        lambda: app.kernel.tag(first.manifest_id, "x", owner_id="bob"),
        lambda: app.kernel.pin(first.manifest_id, owner_id="bob"),
    ):
        with pytest.raises(NotFound):
            mark()
    with pytest.raises(NotFound):
        app.tenant("other").kernel.tag(first.manifest_id, "x", owner_id="ann")


def test_pins_come_and_go(app: App, store: Store) -> None:
    first, second = save(app, 1), save(app, 2)
    app.kernel.pin(first.manifest_id, owner_id="ann", reason="audit")
    app.kernel.pin(second.manifest_id, owner_id="ann")
    app.kernel.pin(first.manifest_id, owner_id="ann", reason="lawsuit")
    pins = app.kernel.pins(**PLACE)
    assert {(pin.version, pin.reason) for pin in pins} == {(1, "lawsuit"), (2, None)}
    app.kernel.unpin(first.manifest_id, owner_id="ann")
    assert [pin.version for pin in app.kernel.pins(**PLACE)] == [2]
    with pytest.raises(NotFound):
        app.kernel.unpin(first.manifest_id, owner_id="ann")
    assert [kind for kind, _ in told(store)[2:]] == ["pinned", "pinned", "pinned", "unpinned"]
    assert app.kernel.verify(**PLACE).ok


def test_a_save_that_names_its_predecessor_survives_a_tag(app: App) -> None:
    first = save(app, 1)
    app.kernel.tag(first.manifest_id, "good", owner_id="ann")
    second = app.kernel.save_state_delta({"n": 2}, **PLACE, previous_manifest_id=first.manifest_id)
    assert second.version == 2


def test_tags_and_saves_do_not_disturb_each_other(app: App) -> None:
    first = save(app, 0)
    start = threading.Barrier(4)

    def tag(number: int) -> None:
        start.wait()
        for turn in range(15):
            app.kernel.tag(first.manifest_id, f"t{number}.{turn}", owner_id="ann")

    def keep_saving(_: int) -> None:
        start.wait()
        for turn in range(15):
            save(app, turn)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(work, number) for number, work in enumerate((tag, tag, keep_saving, keep_saving))]
        for job in jobs:
            job.result()
    assert len(app.kernel.tags(**PLACE)) == 30
    report = app.kernel.verify(**PLACE)
    assert report.ok and report.records == 61
    assert [version.version for version in app.kernel.history(**PLACE)] == list(range(31, 0, -1))


def test_one_of_many_wins_a_new_name(app: App, store: Store) -> None:
    versions = [save(app, number) for number in range(4)]
    start = threading.Barrier(4)

    def work(commit: Commit) -> bool:
        start.wait()
        try:
            app.kernel.tag(commit.manifest_id, "only", owner_id="ann")
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, versions)) == 1
    assert [kind for kind, _ in told(store)].count("tagged") == 1
