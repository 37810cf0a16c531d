"""Which text may become a key or a column: what no database keeps is refused before it gets there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import analemma
from analemma import App
from analemma.errors import Invalid
from analemma.testing.refusals import refuses

LONGEST_BYTES = 512
TAKEN = ["a", "é", "字" * 170, "a" * LONGEST_BYTES, "tab\tand\nline", "o'neil; DROP TABLE head --", "%s :name ?"]
REFUSED: dict[Any, str] = {
    "": "is empty",
    "\ud800": "not valid Unicode",
    "a\udfffb": "not valid Unicode",
    "a\0b": "NUL",
    "a" * (LONGEST_BYTES + 1): "513 bytes",
    "字" * 171: "513 bytes",
    7: "int",
    b"abc": "bytes",
}


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with analemma.open("sqlite:///:memory:") as app:
        app.kernel.save_state_delta({"n": 1}, workflow_id="w", owner_id="ann")
        yield app


def calls(app: App) -> dict[str, Callable[[Any], object]]:
    """What takes a name, by what the name is of."""
    save = app.kernel.save_state_delta
    first = next(iter(app.kernel.history(workflow_id="w", owner_id="ann"))).manifest_id
    return {
        "owner": lambda text: save({}, workflow_id="w", owner_id=text),
        "workflow": lambda text: save({}, workflow_id=text, owner_id="ann"),
        "branch": lambda text: app.kernel.fork(first, branch=text, owner_id="ann"),
        "execution": lambda text: save({}, workflow_id="other", owner_id="ann", execution_id=text),
        "idempotency key": lambda text: save({}, workflow_id="other", owner_id="ann", idempotency_key=text),
    }


def test_short_text_is_taken(app: App) -> None:
    for call in calls(app).values():
        for text in TAKEN:
            call(text)


def test_other_text_is_invalid_and_the_error_says_why_in_one_line(app: App) -> None:
    wrong: list[tuple[str, Any, str]] = []
    for what, call in calls(app).items():
        for text, complaint in REFUSED.items():
            try:
                call(text)
                wrong.append((what, text, "taken"))
            except Invalid as exc:
                if complaint not in str(exc) or "\n" in str(exc):
                    wrong.append((what, text, str(exc)))
    assert wrong == []


def test_long_text_is_checked_too(app: App) -> None:
    at: dict[str, Any] = {"workflow_id": "long", "owner_id": "ann"}
    app.kernel.save_state_delta({}, **at, message="字" * 3_000)
    texts: list[Any] = ["a\0", "\ud800", 5]
    assert [each for each in texts if not refuses(app.kernel.save_state_delta, {}, **at, message=each)] == []
