"""Checkpoints that fail, are damaged or have something in their way: none keeps another waiting, and whoever waits for
one is told."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Ticket
from analemma.errors import ConsistencyError, Denied, Invalid, Unavailable
from analemma.testing import failpoints
from tests.api.state.pending import left_behind, stuck, wait_until
from tests.raw_rows import change, select
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
PAUSE_S = 0.5
"""Before the thread tries again what something was in the way of."""
LARGE = [random.Random(number).randbytes(50_000) for number in range(2)]


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


@pytest.fixture
def uploading(store: Store) -> Iterator[App]:
    """Whose large values become objects; one has been made already, for what is written with the first."""
    with store.open(pack_threshold_bytes=10_000, object_retries=1) as app:
        first = random.Random(9).randbytes(50_000)
        app.kernel.save_state_delta({"first": first}, workflow_id="first", owner_id="ann")
        yield app


class Objects:
    """The directory in which a store keeps its packs."""

    def __init__(self, store: Store) -> None:
        self._folder = (Path(store.objects) if store.objects else Path(store.url) / "objects") / "packs"
        self._aside = self._folder.with_name("aside")

    def take_away(self) -> None:
        """From now on a link stands there, which no store follows."""
        self._folder.rename(self._aside)
        self._folder.symlink_to(self._aside)

    def put_a_file_there(self) -> Path:
        """From now on a file stands there, in the way of every new object."""
        self._folder.rename(self._aside)
        self._folder.write_text("in the way")
        return self._folder

    def bring_back(self) -> None:
        self._folder.unlink()
        self._aside.rename(self._folder)

    def packs(self) -> int:
        folder = self._aside if self._aside.exists() else self._folder
        return sum(path.is_file() for path in folder.rglob("*"))


def test_a_delta_that_cannot_be_applied_fails_alone_and_says_why(app: App, store: Store) -> None:
    with stuck() as thread:
        app.kernel.checkpoint_async({"n": 0}, **NAME)
        thread.wait()
        first = app.kernel.checkpoint_async({"n": 1}, **NAME)
        bad = app.kernel.checkpoint_async({"/no/such/place": 1}, **NAME)
        last = app.kernel.checkpoint_async({"m": 2}, **NAME)
        other = app.kernel.checkpoint_async({"n": 1}, workflow_id="other", owner_id="ann")
    app.checkpoints.drain()
    assert app.kernel.load_state_with_consistency(first) == {"n": 1}
    assert app.kernel.load_state_with_consistency(last) == {"n": 1, "m": 2}
    assert app.kernel.wait_for(other).version == 1
    failed = app.kernel.ticket(bad)
    assert failed.status == "failed" and failed.reason is not None and "nothing at /no" in failed.reason
    with pytest.raises(Invalid) as caught:
        app.kernel.wait_for(bad)
    assert caught.value.pointer == "/no"
    with pytest.raises(ConsistencyError) as lost:
        app.kernel.load_state_with_consistency(bad)
    assert lost.value.reason == "invalid" and lost.value.ticket == str(bad)
    assert [row.version for row in app.kernel.history(**NAME)] == [3, 2, 1]
    # What was made a version of is gone, and what failed is kept.
    kept = dict(select(store, "SELECT seq, body IS NOT NULL FROM pending"))
    assert {ticket.seq: bool(kept[ticket.seq]) for ticket in (first, bad, last)} == {
        first.seq: False,
        bad.seq: True,
        last.seq: False,
    }
    with pytest.raises(Invalid):
        app.kernel.checkpoint_async({"/no/such/place": 1}, wait_for_commit=True, **NAME)


def test_a_failed_key_may_be_used_again(app: App) -> None:
    app.kernel.save_state_delta({"n": 0}, **NAME)
    with pytest.raises(Invalid):
        app.kernel.checkpoint_async({"/x/y": 1}, idempotency_key="k", wait_for_commit=True, **NAME)
    app.kernel.save_state_delta({"x": {}}, **NAME)
    assert app.kernel.checkpoint_async({"/x/y": 1}, idempotency_key="k", wait_for_commit=True, **NAME).version == 3


def test_a_damaged_entry_fails_and_the_next_ones_do_not(app: App, store: Store) -> None:
    """Its bytes are kept: somebody may want to know what they were."""
    for column, value in (("digest", bytes(32)), ("body", b"damaged")):
        place: dict[str, Any] = {"workflow_id": column, "owner_id": "ann"}
        bad = left_behind(app, store, {"n": 0}, **place)
        good = left_behind(app, store, {"n": 1}, **place)
        assert change(store, f"UPDATE pending SET {column} = ? WHERE seq = ?", (value, bad.seq)) == 1  # noqa: S608
        [(body,)] = select(store, "SELECT body FROM pending WHERE seq = ?", (bad.seq,))
        assert app.kernel.wait_for(good).version == 1
        assert app.kernel.load_latest_state(**place) == {"n": 1}
        assert app.kernel.ticket(bad).status == "failed"
        [(kept,)] = select(store, "SELECT body FROM pending WHERE seq = ?", (bad.seq,))
        assert bytes(kept) == bytes(body)


def test_what_is_in_the_way_of_one_branch_is_in_the_way_of_no_other(uploading: App, store: Store) -> None:
    objects = Objects(store)
    large = left_behind(uploading, store, {"data": LARGE[0]}, **NAME)
    small = left_behind(uploading, store, {"n": 1}, workflow_id="other", owner_id="ann")
    objects.take_away()
    with pytest.raises(Denied):
        uploading.checkpoints.drain()
    assert uploading.kernel.ticket(small).status == "committed"
    assert uploading.kernel.ticket(large).status == "pending"
    with pytest.raises(Denied):
        uploading.kernel.save_state_delta({"n": 1}, **NAME)
    objects.bring_back()
    assert uploading.kernel.wait_for(large).version == 1


def test_what_is_in_the_way_is_not_tried_again_with_every_turn_that_others_ask_for(
    uploading: App, store: Store
) -> None:
    objects = Objects(store)
    objects.take_away()
    uploads = "SELECT id FROM upload"
    before, begun_s = len(select(store, uploads)), time.monotonic()
    uploading.kernel.checkpoint_async({"data": LARGE[0]}, **NAME)
    wait_until(lambda: uploading.checkpoints.problem is not None)
    for number in range(30):
        ticket = uploading.kernel.checkpoint_async({"n": number}, workflow_id="other", owner_id="ann")
        wait_until(partial(_is_committed, uploading, ticket))
    tries = len(select(store, uploads)) - before
    assert 1 <= tries <= 3 + (time.monotonic() - begun_s) / PAUSE_S
    objects.bring_back()


def _is_committed(app: App, ticket: Ticket) -> bool:
    return app.kernel.ticket(ticket).status == "committed"


def test_what_is_in_the_way_of_a_later_delta_is_not_in_the_way_of_those_before_it(uploading: App, store: Store) -> None:
    objects = Objects(store)
    first = left_behind(uploading, store, {"data": LARGE[0]}, **NAME)
    second = left_behind(uploading, store, {"data": LARGE[1]}, **NAME)
    with failpoints.call("upload.after_intent", objects.take_away, time=2), pytest.raises(Denied):
        uploading.kernel.wait_for(second)
    for _ in range(2):
        with pytest.raises(Denied):
            uploading.kernel.wait_for(second)
    assert uploading.kernel.ticket(first).version == 1
    # However often the second was tried: that of the fixture, and that of the first.
    assert objects.packs() == 2
    objects.bring_back()
    assert uploading.kernel.wait_for(second).version == 2


def test_a_transaction_takes_only_what_fits_into_memory(app: App, store: Store) -> None:
    """64 MB. Compressed, these two are next to nothing."""
    log = "".join(f"{number:08}" + "x" * 1016 for number in range(33 << 10))
    tickets = [left_behind(app, store, {"n": number, "log": log}, **NAME) for number in range(2)]
    statuses: list[str] = []

    def look() -> None:
        statuses.extend(app.kernel.ticket(ticket).status for ticket in tickets)

    with failpoints.call("apply.before_transaction", look, time=2):
        assert app.checkpoints.drain() == 2
    assert statuses == ["committed", "pending"]
    assert [app.kernel.ticket(ticket).version for ticket in tickets] == [1, 2]


def test_a_file_in_the_way_of_an_object_gives_no_delta_up(uploading: App, store: Store) -> None:
    objects = Objects(store)
    large = left_behind(uploading, store, {"data": LARGE[0]}, **NAME)
    path = objects.put_a_file_there()

    def save() -> None:
        uploading.kernel.save_state_delta({"data": LARGE[1]}, workflow_id="other", owner_id="ann")

    for attempt in (uploading.checkpoints.drain, save):
        with pytest.raises(Unavailable, match="move it away") as caught:
            attempt()
        assert caught.value.path == str(path) and str(path) in str(caught.value)
    assert uploading.kernel.ticket(large).status == "pending"
    objects.bring_back()
    assert uploading.kernel.wait_for(large).version == 1


def test_a_program_whose_objects_are_elsewhere_gives_no_delta_up(store: Store, tmp_path: Path) -> None:
    """Another place may be chosen until there are objects, and whoever chose another by then is told."""
    settings = {"pack_threshold_bytes": 10_000, "object_retries": 1}
    elsewhere = Store(store.url, str(tmp_path / "elsewhere"))
    with store.open(**settings) as app, elsewhere.open(**settings) as mistaken:
        app.kernel.save_state_delta({"first": LARGE[1]}, workflow_id="first", owner_id="ann")
        large = left_behind(app, store, {"data": LARGE[0]}, **NAME)
        for _ in range(2):
            with pytest.raises(Unavailable, match="the objects of this store are"):
                mistaken.kernel.wait_for(large)
        assert app.kernel.ticket(large).status == "pending"
        assert app.kernel.wait_for(large).version == 1


def test_whoever_waits_has_the_ticket_whatever_is_in_the_way(uploading: App, store: Store) -> None:
    objects = Objects(store)
    objects.take_away()
    with pytest.raises(Denied) as caught:
        uploading.kernel.checkpoint_async({"data": LARGE[0]}, wait_for_commit=True, **NAME)
    assert uploading.kernel.ticket(caught.value.ticket).status == "pending"
    objects.bring_back()
    # The thread has it now; nobody needs to ask.
    wait_until(lambda: uploading.kernel.ticket(caught.value.ticket).version == 1)


def test_waiting_without_end(app: App) -> None:
    with ThreadPoolExecutor(1) as threads:
        with stuck() as thread:
            ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
            thread.wait()
            waiting = threads.submit(app.kernel.wait_for, ticket, timeout=float("inf"))
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.1)
        assert waiting.result(timeout=60).version == 1
