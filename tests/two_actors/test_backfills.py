"""Another process takes a backfill over while the first is in a page, or at its end: nothing is done or counted twice,
and whoever lost it changes nothing any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.actors import Actor
from tests.raw_rows import change, select
from tests.stores import Store

CONTRACTS = Path(__file__).parents[2] / "examples/bookshop/contracts.yaml"
BOOKS = 6
SCOPE = {"types": ("BOOK",)}
LONG: dict[str, Any] = {"backfill_lease_s": 3600}
"""A lease that need not be renewed while a test ends it."""


def fill(app: analemma.App) -> str:
    """Books that nobody has compiled, and a backfill of them that nobody runs; its id."""
    app.contracts.load(CONTRACTS)
    books = (("BOOK", f"{number}", book(f"{number}")) for number in range(BOOKS))
    app.default.ingest_many(books)
    return app.backfills.create(SCOPE, page=2).id


def book(isbn: str, price: int = 1200) -> dict[str, Any]:
    return {"isbn": isbn, "title": f"Book {isbn}", "price": price}


def end_lease(store: Store) -> None:
    assert change(store, "UPDATE backfill SET lease_until = 0 WHERE lease_until IS NOT NULL") == 1


def run(app: analemma.App, id: str, wait_s: float = 0) -> Any:
    return app.backfills.run(id, executor="threads:1", wait_s=wait_s)


def run_elsewhere(url: str, objects: str | None, id: str, wait_s: float = 0) -> None:
    with Store(url, objects).open(**LONG) as app:
        run(app, id, wait_s)


def compiles(store: Store) -> int:
    (row,) = select(store, "SELECT count(*) FROM compile")
    return int(row[0])


def check_done_once(app: analemma.App, store: Store, id: str) -> None:
    done = app.backfills.get(id)
    assert (done.state, done.counts.done, done.counts.changed, done.counts.failed) == ("DONE", BOOKS, BOOKS, 0)
    assert compiles(store) == BOOKS
    assert app.backfills.verify(SCOPE).ok


def test_a_backfill_is_one_process_s_at_a_time(store: Store) -> None:
    """Guard: a backfill whose lease lasts is not taken."""
    with store.open(**LONG) as app, store.open(**LONG) as other:
        id = fill(app)
        with failpoints.paused("backfill.after_lease", lambda: run(app, id)) as held:
            with pytest.raises(Conflict, match="runs backfill"):
                run(other, id)
            assert compiles(store) == 0
            held.go_on()
        check_done_once(app, store, id)


@pytest.mark.parametrize("versions", ["newest", "all"])
def test_whoever_lost_a_backfill_in_a_page_writes_nothing_of_it(store: Store, versions: str) -> None:
    """Guard: a page is written under the backfill's fence, with what it did."""
    # Those whose versions are all compiled are compiled one by one.
    place = {"newest": "backfill.before_transaction", "all": "compile.before_transaction"}[versions]
    with store.open(**LONG) as app:
        fill(app)
        app.default.ingest("BOOK", "0", book("0", price=1))
        id = app.backfills.create({**SCOPE, "versions": versions}, page=2).id
        with failpoints.paused(place, lambda: run(app, id)) as held:
            end_lease(store)
            # It takes the backfill, and is stopped before it does anything.
            with Actor(run_elsewhere, store.url, store.objects, id, at="backfill.after_lease") as other:
                other.wait_until_stopped()
                with pytest.raises(Conflict, match="taken the backfill over"):
                    held.go_on()
                assert compiles(store) == 0 and app.backfills.get(id).counts.done == 0
                other.thaw()
                assert other.wait() == 0, other.errors
        done = app.backfills.get(id)
        wanted = BOOKS + (versions == "all")
        assert (done.state, done.counts.done, done.counts.changed) == ("DONE", BOOKS, wanted)
        assert compiles(store) == wanted


class Doubling(ThreadPoolExecutor):
    """Hands out its first call twice: as whoever takes a slow worker for a dead one."""

    def __init__(self, twice: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__(1)
        self._twice: Callable[[Callable[[], Any]], Any] | None = twice

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        twice, self._twice = self._twice, None
        if twice is None:
            return super().submit(function, *arguments, **named)
        return super().submit(twice, lambda: function(*arguments, **named))


def test_a_page_that_is_handed_out_twice_is_done_once(store: Store) -> None:
    """Guard: a page moves its shard from the step at which it began, under the same lease."""
    with store.open(**LONG) as app:
        id = fill(app)

        def twice(page: Callable[[], Any]) -> Any:
            with failpoints.paused("backfill.before_transaction", page) as slow:
                quick = page()
                slow.go_on()
            return quick

        with Doubling(twice) as executor:
            app.backfills.run(id, executor=executor)
        check_done_once(app, store, id)


def test_whoever_lost_a_backfill_at_its_end_does_not_say_how_it_ended(store: Store) -> None:
    """Guard: a backfill is given back under its fence."""
    with store.open(**LONG) as app, store.open(**LONG) as third:
        id = fill(app)
        with failpoints.paused("backfill.before_leave", lambda: run(app, id)) as held:
            end_lease(store)
            with Actor(run_elsewhere, store.url, store.objects, id, at="backfill.after_lease") as other:
                other.wait_until_stopped()
                held.go_on()
                assert app.backfills.get(id).state == "RUNNING"
                with pytest.raises(Conflict, match="runs backfill"):
                    run(third, id)
                other.thaw()
                assert other.wait() == 0, other.errors
        check_done_once(app, store, id)


def test_what_somebody_cancelled_at_its_end_stays_cancelled(store: Store) -> None:
    """Guard: giving a backfill back changes the state of one that runs only."""
    with store.open(**LONG) as app, store.open() as other:
        id = fill(app)
        with failpoints.paused("backfill.before_leave", lambda: run(app, id)) as held:
            other.backfills.cancel(id)
            held.go_on()
        assert app.backfills.get(id).state == "CANCELLED"


def test_what_somebody_paused_in_a_page_stands_where_it_stood(store: Store) -> None:
    """Guard: a page is written only while its backfill runs."""
    with store.open(**LONG) as app, store.open() as other:
        id = fill(app)
        with failpoints.paused("backfill.before_transaction", lambda: run(app, id)) as held:
            other.backfills.pause(id)
            assert held.go_on().state == "PAUSED"
        assert compiles(store) == 0 and app.backfills.get(id).counts.done == 0
        other.backfills.resume(id)
        check_done_once(app, store, id)


def test_a_lease_that_was_lost_is_not_renewed_for_its_new_holder(store: Store) -> None:
    """Guard: a lease is renewed under its fence."""
    with store.open(backfill_lease_s=0.5) as app:
        id = fill(app)
        with (
            failpoints.paused("backfill.before_transaction", lambda: run(app, id)) as held,
            Actor(run_elsewhere, store.url, store.objects, id, 60, at="backfill.after_lease") as other,
        ):
            # The first renews it again and again, until the other has it.
            while change(store, "UPDATE backfill SET lease_until = 0 WHERE fence = 1"):
                time.sleep(0.01)
            other.wait_until_stopped()
            taken = select(store, "SELECT lease_until FROM backfill")
            time.sleep(0.5)  # Whoever does not look at the fence has renewed it by then.
            assert select(store, "SELECT lease_until FROM backfill") == taken
            with pytest.raises(Conflict, match="taken the backfill over"):
                held.go_on()
            other.thaw()
            assert other.wait() == 0, other.errors
        check_done_once(app, store, id)
