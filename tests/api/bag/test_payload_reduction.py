"""What the documents promise of their own fat payload."""

from __future__ import annotations

import json

from analemma import App
from bench.fat_payload import NAMES, SEGMENT_CONFIG, fat_event


def size(value: object) -> int:
    return len(json.dumps(value))


def test_the_fixture_is_as_fat_as_the_documents_say() -> None:
    event = fat_event()
    sizes = {name: size(event[name]) / 1000 for name in ("workflow_config", "partition_map", "current_state")}
    assert 198 < sizes["workflow_config"] < 212
    assert 48 < sizes["partition_map"] < 54
    assert 98 < sizes["current_state"] < 106
    assert len(event["workflow_config"]["nodes"]) == len(event["partition_map"]) == 100


def test_the_ring_filter_takes_away_two_thirds(app: App) -> None:
    filtered = app.payloads.filter_event_payload(fat_event(), SEGMENT_CONFIG)
    assert set(filtered) == {"current_state", "node", "config"}
    assert filtered.report.reduction >= 0.67
    assert 1 - size(filtered) / size(fat_event()) >= 0.67


def test_pointers_take_away_nearly_everything(app: App) -> None:
    payload = app.payloads.dehydrate(fat_event(), return_delta=False, **NAMES)
    assert 1 - size(payload) / size(fat_event()) >= 0.95
    assert size(payload) < 10 * 1024
    assert app.payloads.hydrate(payload) == fat_event()


def test_both_together_leave_a_segment_what_it_may_see(app: App) -> None:
    payload = app.payloads.dehydrate(fat_event(), return_delta=False, **NAMES)
    filtered = app.payloads.filter_event_payload(payload, SEGMENT_CONFIG)
    assert 1 - size(filtered) / size(fat_event()) >= 0.99
    assert app.payloads.hydrate(dict(filtered))["current_state"] == fat_event()["current_state"]
