"""Two workers ship one document, because the lease of the first ran out: the newest state is what the sink ends with,
and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.testing import failpoints
from tests.raw_rows import change
from tests.scripted_sink import Script, install
from tests.stores import Store

CONTRACTS: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "fields": [{"name": "text", "type": "string", "required": True}],
    },
    {
        "kind": "RULESET",
        "id": "ruleset.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "slices": [{"type": "TEXT", "buildRules": {"type": "PassThrough", "fields": ["text"]}}],
    },
    {
        "kind": "SINKRULE",
        "id": "sink.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "input": {"type": "SLICE", "entityTypes": ["NOTE"]},
        "target": {"type": "SCRIPTED", "script": "one"},
    },
]


class Taker:
    """A sink that has whatever it was sent last."""

    def __init__(self, script: Script) -> None:
        self.taken: list[str] = []
        self.before: Callable[[], None] | None = None
        """Happens when it is called next, before it takes what it is sent."""
        self._usual = script.answering
        script.answering = self._answer

    def _answer(self, parcels: Sequence[Any]) -> list[Any]:
        act, self.before = self.before, None
        if act is not None:
            act()
        self.taken += [parcel.document.body["text"] for parcel in parcels]
        return self._usual(parcels)


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Taker:
    return Taker(install(tmp_path, monkeypatch, "one")[0])


@contextmanager
def two_openers(store: Store) -> Iterator[tuple[analemma.App, analemma.App]]:
    # The first need not renew its lease while the test ends it.
    with store.open(outbox_lease_s=3600) as app, store.open() as other:
        app.contracts.load(CONTRACTS)
        yield app, other


def put(app: analemma.App, text: str) -> None:
    app.default.ingest("NOTE", "1", {"text": text})
    app.default.compile("NOTE", "1")


def drain(app: analemma.App) -> None:
    app.worker(1).drain()


def overtake(store: Store, other: analemma.App) -> None:
    """Another worker takes over what the first one ships, with a newer state."""
    put(other, "newer")
    assert change(store, "UPDATE lane SET lease_until = 0 WHERE channel = 'sink.note' AND lease_until > 0") == 1
    drain(other)


def test_a_late_worker_does_not_say_that_the_sink_has_less_than_it_has(store: Store, sink: Taker) -> None:
    """Guard: what is known of a sink is replaced by nothing older."""
    with two_openers(store) as (app, other):
        put(app, "older")
        with failpoints.paused("ship.after_answer", lambda: drain(app)) as held:
            overtake(store, other)
            held.go_on()
        assert sink.taken == ["older", "newer"]
        # Whoever asks for what the sink has already is answered without asking it.
        app.default.ship("NOTE", "1", force=False)
        drain(app)
        assert sink.taken == ["older", "newer"]


def test_what_was_sent_after_something_newer_is_made_good(store: Store, sink: Taker) -> None:
    """Guard: whoever finds that his lease was lost while the sink took his state has the newest shipped once more."""
    with two_openers(store) as (app, other):
        put(app, "older")
        sink.before = lambda: overtake(store, other)
        drain(app)
        drain(app)
        assert sink.taken == ["newer", "older", "newer"]


def test_what_somebody_else_ships_by_now_is_not_sent(store: Store, sink: Taker) -> None:
    """Guard: the lease is looked at again when everything is ready to be sent."""
    with two_openers(store) as (app, other):
        put(app, "older")
        with failpoints.paused("ship.after_read", lambda: drain(app)) as held:
            overtake(store, other)
            held.go_on()
        drain(app)
        assert sink.taken == ["newer"]


@pytest.mark.parametrize("asked", [[True], [True, False], [False, True]], ids=str)
def test_what_somebody_wants_shipped_again_is_shipped(store: Store, sink: Taker, asked: list[bool]) -> None:
    """Guard: a request is covered by what the sink has only if none of those that are answered together is forced."""
    with two_openers(store) as (app, _):
        put(app, "text")
        drain(app)
        for force in asked:
            app.default.ship("NOTE", "1", force=force)
        drain(app)
        assert sink.taken == ["text", "text"]


def test_what_is_compiled_while_a_state_is_shipped_is_shipped_too(store: Store, sink: Taker) -> None:
    """Guard: a request is covered only by a state that was read after it: of what was asked for since, nothing is."""
    with two_openers(store) as (app, other):
        put(app, "older")
        with failpoints.paused("ship.after_read", lambda: drain(app)) as held:
            put(other, "newer")
            held.go_on()
        drain(app)
        assert sink.taken == ["older", "newer"]
