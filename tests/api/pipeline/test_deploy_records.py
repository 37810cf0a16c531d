"""What is known of deploys afterwards: why each slice and sink was touched, lists, and what is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analemma import DeployState
from analemma.errors import Invalid, NotFound
from tests.api.pipeline.ship_shop import drain, jsonl, open_ship_shop
from tests.api.pipeline.shop import book
from tests.api.pipeline.tables import query
from tests.stores import Store


def test_everything_about_a_deploy_is_explained(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        shop.deploy("BOOK", "1", book("1", title="Old"))
        drain(app)
        deploy = shop.deploy("BOOK", "1", book("1", title="New", price=5))
        drain(app)
        told = shop.deploys.explain(deploy.id)
        assert (told.ruleset, told.mode, told.revision) == ("ruleset.book.v1@1.0.0", "INCREMENTAL", 1)
        assert {each.type: (each.outcome, each.why) for each in told.slices} == {
            "CORE": ("written", ("/title",)),
            "PRICE": ("written", ("/price",)),
            "ENRICHED": ("unchanged", ()),
            "INVENTORY": ("unchanged", ()),
        }
        (sink,) = told.sinks
        assert (sink.rule, sink.asked, sink.slices, sink.state) == ("sink.file", True, ("CORE", "PRICE"), "ANSWERED")
        assert sink.ship_seq == sink.answered_seq == 2
        assert sink.asked_at_us is not None and sink.answered_at_us is not None
        assert sink.asked_at_us <= sink.answered_at_us
        times = [step.at_us for step in told.steps]
        assert times == sorted(times) and told.waits_for is None
        assert told.as_dict()["deploy"]["state"] == "DONE"


def test_very_many_changed_paths_are_counted_and_not_all_kept(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (_, shop):
        shop.deploy("BOOK", "1", book("1", stock={"a": 1}), ship=[])
        deploy = shop.deploy("BOOK", "1", book("1", stock={f"k{n}": n for n in range(500)}), ship=[])
        (stock,) = [each for each in shop.deploys.explain(deploy.id).slices if each.type == "INVENTORY"]
        assert len(stock.why) == 50 and stock.more == 451


def test_lists_are_newest_first_and_paged(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        made = [shop.deploy("BOOK", str(number % 3), book("0", title=f"{number}")) for number in range(7)]
        author = shop.deploy("AUTHOR", "lem", {"name": "Lem"}, compile="async")
        foreign = app.tenant("other").deploy("BOOK", "1", book("1"))
        ids = [each.id for each in [*made, author]][::-1]
        found, cursor = [], None
        while True:
            page = shop.deploys.list(limit=3, cursor=cursor)
            found += [each.id for each in page.deploys]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == ids
        assert [each.id for each in shop.deploys.list(state="QUEUED").deploys] == [author.id]
        assert [each.id for each in shop.deploys.list(entity_type="AUTHOR").deploys] == [author.id]
        one = shop.deploys.list(entity_type="BOOK", entity_id="1").deploys
        assert [each.id for each in one] == [made[4].id, made[1].id]
        assert shop.deploys.list(entity_type="BOOK", entity_id="nope").deploys == []
        assert [each.id for each in app.deploys.list().deploys] == [foreign.id, *ids]
        assert app.deploys.list().deploys[0].tenant == "other"
        with pytest.raises(Invalid, match="not a cursor"):
            shop.deploys.list(limit=3, state="DONE", cursor=shop.deploys.list(limit=3).next_cursor)


def test_old_ones_are_forgotten_when_they_are_over(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), deploy_keep_s=3600) as (app, shop):
        kept = shop.deploy("BOOK", "1", book("1"))
        done = shop.deploy("BOOK", "2", book("2"), ship=[], idempotency_key="k")
        assert app.deploys.housekeep() == 0
        assert app.deploys.housekeep(older_than_s=-1) == 1
        assert shop.deploys.get(kept.id).state is DeployState.SINKING
        with pytest.raises(NotFound, match=f"there is no deploy '{done.id}'"):
            shop.deploys.get(done.id)
        assert query(store, "SELECT count(DISTINCT deploy) FROM deploy_step") == [(1,)]
        # The event of a deploy that is gone is that of a version.
        drain(app)
        assert shop.deploys.get(kept.id).state is DeployState.DONE
        assert shop.deploy("BOOK", "2", book("2"), ship=[], idempotency_key="k").id != done.id


def test_unknown_ids_are_not_found(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        deploy = shop.deploy("BOOK", "1", book("1"))
        other = app.tenant("other")
        ids: list[Any] = ["0" * 32, "", "nope", "x\0y", "\ud800", deploy.id.upper(), f"{deploy.id} ", 7, None]
        for id in ids:
            for deploys in app.deploys, shop.deploys:
                for verb in (deploys.get, deploys.await_, deploys.explain, deploys.retry):
                    with pytest.raises(NotFound, match="there is no deploy"):
                        verb(id)
        with pytest.raises(NotFound):
            other.deploys.get(deploy.id)
        assert app.deploys.get(deploy.id) == deploy
