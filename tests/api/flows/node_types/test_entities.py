"""`ingest` and `view`: documents go in once, and come out as they were when they were asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import Run, Tenant
from analemma.errors import Invalid, NotFound, Unavailable
from analemma.testing import failpoints
from tests.api.pipeline.shop import VIEW, book, open_shop, put_book
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

INGEST = {"id": "put", "type": "ingest", "entity_type": "BOOK", "entity_id": "{{isbn}}", "payload": "book"}
LOOK = {"id": "look", "type": "view", "view": VIEW, "entity_id": "{{isbn}}"}
FAIL = {"id": "fail", "type": "python", "function": "fail"}


@pytest.fixture
def shop(store: Store) -> Iterator[Tenant]:
    with open_shop(store) as shop:
        yield shop


def run(shop: Tenant, *nodes: dict[str, Any], workflow_id: str = "t-1", **state: Any) -> Run:
    document = {"workflow": "w", "nodes": list(nodes)}
    given = {"isbn": "1", "book": book("1"), **state}
    return shop.flows.run(document, given, workflow_id=workflow_id, owner_id="me")


def failing_once(shop: Tenant) -> list[int]:
    tried: list[int] = []

    def fail(state: Any, ctx: Any) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise OSError("behind it")

    shop.flows.handlers.add("fail", fail)
    return tried


def test_a_document_of_the_state_becomes_a_version(shop: Tenant) -> None:
    made = run(shop, INGEST)
    assert made.error is None
    found = shop.ingest("BOOK", "1", book("1"))
    assert (found.created, found.version) == (False, made.state["put"])
    shop.compile("BOOK", "1")
    assert shop.view(VIEW).get("1").meta.version == made.state["put"]


def test_the_same_document_is_no_other_version(shop: Tenant) -> None:
    first = run(shop, INGEST)
    again = run(shop, INGEST, workflow_id="t-2")
    assert first.state["put"] == again.state["put"]


def test_what_was_ingested_is_not_ingested_again_whatever_came_since(shop: Tenant) -> None:
    failing_once(shop)
    made = run(shop, INGEST, FAIL)
    assert made.status == "FAILED"
    version = shop.ingest("BOOK", "1", book("1")).version
    newer = shop.ingest("BOOK", "1", book("1", price=5)).version
    made = shop.flows.resume(made.execution_id)
    assert (made.status, made.state["put"]) == ("COMPLETED", version)
    assert shop.ingest("BOOK", "1", book("1", price=5)).version == newer


def test_a_deletion_is_a_version_too(shop: Tenant) -> None:
    put_book(shop, "1")
    node = {"id": "gone", "type": "ingest", "entity_type": "BOOK", "entity_id": "1", "delete": True}
    failing_once(shop)
    made = run(shop, node, FAIL)
    put_book(shop, "1")
    made = shop.flows.resume(made.execution_id)
    assert made.status == "COMPLETED"
    # It was deleted once: what came since is there.
    assert shop.view(VIEW).get("1").data
    assert made.state["gone"] < shop.ingest("BOOK", "1", book("1")).version


@pytest.mark.parametrize(
    ("node", "state", "kind"),
    [
        (INGEST, {"book": {"isbn": 1}}, "invalid"),
        (INGEST, {"isbn": "a#b"}, "invalid"),
        ({**INGEST, "entity_type": "NOPE"}, {}, "not_found"),
        ({**INGEST, "payload": "nothing"}, {}, "not_found"),
        ({"id": "x", "type": "ingest", "entity_type": "BOOK", "entity_id": "9", "delete": True}, {}, "not_found"),
    ],
    ids=["schema", "id", "type", "payload", "nothing to delete"],
)
def test_what_cannot_be_ingested_fails_the_node_and_can_be_tried_again(
    shop: Tenant, node: dict[str, Any], state: dict[str, Any], kind: str
) -> None:
    made = run(shop, node, **state)
    assert made.error is not None and made.error.kind == kind
    assert shop.flows.resume(made.execution_id).error == made.error


def test_a_view_becomes_a_field(shop: Tenant) -> None:
    put_book(shop, "1")
    made = run(shop, LOOK)
    assert made.error is None
    assert made.state["look"] == dict(shop.view(VIEW).get("1").data)


def test_a_view_is_the_same_when_the_segment_runs_again(shop: Tenant) -> None:
    put_book(shop, "1")
    before = dict(shop.view(VIEW).get("1").data)
    tried = failing_once(shop)
    made = run(shop, LOOK, FAIL)
    put_book(shop, "1", price=7)
    made = shop.flows.resume(made.execution_id)
    assert (made.status, len(tried), made.state["look"]) == ("COMPLETED", 2, before)


@pytest.mark.parametrize("search", [False, True], ids=["entity", "index"])
def test_a_view_of_a_store_that_is_away_is_asked_later(store: Store, tmp_path: Path, search: bool) -> None:
    """The bodies of the view are objects, on a disk that is not mounted for a while."""
    objects, unmounted = tmp_path / "disk", tmp_path / "unmounted"
    on_disk, settings = Store(store.url, str(objects)), {"pack_threshold_bytes": 10_000, "cache_bytes": 0}
    look: dict[str, Any] = LOOK
    if search:
        look = {"id": "look", "type": "view", "view": VIEW, "search": {"index": "tag", "value": "sf"}}
    with on_disk.open(**settings) as app:
        app.contracts.load(EXAMPLE)
        put_book(app.default, "1", title=random.Random(1).randbytes(20_000).hex(), tags=["sf"])
        before = dict(app.default.view(VIEW).get("1").data)
    objects.rename(unmounted)
    objects.mkdir()
    with on_disk.open(**settings) as app:
        with pytest.raises(Unavailable):
            run(app.default, look)
        (made,) = app.flows.runs()
        assert (made.status, made.holder, made.error) == ("RUNNING", None, None)
    objects.rmdir()
    unmounted.rename(objects)
    with on_disk.open(**settings) as app:
        made = app.flows.resume(made.execution_id)
        found = made.state["look"][0]["data"] if search else made.state["look"]
        assert (made.status, found) == ("COMPLETED", before)


def test_a_missing_entity_fails_or_is_null(shop: Tenant) -> None:
    made = run(shop, LOOK)
    assert made.error is not None and made.error.kind == "not_found"
    made = run(shop, {**LOOK, "missing": "null"}, workflow_id="t-2")
    assert (made.status, made.state["look"]) == ("COMPLETED", None)


def test_a_search_is_a_list_of_what_its_index_finds(shop: Tenant) -> None:
    for isbn, tags in (("1", ["sf"]), ("2", ["crime", "sf"]), ("3", ["crime"])):
        put_book(shop, isbn, tags=tags)
    look = {"id": "look", "type": "view", "view": VIEW, "search": {"index": "tag", "value": "{{tag}}"}}
    made = run(shop, look, tag="sf")
    assert made.error is None
    assert made.state["look"] == [
        {"entity_id": isbn, "data": dict(shop.view(VIEW).get(isbn).data)} for isbn in ("1", "2")
    ]
    first = {**look, "search": {"index": "tag", "value": "sf", "limit": 1}}
    assert [each["entity_id"] for each in run(shop, first, workflow_id="t-2").state["look"]] == ["1"]
    assert run(shop, look, workflow_id="t-3", tag="poems").state["look"] == []
    for problem in ({"index": "nope", "value": "sf"}, {"index": "tag", "value": ["sf"]}):
        failed = run(shop, {**look, "search": problem}, workflow_id="t-4")
        assert failed.error is not None and failed.error.kind in ("invalid", "not_found")


def test_a_search_is_the_same_when_the_segment_runs_again(shop: Tenant) -> None:
    put_book(shop, "1", tags=["sf"])
    failing_once(shop)
    look = {"id": "look", "type": "view", "view": VIEW, "search": {"index": "tag", "value": "sf"}}
    made = run(shop, look, FAIL)
    put_book(shop, "2", tags=["sf"])
    made = shop.flows.resume(made.execution_id)
    assert [each["entity_id"] for each in made.state["look"]] == ["1"]


@pytest.mark.parametrize("more", [{}, {"entity_id": "1", "search": {"index": "tag", "value": "sf"}}])
def test_a_view_is_asked_for_an_entity_or_an_index(shop: Tenant, more: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="either entity_id or search"):
        run(shop, {"id": "look", "type": "view", "view": VIEW, **more})


def test_a_missing_view_is_no_missing_entity(shop: Tenant) -> None:
    made = run(shop, {**LOOK, "view": "view.nope.v1", "missing": "null"})
    assert made.error is not None and made.error.kind == "not_found"


def test_a_worker_whose_run_was_cancelled_ingests_nothing(shop: Tenant) -> None:
    def cancel() -> None:
        (under_way,) = shop.flows.runs()
        shop.flows.cancel(under_way.execution_id)

    with failpoints.call("ingest.before_transaction", cancel):
        assert run(shop, INGEST).status == "CANCELLED"
    with pytest.raises(NotFound):
        shop.compile("BOOK", "1")
