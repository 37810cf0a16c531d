"""History across forks, retention and pages: every version once, and blame that names who really changed something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import analemma
from analemma.errors import Invalid, NotFound
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[analemma.App]:
    with store.open() as app:
        yield app


def save(app: analemma.App, workflow: str = "trip", branch: str = "main", **state: Any) -> str:
    return app.kernel.save_state_delta(state, workflow_id=workflow, owner_id="ann", branch=branch).manifest_id


def shown(versions: list[Any]) -> list[str]:
    return [f"{each.workflow_id}/{each.branch} {each.version}" for each in versions]


def history(app: analemma.App, workflow: str = "trip", branch: str = "main", **options: Any) -> list[str]:
    return shown(app.kernel.history(workflow_id=workflow, owner_id="ann", branch=branch, **options))


def blamed(app: analemma.App, path: str, workflow: str = "trip", branch: str = "main") -> tuple[str, bool]:
    found = app.kernel.blame(path=path, workflow_id=workflow, owner_id="ann", branch=branch)
    return shown([found])[0], found.or_before


def forked(app: analemma.App) -> None:
    """trip/main 1 to 4; trip/idea from its 3; copy/main from the idea's 5; copy/again from the copy's 2."""
    save(app, a=1, b=1, c=1, d=1)
    save(app, b=2)
    third = save(app, c=3)
    save(app, a=4, b=4)
    app.kernel.fork(third, owner_id="ann", branch="idea")
    fifth = save(app, branch="idea", c=5)
    app.kernel.fork(fifth, owner_id="ann", workflow_id="copy")
    second = save(app, "copy", d=7)
    save(app, "copy", a=8)
    app.kernel.fork(second, owner_id="ann", branch="again")
    save(app, "copy", "again", e=9)


TRIP = ["trip/main 4", "trip/main 3", "trip/main 2", "trip/main 1"]
IDEA = ["trip/idea 5", "trip/idea 4", *TRIP[1:]]
COPY = ["copy/main 3", "copy/main 2", "copy/main 1", *IDEA]
AGAIN = ["copy/again 4", "copy/again 3", *COPY[1:]]
LINES = {("trip", "main"): TRIP, ("trip", "idea"): IDEA, ("copy", "main"): COPY, ("copy", "again"): AGAIN}


def test_blame_of_a_fork_names_the_version_that_changed_the_value(app: analemma.App) -> None:
    forked(app)
    for workflow, branch in (("copy", "main"), ("copy", "again")):
        assert blamed(app, "/b", workflow, branch) == ("trip/main 2", False)
        assert blamed(app, "/c", workflow, branch) == ("trip/idea 5", False)
        assert blamed(app, "/d", workflow, branch) == ("copy/main 2", False)
    assert blamed(app, "/a", "copy", "again") == ("trip/main 1", False)
    assert blamed(app, "/a", "copy") == ("copy/main 3", False)
    assert blamed(app, "/e", "copy", "again") == ("copy/again 4", False)
    assert blamed(app, "/b", branch="idea") == ("trip/main 2", False)
    assert blamed(app, "/b") == ("trip/main 4", False)
    with pytest.raises(NotFound):
        blamed(app, "/e", "copy")


def test_blame_says_or_before_where_history_has_expired(app: analemma.App) -> None:
    for number in range(1, 9):
        more: dict[str, Any] = {"old": number} if number in (1, 3) else {"new": 1} if number == 7 else {}
        save(app, n=number, **more)
    app.kernel.set_retention(keep_last=3, **NAME)
    app.kernel.expire(**NAME)
    assert history(app) == ["trip/main 8", "trip/main 7", "trip/main 6"]
    assert blamed(app, "/old") == ("trip/main 6", True)
    assert blamed(app, "/new") == ("trip/main 7", False)
    assert blamed(app, "/n") == ("trip/main 8", False)


def test_blame_does_not_reach_over_versions_that_expired(app: analemma.App) -> None:
    kept = save(app, x=1)
    save(app, x=2)
    save(app, x=1)
    save(app, y=1)
    app.kernel.tag(kept, "first", owner_id="ann")
    app.kernel.set_retention(keep_last=1, **NAME)
    app.kernel.expire(**NAME)
    assert history(app) == ["trip/main 4", "trip/main 1"]
    assert blamed(app, "/x") == ("trip/main 4", True)
    assert blamed(app, "/y") == ("trip/main 4", True)


def test_a_fork_of_a_version_that_expired_goes_on_with_what_is_left(app: analemma.App) -> None:
    kept = save(app, x=1)
    second = save(app, y=1)
    save(app, z=1)
    app.kernel.tag(kept, "first", owner_id="ann")
    app.kernel.fork(second, owner_id="ann", workflow_id="copy")
    app.kernel.set_retention(keep_last=1, **NAME)
    app.kernel.expire(**NAME)
    assert history(app, "copy") == ["copy/main 1", "trip/main 1"]
    assert blamed(app, "/x", "copy") == ("copy/main 1", True)


def test_the_history_of_a_fork_goes_on_into_what_it_was_forked_from(app: analemma.App) -> None:
    forked(app)
    for place, line in LINES.items():
        assert history(app, *place) == line
        own = [each for each in line if each.startswith("/".join(place) + " ")]
        assert history(app, *place, forks=False) == own
        assert history(app, *place, forks=False, limit=1) == own[:1]


def test_pages_neither_skip_nor_repeat_a_version(app: analemma.App) -> None:
    forked(app)
    for size in range(1, 10):
        for (workflow, branch), expected in LINES.items():
            name: dict[str, Any] = {"workflow_id": workflow, "owner_id": "ann", "branch": branch}
            by_id: list[Any] = []
            while page := app.kernel.history(
                limit=size, after=by_id[-1].manifest_id if by_id else None, forks=True, **name
            ):
                by_id += page
            assert shown(by_id) == expected, size
            # By number, as long as numbers fall: to where the workflow began, and on from there by id.
            by_number: list[Any] = []
            while page := app.kernel.history(limit=size, after=by_number[-1].version if by_number else None, **name):
                by_number += page
            assert shown(by_number) == [each for each in expected if each.startswith(f"{workflow}/")], size
            rest = app.kernel.history(after=by_number[-1].manifest_id, **name)
            assert shown([*by_number, *rest]) == expected, size


def test_pages_of_what_is_asked_for_go_across_forks_too(app: analemma.App) -> None:
    kernel = app.kernel
    for number in range(1, 5):
        commit = kernel.save_state_delta({"n": number}, execution_id="odd" if number % 2 else "even", **NAME)
        kernel.decide(commit.manifest_id, "approved" if number in (1, 4) else "rejected", actor="eve")
    kernel.fork(commit.manifest_id, owner_id="ann", workflow_id="copy")
    assert history(app, "copy", execution_id="odd") == ["trip/main 3", "trip/main 1"]
    assert history(app, "copy", decision="approved") == ["trip/main 4", "trip/main 1"]
    first = kernel.history(workflow_id="copy", owner_id="ann", execution_id="odd", limit=1, forks=True)
    assert history(app, "copy", execution_id="odd", limit=1, after=first[0].manifest_id) == ["trip/main 1"]


def test_a_line_that_comes_back_to_its_workflow_is_listed_whole(app: analemma.App) -> None:
    save(app, branch="idea", n=1)
    second = save(app, branch="idea", n=2)
    app.kernel.fork(second, owner_id="ann", workflow_id="copy")
    third = save(app, "copy", n=3)
    app.kernel.fork(third, owner_id="ann", workflow_id="trip")
    save(app, n=4)
    expected = ["trip/main 2", "trip/main 1", "copy/main 2", "copy/main 1", "trip/idea 2", "trip/idea 1"]
    assert history(app) == expected
    assert history(app, after=2) == expected[1:]
    assert history(app, after=1, forks=True, limit=9) == expected[2:]
    found: list[Any] = []
    while page := app.kernel.history(limit=2, after=found[-1].manifest_id if found else None, **NAME):
        found += page
    assert shown(found) == expected


def test_a_page_goes_on_after_a_version_that_expired_meanwhile(app: analemma.App) -> None:
    first = save(app, n=1)
    for number in range(2, 6):
        save(app, n=number)
    app.kernel.tag(first, "first", owner_id="ann")
    page = app.kernel.history(limit=3, **NAME)
    app.kernel.set_retention(keep_last=1, **NAME)
    app.kernel.expire(**NAME)
    assert history(app, limit=3, after=page[-1].manifest_id) == ["trip/main 1"]


def test_a_cursor_that_is_not_in_the_history_is_refused(app: analemma.App) -> None:
    forked(app)
    newest = app.kernel.history(limit=1, **NAME)[0].manifest_id
    with pytest.raises(NotFound, match="not in the history"):
        history(app, branch="idea", after=newest)
    with pytest.raises(NotFound, match="not in the history"):
        history(app, after="0" * 64)
    with pytest.raises(Invalid):
        history(app, after="yesterday")
    with pytest.raises(NotFound):
        history(app, "nothing")


def test_history_without_a_limit_has_every_version(app: analemma.App) -> None:
    for number in range(130):
        save(app, n=number)
    assert [each.version for each in app.kernel.history(**NAME)] == list(range(130, 0, -1))
    assert len(app.kernel.history(after=121, **NAME)) == 120


@pytest.mark.deep("a thousand versions")
def test_history_of_more_versions_than_are_read_at_once_is_whole() -> None:
    with analemma.open("sqlite:///:memory:") as app:
        for number in range(1010):
            last = save(app, n=number)
        app.kernel.fork(last, owner_id="ann", workflow_id="copy")
        copied = app.kernel.history(workflow_id="copy", owner_id="ann")
        assert [each.version for each in copied] == [1, *range(1010, 0, -1)]
        assert len(app.kernel.history(limit=1005, **NAME)) == 1005
