"""Workflows: listing them page by page, naming them, their branches, and what grew out of a version."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from analemma import App
from analemma.errors import Invalid, NotFound
from tests.stores import Store


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def begin(app: App, *workflows: str, owner: str = "ann") -> None:
    for workflow in workflows:
        app.kernel.save_state_delta({"n": 1}, workflow_id=workflow, owner_id=owner, segment_id=4)


def ids(app: App, **filters: object) -> list[str]:
    found, cursor = [], None
    while True:
        page = app.kernel.list_workflows(owner_id="ann", cursor=cursor, **filters)  # type: ignore[arg-type]
        found += [item.workflow_id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            return found


def test_a_workflow_is_listed_from_its_first_save_on(app: App) -> None:
    assert app.kernel.list_workflows(owner_id="ann").items == ()
    begin(app, "trip")
    second = app.kernel.save_state_delta({"n": 2}, workflow_id="trip", owner_id="ann", segment_id=5)
    (found,) = app.kernel.list_workflows(owner_id="ann").items
    assert (found.workflow_id, found.owner_id, found.name, found.status) == ("trip", "ann", "trip", "IDLE")
    assert (found.manifest_id, found.version, found.segment_id) == (second.manifest_id, 2, 5)
    assert found.created_at < found.updated_at
    assert found == app.kernel.get_workflow(workflow_id="trip", owner_id="ann")


def test_pages_neither_skip_nor_repeat(app: App) -> None:
    names = [f"w{number:02}" for number in range(23)]
    begin(app, *reversed(names))
    for limit in (1, 5, 23, 100):
        assert ids(app, limit=limit) == names


def test_pages_neither_skip_nor_repeat_while_workflows_are_begun_saved_and_renamed(app: App) -> None:
    names = [f"w{number:02}" for number in range(12)]
    begin(app, *names)
    first = app.kernel.list_workflows(owner_id="ann", limit=5)
    begin(app, "a-new-one", "w01", "w07")
    app.kernel.set_workflow(workflow_id="w02", owner_id="ann", name="zzz")
    app.kernel.set_workflow(workflow_id="w09", owner_id="ann", name="aaa")
    found = [item.workflow_id for item in first.items]
    cursor = first.cursor
    while cursor is not None:
        page = app.kernel.list_workflows(owner_id="ann", limit=5, cursor=cursor)
        found += [item.workflow_id for item in page.items]
        cursor = page.cursor
    assert found == names


def test_ids_sort_by_their_bytes_on_every_catalog(app: App) -> None:
    names = ["B", "a", "a-b", "aB", "a_b", "é", "다람쥐", "🐿"]
    begin(app, *names)
    assert ids(app, limit=3) == sorted(names, key=str.encode)


def test_lists_are_filtered_by_name_and_status(app: App) -> None:
    begin(app, "one", "two", "three", "100%")
    app.kernel.set_workflow(workflow_id="one", owner_id="ann", name="thesis", status="RUNNING")
    assert ids(app, name_prefix="th", limit=1) == ["one", "three"]
    assert ids(app, name_prefix="100%") == ["100%"] and ids(app, name_prefix="%") == []
    assert ids(app, status="RUNNING") == ["one"]
    assert ids(app, status="IDLE", name_prefix="t", limit=1) == ["three", "two"]
    assert ids(app, status="FAILED") == []


def test_owners_and_tenants_are_apart(app: App) -> None:
    begin(app, "mine")
    begin(app, "theirs", owner="bob")
    assert ids(app) == ["mine"]
    assert app.tenant("other").kernel.list_workflows(owner_id="ann").items == ()
    with pytest.raises(NotFound):
        app.kernel.set_workflow(workflow_id="theirs", owner_id="ann", status="FAILED")


def test_name_and_status_change_apart(app: App) -> None:
    begin(app, "trip")
    named = app.kernel.set_workflow(workflow_id="trip", owner_id="ann", name="Summer trip")
    assert (named.name, named.status) == ("Summer trip", "IDLE")
    done = app.kernel.set_workflow(workflow_id="trip", owner_id="ann", status="COMPLETED")
    assert (done.name, done.status) == ("Summer trip", "COMPLETED")
    begin(app, "trip")
    assert app.kernel.list_workflows(owner_id="ann").items[0].name == "Summer trip"


def test_what_cannot_be_listed_is_refused(app: App) -> None:
    begin(app, "trip")
    with pytest.raises(Invalid):
        app.kernel.list_workflows(owner_id="ann", limit=0)
    with pytest.raises(Invalid):
        app.kernel.list_workflows(owner_id="ann", cursor="%%%")
    with pytest.raises(Invalid):
        app.kernel.list_workflows(owner_id="ann", status="DONE")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        app.kernel.set_workflow(workflow_id="trip", owner_id="ann", status="idle")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        app.kernel.set_workflow(workflow_id="trip", owner_id="ann", name="")


def test_branches_say_where_they_began_and_stand(app: App) -> None:
    first = app.kernel.save_state_delta({"n": 1}, workflow_id="trip", owner_id="ann")
    second = app.kernel.save_state_delta({"n": 2}, workflow_id="trip", owner_id="ann")
    fork = app.kernel.fork(first.manifest_id, owner_id="ann", branch="idea")
    app.kernel.save_state_delta({"n": 3}, workflow_id="trip", owner_id="ann", branch="idea")
    main, idea = app.kernel.branches(workflow_id="trip", owner_id="ann")
    assert (main.name, main.version, main.manifest_id, main.parent_id) == ("main", 2, second.manifest_id, None)
    assert (idea.name, idea.version, idea.parent_id) == ("idea", fork.version + 1, first.manifest_id)
    with pytest.raises(NotFound):
        app.kernel.branches(workflow_id="other", owner_id="ann")


def test_a_workflow_without_main_stands_on_another_branch(app: App) -> None:
    app.kernel.save_state_delta({"n": 1}, workflow_id="trip", owner_id="ann", branch="draft")
    (found,) = app.kernel.list_workflows(owner_id="ann").items
    assert (found.branch, found.version) == ("draft", 1)


def test_children_are_the_next_version_and_the_forks(app: App) -> None:
    first = app.kernel.save_state_delta({"n": 1}, workflow_id="trip", owner_id="ann")
    second = app.kernel.save_state_delta({"n": 2}, workflow_id="trip", owner_id="ann")
    branch = app.kernel.fork(first.manifest_id, owner_id="ann", branch="idea")
    copy = app.kernel.fork(first.manifest_id, owner_id="ann", workflow_id="copy")
    children = [child.manifest_id for child in app.kernel.children(first.manifest_id)]
    assert children == [second.manifest_id, branch.manifest_id, copy.manifest_id]
    assert app.kernel.children(first.manifest_id, owner_id="ann") == app.kernel.children(first.manifest_id)
    assert app.kernel.children(second.manifest_id) == []
    with pytest.raises(NotFound):
        app.kernel.children(first.manifest_id, owner_id="bob")


def test_branches_of_one_workflow_can_begin_at_the_same_moment(app: App) -> None:
    def start(number: int) -> None:
        app.kernel.save_state_delta({"n": number}, workflow_id="trip", owner_id="ann", branch=f"b{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(8)))
    assert len(app.kernel.branches(workflow_id="trip", owner_id="ann")) == 8
    assert ids(app) == ["trip"]
