"""A kernel that saved last guesses where the branch stands; a wrong guess must cost time and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from analemma import App
from analemma.errors import HeadMoved, Invalid
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def apps(store: Store) -> Iterator[tuple[App, App]]:
    """Two programs on one store; the first one has saved twice, so it guesses."""
    with store.open() as one, store.open() as other:
        one.kernel.save_state_delta({"n": 1}, **NAME)
        one.kernel.save_state_delta({"n": 2}, **NAME)
        yield one, other


def test_a_save_after_somebody_elses_builds_on_theirs(apps: tuple[App, App]) -> None:
    one, other = apps
    other.kernel.save_state_delta({"theirs": True}, **NAME)
    commit = one.kernel.save_state_delta({"n": 3}, **NAME)
    assert commit.version == 4
    assert one.kernel.load_latest_state(**NAME) == {"n": 3, "theirs": True}
    assert one.kernel.verify(**NAME).ok


def test_a_delta_that_only_the_newest_state_can_take_is_taken(apps: tuple[App, App]) -> None:
    one, other = apps
    other.kernel.save_state_delta({"plan": {"steps": []}}, **NAME)
    one.kernel.save_state_delta({"/plan/steps/-": "pack"}, **NAME)
    assert one.kernel.load_latest_state(**NAME)["plan"] == {"steps": ["pack"]}


def test_a_delta_that_the_newest_state_cannot_take_is_refused(apps: tuple[App, App]) -> None:
    one, other = apps
    one.kernel.save_state_delta({"plan": {"steps": []}}, **NAME)
    other.kernel.save_state_delta({}, deleted=["plan"], **NAME)
    with pytest.raises(Invalid):
        one.kernel.save_state_delta({"/plan/steps/-": "pack"}, **NAME)
    assert one.kernel.load_latest_state(**NAME) == {"n": 2}


def test_a_stated_predecessor_is_compared_with_the_real_head(apps: tuple[App, App]) -> None:
    one, other = apps
    mine = one.kernel.save_state_delta({"n": 3}, **NAME)
    theirs = other.kernel.save_state_delta({"n": 4}, **NAME)
    with pytest.raises(HeadMoved):
        one.kernel.save_state_delta({"n": 5}, previous_manifest_id=mine.manifest_id, **NAME)
    assert one.kernel.save_state_delta({"n": 5}, previous_manifest_id=theirs.manifest_id, **NAME).version == 5


def test_a_tag_moves_the_journal_but_hinders_no_save(apps: tuple[App, App]) -> None:
    one, other = apps
    newest = one.kernel.history(**NAME)[0]
    other.kernel.tag(newest.manifest_id, "kept", owner_id="ann")
    assert one.kernel.save_state_delta({"n": 3}, previous_manifest_id=newest.manifest_id, **NAME).version == 3
    assert one.kernel.verify(**NAME).ok


def test_what_is_pending_comes_first_whoever_accepted_it(apps: tuple[App, App]) -> None:
    one, other = apps
    other.kernel.checkpoint_async({"n": 10, "first": True}, **NAME)
    one.kernel.save_state_delta({"n": 11}, **NAME)
    assert one.kernel.load_latest_state(**NAME) == {"n": 11, "first": True}


def test_a_version_that_expired_meanwhile_is_not_built_on(apps: tuple[App, App]) -> None:
    one, other = apps
    other.kernel.save_state_delta({"m": 1}, **NAME)
    other.kernel.set_retention(keep_last=1, **NAME)
    assert other.kernel.expire(**NAME)
    one.kernel.save_state_delta({"n": 3}, **NAME)
    assert one.kernel.load_latest_state(**NAME) == {"n": 3, "m": 1}
    assert one.kernel.verify(**NAME).ok
