"""Environment variables in settings."""

from __future__ import annotations

from typing import Any

import pytest

from analemma.errors import Invalid
from tests.ports.entry_points.sinks import expand

ENVIRONMENT = {"HOST": "db", "EMPTY": "", "TRICKY": "p$${HOST}${HOST}{x}", "_9": "nine"}


FILLED_IN = {
    "plain": "plain",
    "${HOST}": "db",
    "a-${HOST}-${HOST}-b": "a-db-db-b",
    "${_9}": "nine",
    "${NONE:-other}": "other",
    "${NONE:-}": "",
    "${HOST:-other}": "db",
    "${EMPTY:-other}": "other",
    "x${EMPTY}y": "xy",
    "${NONE:-./out}/books-{tenantId}.jsonl": "./out/books-{tenantId}.jsonl",
    "${NONE:-out/{tenantId}/{entityType}}/x": "out/{tenantId}/{entityType}/x",
    "$${HOST}": "${HOST}",
    "$$${HOST}": "$${HOST}",
    "$HOST and $ and $$": "$HOST and $ and $$",
    "${TRICKY}": "p$${HOST}${HOST}{x}",
    "${NONE:-a:-b}": "a:-b",
}


def test_variables_are_filled_in_once() -> None:
    assert {text: expand(text, ENVIRONMENT) for text in FILLED_IN} == FILLED_IN


def test_texts_are_found_at_any_depth_and_other_values_stay() -> None:
    value: Any = {"a": ["${HOST}", {"b": ("${HOST}", 1, None, True, 2.5)}], "${HOST}": "x"}
    assert expand(value, ENVIRONMENT) == {"a": ["db", {"b": ["db", 1, None, True, 2.5]}], "${HOST}": "x"}


def test_a_variable_that_is_not_set_is_named_with_its_place() -> None:
    with pytest.raises(Invalid, match="the environment variable SECRET is not set") as caught:
        expand({"headers": {"authorization": "${HOST}${SECRET}"}}, ENVIRONMENT)
    assert caught.value.pointer == "/headers/authorization" and caught.value.variable == "SECRET"
    assert "SECRET:-default" in (caught.value.hint or "")


def test_what_names_no_variable_is_refused() -> None:
    for text in ("${", "${}", "${1X}", "${HOST", "${HOST:-", "${HO ST}", "${HOST:+x}", "${HOST-x}"):
        with pytest.raises(Invalid, match="names no variable"):
            expand(text, ENVIRONMENT)
