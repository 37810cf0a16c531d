"""Failpoints as tests use them: documented, counted, and never passed in silence."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import HeadMoved, Invalid
from analemma.testing import failpoints
from tests.actors import Actor
from tests.stores import Store

NAME: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}
POINT = "commit.before_transaction"


def save(url: str, objects: str | None, value: int) -> None:
    with Store(url, objects).open() as app:
        print(app.kernel.save_state_delta({"value": value}, **NAME).version)


def test_a_call_happens_when_the_place_is_passed_and_only_once(store: Store) -> None:
    with store.open() as app, store.open() as other:
        first = app.kernel.save_state_delta({"n": 0}, **NAME)
        with (
            failpoints.call(POINT, lambda: other.kernel.save_state_delta({"n": 1}, **NAME)),
            pytest.raises(HeadMoved),
        ):
            app.kernel.save_state_delta({"n": 2}, previous_manifest_id=first.manifest_id, **NAME)
        assert app.kernel.load_latest_state(**NAME) == {"n": 1}


def test_a_place_that_is_not_passed_fails_the_test(store: Store) -> None:
    with (
        store.open() as app,
        pytest.raises(Invalid, match="was not passed 2 times"),
        failpoints.call(POINT, int, time=2),
    ):
        app.kernel.save_state_delta({"n": 0}, **NAME)


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(Invalid, match=r"no failpoint commit\.somewhere"):
        failpoints.variable("commit.somewhere")


def test_a_paused_call_goes_on_when_it_is_told(store: Store) -> None:
    with store.open() as app, store.open() as other:
        first = app.kernel.save_state_delta({"n": 0}, **NAME)
        late = {"previous_manifest_id": first.manifest_id, **NAME}
        with failpoints.paused(POINT, lambda: app.kernel.save_state_delta({"n": 1}, **late)) as held:
            other.kernel.save_state_delta({"n": 2}, **NAME)
            with pytest.raises(HeadMoved):
                held.go_on()
        assert app.kernel.load_latest_state(**NAME) == {"n": 2}


def test_a_call_that_never_comes_to_the_place_is_told(store: Store) -> None:
    with store.open() as app, pytest.raises(Invalid, match="ended without passing"), failpoints.paused(POINT, int):
        app.close()


def test_a_program_stops_there_and_goes_on(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"value": 0}, **NAME)
        with Actor(save, store.url, store.objects, 1, at=POINT) as actor:
            actor.wait_until_stopped()
            assert app.kernel.load_latest_state(**NAME) == {"value": 0}
            actor.thaw()
            assert actor.wait() == 0, actor.errors
        assert actor.output == "2\n"


def test_a_program_dies_there(store: Store) -> None:
    store.open().close()
    with Actor(save, store.url, store.objects, 1, at="commit.after_commit", then="kill") as actor:
        assert actor.wait() == -signal.SIGKILL
    with store.open() as app:
        assert app.kernel.load_latest_state(**NAME) == {"value": 1}


def test_every_failpoint_stands_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/failpoints.md").read_text()
    assert [name for name in failpoints.names() if f"`{name}`" not in page] == []
