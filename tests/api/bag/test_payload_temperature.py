"""Fields that change each time stay in the payload, fields that never change leave it: placement only."""

from __future__ import annotations

from typing import Any

from analemma import App
from tests.api.bag.payload_stores import receive, send

KIB = 1024


def state(number: int) -> dict[str, Any]:
    """Two fields that do not fit together: one changes each time and is a little larger, one never changes."""
    return {"hot": f"{number:04}" + "x" * 6 * KIB, "cold": "y" * 5 * KIB}


def test_what_is_not_known_leaves_by_size_alone(app: App) -> None:
    payload = send(app, state(0))
    assert payload["hot"]["__pointer__"] == 1 and payload["cold"] == state(0)["cold"]


def test_a_field_that_changes_each_time_stays_and_a_quiet_one_leaves(app: App) -> None:
    payloads = [send(app, state(number)) for number in range(8)]
    assert payloads[-1]["hot"] == state(7)["hot"] and payloads[-1]["cold"]["__pointer__"] == 1
    # Then nothing new is written but the lease: the quiet field is stored already.
    before = app.stats(app.settings.tenant).blocks
    last = send(app, state(8))
    assert app.stats(app.settings.tenant).blocks == before
    assert receive(app, last) == state(8)


def test_another_workflow_learns_for_itself(app: App) -> None:
    for number in range(8):
        send(app, state(number))
    assert send(app, state(9), workflow_id="other")["hot"]["__pointer__"] == 1


def test_temperature_decides_nothing_about_what_is_stored(app: App) -> None:
    for number in range(12):
        payload = send(app, state(number))
        assert receive(app, payload) == state(number)
