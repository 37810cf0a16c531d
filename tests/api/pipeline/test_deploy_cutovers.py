"""When readers get what was deployed: at once or when the sinks have it, and which of several versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from analemma import DeployState
from analemma.testing import failpoints
from tests.api.pipeline.deploy_shop import hook, title, working
from tests.api.pipeline.ship_shop import documents_of, drain, jsonl, open_ship_shop, shop_contracts
from tests.api.pipeline.shop import VIEW, book, book_rules, put_author, without_joins
from tests.api.pipeline.tables import query
from tests.sink_servers import WebhookReceiver
from tests.stores import Store


@pytest.mark.parametrize("compiling", ["sync", "async"])
def test_at_cutover_done_readers_get_it_when_the_sinks_have_it(
    compiling: str, store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), hook(receiver)) as (app, shop):
        old = shop.deploy("BOOK", "1", book("1", title="Old", tags=["old", "both"]))
        drain(app)
        receiver.is_down = True
        new = shop.deploy("BOOK", "1", book("1", title="New", tags=["new", "both"]), cutover="done", compile=compiling)
        drain(app)
        # One sink has it, the other does not answer: readers get the old one, and by version both.
        assert documents_of(tmp_path / "books.jsonl")["shop__1"]["title"] == "New"
        assert shop.deploys.get(new.id).state is DeployState.SINKING
        told = shop.deploys.explain(new.id).waits_for
        assert told is not None and told.startswith("an answer of sink.hook (failed: ") and "cannot be reached" in told
        assert title(shop) == "Old"
        view = shop.view(VIEW)
        assert view.get("1", old.version).data["CORE"]["title"] == "Old"
        assert view.get("1", new.version).data["CORE"]["title"] == "New"
        assert view.get("1").meta.staleness.is_stale
        found = {tag: [each.entity_id for each in view.search("tag", tag)] for tag in ("old", "new", "both")}
        assert found == {"old": ["1"], "new": [], "both": ["1"]}
        assert [view.count(index="tag", value=tag) for tag in ("old", "new", "both")] == [1, 0, 1]
        receiver.is_down = False
        with working(app):
            done = shop.deploys.await_(new.id, timeout_s=30)
        assert (done.state, done.served, done.superseded_by) == ("DONE", True, None)
        assert title(shop) == "New" and receiver.documents["shop__1"]["body"]["title"] == "New"
        found = {tag: [each.entity_id for each in view.search("tag", tag)] for tag in ("old", "new", "both")}
        assert found == {"old": [], "new": ["1"], "both": ["1"]}
        assert query(store, "SELECT count(*) FROM index_entry WHERE waiting <> 0") == [(0,)]


@pytest.mark.parametrize("compiling", ["sync", "async"])
def test_at_cutover_done_a_sink_that_came_a_moment_ago_is_waited_for(
    compiling: str, store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop), store.open(ship_base=str(tmp_path)) as elsewhere:
        shop.deploy("BOOK", "1", book("1", title="Old"))
        drain(app)
        receiver.is_down = True

        def load() -> None:
            elsewhere.contracts.load([*book_rules("2.0.0"), hook(receiver)])

        # When it is compiled by what was loaded before, and not yet written.
        with failpoints.call("compile.before_transaction", load):
            new = shop.deploy("BOOK", "1", book("1", title="New"), cutover="done", compile=compiling)
            drain(app)
        assert (shop.deploys.get(new.id).state, title(shop)) == (DeployState.SINKING, "Old")
        told = shop.deploys.explain(new.id)
        assert told.waits_for is not None and told.waits_for.startswith("an answer of sink.hook (failed: ")
        assert told.ruleset == "ruleset.book.v1@2.0.0"
        assert shop.slices("BOOK", "1", version=new.version)["CORE"].ruleset == told.ruleset
        receiver.is_down = False
        with working(app):
            done = shop.deploys.await_(new.id, timeout_s=30)
        assert (done.state, done.served, title(shop)) == ("DONE", True, "New")
        assert receiver.documents["shop__1"]["body"]["title"] == "New"


def test_without_sinks_cutover_done_is_at_once(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (_, shop):
        done = shop.deploy("BOOK", "1", book("1", title="A"), ship=[], cutover="done")
        assert (done.state, done.served) == ("DONE", True) and title(shop) == "A"


def test_a_newer_version_that_is_served_stays(store: Store, tmp_path: Path, receiver: WebhookReceiver) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        receiver.is_down = True
        late = shop.deploy("BOOK", "1", book("1", title="Late"), cutover="done")
        newer = shop.ingest("BOOK", "1", book("1", title="Newer"))
        drain(app)
        assert title(shop) == "Newer"
        receiver.is_down = False
        with working(app):
            done = shop.deploys.await_(late.id)
        assert (done.state, done.served, done.superseded_by) == ("DONE", False, newer.version)
        assert title(shop) == "Newer"
        assert shop.deploys.explain(late.id).steps[-1].reason == "superseded"


def test_of_two_that_wait_the_newer_one_is_served(store: Store, tmp_path: Path, receiver: WebhookReceiver) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        receiver.is_down = True
        first = shop.deploy("BOOK", "1", book("1", title="First"), cutover="done")
        second = shop.deploy("BOOK", "1", book("1", title="Second"), cutover="done")
        assert title(shop) is None
        receiver.is_down = False
        with working(app):
            ended = [shop.deploys.await_(each.id) for each in (first, second)]
        assert [(each.state, each.superseded_by) for each in ended] == [("DONE", second.version), ("DONE", None)]
        assert title(shop) == "Second"


def test_an_older_version_is_superseded_at_once(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        newest = shop.deploy("BOOK", "1", book("1", title="Newest"))
        drain(app)
        old = shop.deploy("BOOK", "1", book("1", title="Old"), version="0000000000001")
        assert (old.state, old.served, old.superseded_by) == ("DONE", False, newest.version)
        assert title(shop) == "Newest"
        (sink,) = shop.deploys.explain(old.id).sinks
        assert (sink.asked, sink.why) == (False, "a newer version is compiled, and sinks follow that one")


def test_who_joins_a_document_follows_at_its_cutover(store: Store, tmp_path: Path, receiver: WebhookReceiver) -> None:
    authors = {**hook(receiver), "input": {"type": "SLICE", "sliceTypes": ["SUMMARY"], "entityTypes": ["AUTHOR"]}}
    with open_ship_shop(store, tmp_path, authors) as (app, shop):

        def author() -> str:
            name: str = shop.view(VIEW).get("1").data["ENRICHED"]["author"]["name"]
            return name

        shop.ingest("AUTHOR", "lem", {"name": "Lem"})
        shop.ingest("BOOK", "1", book("1", authorId="lem"))
        drain(app)
        receiver.is_down = True
        deploy = shop.deploy("AUTHOR", "lem", {"name": "Stanislaw"}, cutover="done")
        drain(app)
        # Also who is compiled meanwhile joins what is served.
        shop.ingest("BOOK", "1", book("1", title="Again", authorId="lem"))
        drain(app)
        assert (author(), title(shop)) == ("Lem", "Again")
        receiver.is_down = False
        with working(app):
            shop.deploys.await_(deploy.id)
        drain(app)
        assert author() == "Stanislaw"
        assert shop.deploys.explain(deploy.id).told == ("PROFILE", "SUMMARY")


def test_both_versions_follow_what_they_join_and_only_a_cutover_serves(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    with open_ship_shop(store, tmp_path, hook(receiver)) as (app, shop):
        for author in "ab":
            shop.ingest("AUTHOR", author, {"name": author})
        old = shop.ingest("BOOK", "1", book("1", title="Old", authorId="a"))
        drain(app)
        receiver.is_down = True
        new = shop.deploy("BOOK", "1", book("1", title="New", authorId="b"), cutover="done")
        for author in "ab":
            shop.ingest("AUTHOR", author, {"name": author.upper()})
        drain(app)
        view = shop.view(VIEW)
        assert title(shop) == "Old"
        assert view.get("1", old.version).data["ENRICHED"]["author"]["name"] == "A"
        assert view.get("1", new.version).data["ENRICHED"]["author"]["name"] == "B"
        receiver.is_down = False
        with working(app):
            assert shop.deploys.await_(new.id).served
        assert title(shop) == "New"
        assert receiver.documents["shop__1"]["body"]["author"]["name"] == "B"


def test_what_is_served_and_not_the_newest_is_found_by_the_indexes_of_new_rules(
    store: Store, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    shipped = {"type": "SLICE", "sliceTypes": ["CORE", "PRICE"], "entityTypes": ["BOOK"]}
    with store.open(ship_base=str(tmp_path), ship_rest_s=0.05, ship_rest_max_s=0.2) as app:
        app.contracts.load([*without_joins(), hook(receiver, input=shipped)])
        shop = app.tenant("shop")
        put_author(shop, "lem", "Lem")
        put_author(shop, "eco", "Eco")
        shop.deploy("BOOK", "1", book("1", title="Old", authorId="lem"))
        drain(app)
        receiver.is_down = True
        new = shop.deploy("BOOK", "1", book("1", title="New", authorId="eco"), cutover="done")
        drain(app)
        assert query(store, "SELECT count(*) FROM index_entry WHERE target IS NOT NULL") == [(0,)]
        app.contracts.load(shop_contracts())
        app.backfill({"tenant": "shop", "types": ["BOOK"]})
        assert app.backfills.verify({"tenant": "shop"}).ok
        view = shop.view(VIEW)
        found = {author: [each.entity_id for each in view.search("author", author)] for author in ("lem", "eco")}
        assert found == {"lem": ["1"], "eco": []}
        # Nobody but the served version names the one, and nobody but the newest the other.
        for author in ("lem", "eco"):
            shop.deploy("AUTHOR", author, {"name": author.upper(), "country": "PL"})
        drain(app)
        assert [view.get("1", version).data["ENRICHED"]["author"]["name"] for version in (None, new.version)] == [
            "LEM",
            "ECO",
        ]
        receiver.is_down = False
        with working(app):
            assert shop.deploys.await_(new.id).served
        found = {author: [each.entity_id for each in view.search("author", author)] for author in ("lem", "eco")}
        assert found == {"lem": [], "eco": ["1"]} and app.backfills.verify({"tenant": "shop"}).ok
        assert query(store, "SELECT count(*) FROM index_entry WHERE waiting <> 0") == [(0,)]
