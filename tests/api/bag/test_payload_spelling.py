"""What a payload says of each kind of value, letter by letter: other programs read it, and old payloads are read."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from analemma import App, FieldPolicy
from analemma.testing.strategies import shown
from tests.api.bag.payload_stores import receive, send

GOLDEN = Path(__file__).with_name("payload_spelling.json")


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = wrap(value)
    return value


VALUES: dict[str, Any] = {
    "null": None,
    "booleans": [True, False],
    "integers": [0, -1, 24, 2**53 - 1, 2**53, -(2**53) + 1, -(2**53), 2**64 - 1, -(2**63)],
    "floats": [
        0.1,
        -2.5e-7,
        5e-324,
        1.7976931348623157e308,
        1.0,
        0.0,
        -0.0,
        1e22,
        123456789012345680.0,
        1e-7,
        0.1 + 0.2,
    ],
    "texts": ["", "plain", 'quote " \\ / \n\t\b\x00\x7f', "é 가 \u2028", "\U0001f600", "a" * 3_000],
    "bytes": [b"", b"hi", b"\x00\xff\x01", bytes(range(256)) * 12],
    "lists": [[], [[]], [1, [2, [3]]]],
    "dicts in their own order": {"b": 1, "a": 2, "": 3, "ä": {"z": 1, "y": []}},
    "an empty dict": {},
    "an empty key": {"": 1},
    "empty keys in each other": {"": {"": {"": []}}},
    "looks like a tag": {"": ["datetime", "x"]},
    "looks like a form": [{"": {"bytes": "aGk="}}, {"": {"int": "7"}}, {"": {"map": {}}}],
    "looks like a pointer": {"__pointer__": 1, "hash": "00", "more": {"__pointer__": {}}},
    "looks like an S3 pointer": [{"__s3_pointer__": True, "bucket": "b"}, {"deep": {"__s3_pointer__": 1, "": 2}}],
    "moments": [
        dt.datetime(2026, 2, 19, 5, 30, tzinfo=dt.UTC),
        dt.datetime(2026, 2, 19, 5, 30, 1, 7),
        dt.date(2026, 2, 19),
        dt.time(5, 30),
        dt.timedelta(days=-1, seconds=3),
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=9), "KST")),
    ],
    "decimals": [Decimal("1.10"), Decimal("1E+3"), Decimal("-0")],
    "a uuid": uuid.UUID(int=7),
    "tuples": [(), (1, (2.0, b"x")), ({"": 1},)],
    "sets": [set(), {10, 9, 1, "a", "b", 0.5, 1e3, (2, 3), b"z", None}, frozenset({frozenset({2, 1}), "é", 2**60})],
    "deep lists": nested(120, lambda value: [value]),
    "deep dicts": nested(120, lambda value: {"a": value}),
    "deep tuples": nested(60, lambda value: (value,)),
    "more than stands inline in a block": {
        "rows": [{"n": number, "x": number / 7} for number in range(150)],
        "t": "é" * 1500,
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_spelled_as_it_always_was(name: str, app: App) -> None:
    value = VALUES[name]
    policy = FieldPolicy(field_bytes=100_000, target_bytes=100_000)
    payload = send(app, {"field": value}, policy=policy)
    assert json.dumps(payload["field"]) == json.loads(GOLDEN.read_text())[name]
    # What was written by any release is read, and comes to the same.
    event = {"field": json.loads(json.loads(GOLDEN.read_text())[name])}
    assert shown(dict(receive(app, event))) == shown({"field": value})


TOO_DEEP = {"lists": nested(127, lambda value: [value]), "tags": nested(120, lambda value: (value,))}


@pytest.mark.parametrize("name", TOO_DEEP)
def test_what_is_too_deep_for_json_is_left_in_the_store(name: str, app: App) -> None:
    state = {"field": TOO_DEEP[name]}
    payload = send(app, state)
    assert ("__pointer__" in payload["field"]) is (name == "tags")
    assert shown(dict(receive(app, payload))) == shown(state)
