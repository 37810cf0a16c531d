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


def test_a_compile_that_was_overtaken_does_not_serve_what_is_older(store: Store) -> None:
    """Guard: a compile is written only if its entity was not compiled since."""
    with store.open() as app, store.open() as other:
        prepare(app)
        with failpoints.paused("compile.before_transaction", lambda: app.default.compile("BOOK", "1")) as held:
            other.default.ingest("BOOK", "1", {**BOOK, "title": "Eden"})
            other.default.compile("BOOK", "1")
            held.go_on()
        core = app.default.slices("BOOK", "1")["CORE"].data
        assert core and core["title"] == "Eden"


def test_a_compile_goes_by_the_contracts_that_were_loaded_meanwhile(store: Store, tmp_path: Path) -> None:
    """Guard: a compile is written only if no contracts were loaded since those that it goes by."""
    newer = tmp_path / "newer.yaml"
    text = CONTRACTS.read_text().replace("version: 1.0.0", "version: 2.0.0")
    newer.write_text(text.replace("fields: [isbn, title, tags]", "fields: [title, tags]"))
    with store.open() as app, store.open() as other:
        prepare(app)
        with failpoints.paused("compile.before_transaction", lambda: app.default.compile("BOOK", "1")) as held:
            other.contracts.load(newer)
            held.go_on()
        assert app.default.slices("BOOK", "1")["CORE"].data == {"title": "Solaris"}
