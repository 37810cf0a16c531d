"""One grammar of revisions: what each spelling means, what comes first, and what is refused."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import analemma
from analemma import Workflow
from analemma.errors import AnalemmaError, Expired, Invalid, NotFound
from tests.raw_rows import change
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[analemma.Store]:
    with store.open() as app:
        yield app


@pytest.fixture
def trip(app: analemma.Store) -> Workflow:
    """Three versions; a branch that begins at the second; a tag on the first."""
    trip = app.workflow("trip", owner="ann")
    for number in (1, 2, 3):
        trip.save({"n": number})
    side = trip.branch("side", at=2)
    side.save({"n": "4 on side"})
    trip.tag("good", 1)
    return trip


def seen(trip: Workflow, revision: Any) -> tuple[str, int]:
    found = trip.at(revision).row
    return found.branch, found.version


def test_every_spelling_means_a_version(trip: Workflow) -> None:
    newest, side = trip.at("HEAD"), trip.branch("side")
    means = {
        "HEAD": ("main", 3),
        "HEAD~": ("main", 2),
        "HEAD~2": ("main", 1),
        "HEAD~1~1": ("main", 1),
        "HEAD~0": ("main", 3),
        "2": ("main", 2),
        2: ("main", 2),
        "side": ("side", 4),
        "side@4": ("side", 4),
        "side@3": ("side", 3),
        "side@1": ("main", 1),
        "main@3": ("main", 3),
        "HEAD@2": ("main", 2),
        "side~1": ("side", 3),
        "side~2": ("main", 2),
        "side~3": ("main", 1),
        "good": ("main", 1),
        newest.manifest_id: ("main", 3),
        newest.manifest_id[:6]: ("main", 3),
        newest.manifest_id[:13]: ("main", 3),
        f"{newest.manifest_id}~1": ("main", 2),
        "@{2999-01-01}": ("main", 3),
        "side@{2999-01-01T12:00}": ("side", 4),
        "@{2999-01-01T12:00+02:00}~1": ("main", 2),
        newest: ("main", 3),
        newest.row: ("main", 3),
    }
    assert {revision: seen(trip, revision) for revision in means} == means
    assert {text: seen(side, text) for text in ("HEAD", "2", "HEAD~2")} == {
        "HEAD": ("side", 4),
        "2": ("main", 2),
        "HEAD~2": ("main", 2),
    }


def test_what_is_not_there_is_not_found(trip: Workflow) -> None:
    for revision in ("HEAD~3", "side~4", "4", 99, "9" * 30, "nope", "nope@1", "side@9", "0", "@{2001-01-01}"):
        with pytest.raises(NotFound):
            trip.at(revision)
    for revision in ("0" * 6, "0" * 40, "0" * 64):
        with pytest.raises(NotFound):
            trip.at(revision)


def test_what_makes_no_sense_is_refused(trip: Workflow) -> None:
    spellings: list[Any] = ["", "~1", "HEAD~x", "a~b", "@{soon}", "@{}", 0, -1, True, None, 1.5, object(), "\ud800"]
    for revision in spellings:
        with pytest.raises(Invalid):
            trip.at(revision)


def test_a_moment_is_in_utc_and_means_what_was_newest_then(trip: Workflow) -> None:
    first, second = trip.at(1).row.created_at, trip.at(2).row.created_at
    assert seen(trip, f"@{{{first.isoformat()}}}") == ("main", 1)
    assert seen(trip, f"@{{{first.replace(tzinfo=None).isoformat()}}}") == ("main", 1)
    elsewhere = second.astimezone(dt.timezone(dt.timedelta(hours=9)))
    assert seen(trip, f"@{{{elsewhere.isoformat()}}}") == ("main", 2)
    with pytest.raises(NotFound):
        trip.at(f"@{{{(first - dt.timedelta(seconds=1)).isoformat()}}}")


def test_the_first_meaning_counts(app: analemma.Store, trip: Workflow) -> None:
    beginning = trip.at(3).manifest_id[:7]
    side = trip.branch("side")
    if not beginning.isdigit():
        assert seen(trip, beginning) == ("main", 3)
        trip.branch(beginning, at=2)
        assert seen(trip, beginning)[0] == beginning
        trip.tag(beginning, 1)
        assert seen(trip, beginning) == ("main", 1)
    trip.tag("side", 1)
    assert seen(trip, "side") == ("main", 1)
    assert seen(trip, "side@4") == ("side", 4)
    assert side.load("HEAD") == {"n": "4 on side"}


def test_two_versions_whose_ids_begin_alike_are_both_named(store: Store) -> None:
    with store.open() as app:
        trip = app.workflow("trip", owner="ann")
        first, second = (bytes.fromhex(trip.save({"n": number}).manifest_id) for number in (1, 2))
    alike = first[:4] + second[4:]
    change(store, "UPDATE manifest SET id = ? WHERE id = ?", (alike, second))
    with store.open() as app:
        trip = app.workflow("trip", owner="ann")
        with pytest.raises(Invalid) as both:
            trip.at(first.hex()[:8])
        assert first.hex() in both.value.message and alike.hex() in both.value.message
    assert change(store, "UPDATE manifest SET owner = 'bob' WHERE id = ?", (alike,)) == 1
    with store.open() as app:
        assert app.workflow("trip", owner="ann").at(first.hex()[:8]).manifest_id == first.hex()


def test_an_id_means_nothing_to_another_tenant(app: analemma.Store, trip: Workflow) -> None:
    own = app.tenant("other").workflow("trip", owner="ann")
    own.save({"n": 1})
    for revision in (trip.at(1).manifest_id, trip.at(1).manifest_id[:12]):
        with pytest.raises(NotFound):
            own.at(revision)


def test_names_that_would_mean_something_else_are_refused(app: analemma.Store, trip: Workflow) -> None:
    for name in ("7", "HEAD", "a@3", "a~1", "@{2026-11-01}", "5d" * 32):
        with pytest.raises(Invalid):
            trip.branch(name, at=1)
        for save in (
            lambda branch: app.kernel.save_state_delta({}, branch=branch, **NAME),
            lambda branch: app.kernel.checkpoint_async({}, branch=branch, **NAME),
            lambda branch: app.kernel.update(lambda state: state.update(n=1), branch=branch, **NAME),
        ):
            with pytest.raises(Invalid):
                save(name)
        with pytest.raises(Invalid):
            trip.tag(name, 1)
    assert [branch.name for branch in trip.branches()] == ["main", "side"]


def test_versions_that_expired_say_so(app: analemma.Store, trip: Workflow) -> None:
    trip.untag("good")
    gone = trip.at(1).manifest_id
    app.kernel.set_retention(owner_id="ann", workflow_id="trip", keep_last=1)
    app.kernel.expire(owner_id="ann", workflow_id="trip")
    for revision in (1, "1", "HEAD~2", "side@1", "side~3", gone):
        with pytest.raises(Expired):
            trip.at(revision)
    assert seen(trip, "side~1") == ("side", 3)


def test_first_parents_lead_into_what_a_workflow_was_forked_from(app: analemma.Store, trip: Workflow) -> None:
    app.kernel.fork(trip.at(2).manifest_id, workflow_id="other", owner_id="ann")
    other = app.workflow("other", owner="ann")
    other.save({"n": 0})
    found = other.at("HEAD~3").row
    assert (found.workflow_id, found.version) == ("trip", 1)
    with pytest.raises(NotFound):
        other.at(3)


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_going_back_is_following_first_parents(store: Store, data: st.DataObject) -> None:
    """Whatever was forked from what: `~n` is n times the parent, and a number the nearest version that has it."""
    with store.open() as app:
        workflow = app.workflow(f"w-{uuid.uuid4()}", owner="ann")
        workflow.save({})
        names = ["main"]
        for number in range(data.draw(st.integers(0, 6))):
            branch = workflow.branch(data.draw(st.sampled_from(names)))
            if data.draw(st.booleans()):
                branch.save({"n": number})
            else:
                steps = data.draw(st.integers(0, 2))
                if len(list(branch.log())) > steps:
                    names.append(f"b{number}")
                    workflow.branch(names[-1], at=f"{branch.key.branch}~{steps}")
        branch = workflow.branch(data.draw(st.sampled_from(names)))
        line = list(branch.log())
        for steps, version in enumerate(line):
            assert branch.at(f"HEAD~{steps}").row == version
            assert workflow.at(f"{branch.key.branch}~{steps}").row == version
            assert branch.at(version.version).row == version
            assert workflow.at(f"{branch.key.branch}@{version.version}").row == version
        with pytest.raises(NotFound):
            branch.at(f"HEAD~{len(line)}")


@given(st.text(max_size=20) | st.from_regex(r"(HEAD|main|[0-9]{1,3}|[0-9a-f]{5,8})?(@[0-9]*|@\{.{0,12}\})?(~[0-9]*)?"))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_version_or_told(module_store: Store, text: str) -> None:
    with module_store.open() as app:
        trip = app.workflow("trip", owner="ann")
        if not app.kernel.list_workflows(owner_id="ann").items:
            trip.save({"n": 1})
        found: int | str
        try:
            found = trip.at(text).version
        except AnalemmaError as error:
            found = error.kind
        assert found in (1, "invalid", "not_found")
