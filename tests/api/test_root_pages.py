"""A store in which more is kept than the collector reads at once: it goes on to the end before it deletes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.stores import Store

NAME: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}
CONTRACTS = Path(__file__).parents[2] / "examples/bookshop/contracts.yaml"
MANY = 1001
"""More than a page of roots, which is 1,000 rows."""


def text(seed: int) -> str:
    """Too large to lie in its parent: a block of its own, which goes if nothing is known to lead to it."""
    return f"{seed:05}" * 400


def collect(store: Store) -> None:
    """Twice: what one pass finds to be nobody's the next one deletes."""
    with store.open() as app:
        for _ in range(2):
            assert app.gc.run(grace_s=0).ok


def test_every_version_is_kept_however_many_there_are(store: Store) -> None:
    """Guard: a snapshot of roots goes on after a full page of a table, here of versions."""
    with store.open() as app:
        tickets = [app.kernel.checkpoint_async({"text": text(number)}, **NAME) for number in range(MANY)]
        app.kernel.wait_for(tickets[-1])
    collect(store)
    with store.open() as app:
        report = app.kernel.verify(**NAME)
        assert (report.problems, len(app.kernel.history(**NAME, limit=2 * MANY))) == ([], MANY)


def test_every_field_that_was_sent_is_kept_however_many_there_are(store: Store) -> None:
    """Guard: the same of leases."""
    with store.open(payload_field_bytes=100) as app:
        send = app.payloads.dehydrate
        sent = [send({"text": text(number)}, **NAME, execution_id="run") for number in range(MANY)]
    collect(store)
    with store.open() as app:
        for number, each in enumerate(sent):
            assert app.payloads.hydrate(each)["text"] == text(number)


def test_every_document_and_slice_is_kept_however_many_there_are(store: Store) -> None:
    """Guard: the same of documents, and of slices, which are read by the page of entities."""
    with store.open() as app:
        app.contracts.load(CONTRACTS)
        app.default.ingest_many(("BOOK", f"{number}", book(number)) for number in range(MANY))
        app.default.compile("BOOK", "1")
        app.default.compile("BOOK", f"{MANY - 1}")
    collect(store)
    with store.open() as app:
        for number in (1, MANY - 1):
            slices = app.default.slices("BOOK", f"{number}")
            assert slices["CORE"].data is not None and slices["CORE"].data["title"] == text(number)
        app.default.compile("BOOK", f"{MANY - 2}")  # reads the document


def book(number: int) -> dict[str, Any]:
    return {"isbn": f"{number}", "title": text(number), "price": 1200}
