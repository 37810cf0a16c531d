"""An entity is compiled while another that it joins is: it ends with what that one ended with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import analemma
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.stores import Store

CONTRACTS = Path(__file__).parents[2] / "examples/bookshop/contracts.yaml"
BOOK: dict[str, Any] = {"isbn": "1", "title": "Solaris", "price": 1200, "authorId": "lem"}


def prepare(app: analemma.App) -> None:
    """An author who is compiled, and a book of his that is not."""
    app.contracts.load(CONTRACTS)
    app.default.ingest("AUTHOR", "lem", {"name": "Lem"})
    app.worker(1).drain()
    app.default.ingest("BOOK", "1", BOOK)


def rename(app: analemma.App) -> None:
    """Give the author another name, and have every book follow that is known to be his."""
    app.default.ingest("AUTHOR", "lem", {"name": "Stanisław Lem"})
    app.default.compile("AUTHOR", "lem")
    app.worker(1).drain()


def author_of_the_book(app: analemma.App) -> object:
    enriched = app.default.slices("BOOK", "1")["ENRICHED"].data
    return enriched and enriched["author"]["name"]


def test_a_join_that_changed_before_the_compile_was_written_is_read_again(store: Store) -> None:
    """Guard: a compile is written only if what it joined was not compiled since."""
    with store.open() as app, store.open() as other:
        prepare(app)
        with failpoints.paused("compile.before_transaction", lambda: app.worker(1).drain()) as held:
            rename(other)
            held.go_on()
        assert author_of_the_book(app) == "Stanisław Lem"


def test_nobody_compiles_what_a_compile_joins_before_that_is_committed(migrated_url: str, tmp_path: Path) -> None:
    """Guard: a compile on PostgreSQL locks what it joins. Whoever looked for the books of the author before the new one
    is committed would not find it, and it would stay as it is."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open() as app, store.open() as other:
        prepare(app)
        with (
            failpoints.paused("compile.before_commit", lambda: app.worker(1).drain()) as held,
            beside(lambda: rename(other)) as renaming,
        ):
            wait_for_waiting(store.url, renaming)
            held.go_on()
        other.worker(1).drain()
        assert author_of_the_book(app) == "Stanisław Lem"
