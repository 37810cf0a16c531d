"""What deploys cost: round trips to PostgreSQL, and statements for the answers of sinks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import App
from tests.api.pipeline.ship_shop import drain, jsonl, open_ship_shop
from tests.api.pipeline.shop import book
from tests.stores import Store

ENTITIES = 20


@contextmanager
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What this thread sends to the server meanwhile, each by how it begins; also what begins and ends transactions."""
    sent: list[str] = []
    here = threading.get_ident()
    real = psycopg.Connection.execute

    def execute(self: Any, query: Any, *arguments: Any, **more: Any) -> Any:
        if threading.get_ident() == here:
            sent.append(bytes(query).decode().split("\n")[0][:60])
        return real(self, query, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "execute", execute)
        yield sent


def statements(app: App, before: Counter[str]) -> dict[str, int]:
    return dict(app.catalog.engine.statements - before)


@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("cutover", ["ready", "done"])
def test_a_deploy_in_the_call_costs_few_round_trips(
    sinks: int, cutover: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [jsonl(f"sink.{number}", f"{number}.jsonl") for number in range(sinks)]
    with open_ship_shop(store, tmp_path, *rules) as (app, shop):
        shop.deploy("BOOK", "0", book("0"), cutover=cutover)
        drain(app)
        counts = []
        with round_trips(monkeypatch) as sent:
            for title in "A", "B":
                before = Counter(app.catalog.engine.statements)
                sent.clear()
                assert shop.deploy("BOOK", "1", book("1", title=title), cutover=cutover).created
                counts.append((len(sent), statements(app, before)))
        for count, found in counts:
            # The one statement that ingests, the deploy; what is compiled, the compile, the deploy.
            assert found["add_deploy"] == 1 and "deploy_by_id" not in found and "entity" not in found
            if app.catalog.engine.dialect == "postgres":
                assert found["ingest"] == found["compile"] == found["advance_deploy"] == 1
                assert "hold_entity" not in found and "hold_served" not in found
                # Cut over to in a step of its own, it takes what differs, the cutover, and whether somebody joins it.
                assert count <= (10 if cutover == "ready" or sinks else 13), sent


def test_the_same_document_again_costs_few_round_trips(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [jsonl(f"sink.{number}", f"{number}.jsonl") for number in range(4)]
    with open_ship_shop(store, tmp_path, *rules) as (app, shop):
        shop.deploy("BOOK", "1", book("1"))
        drain(app)
        shop.deploy("BOOK", "1", book("1", price=5), ship=[])
        before = Counter(app.catalog.engine.statements)
        with round_trips(monkeypatch) as sent:
            shop.deploy("BOOK", "1", book("1", price=5))
        found = statements(app, before)
        # However many sinks there are.
        names = ("sink_states_of_entity", "lanes_left", "slices_since")
        assert {name: found[name] for name in names} == dict.fromkeys(names, 1)
        if app.catalog.engine.dialect == "postgres":
            assert len(sent) <= 17, sent


@pytest.mark.parametrize("cutover", ["ready", "done"])
def test_answers_for_many_entities_are_written_down_together(cutover: str, store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl()) as (app, shop):
        deploys = [shop.deploy("BOOK", str(n), book(str(n)), cutover=cutover) for n in range(ENTITIES)]
        before = Counter(app.catalog.engine.statements)
        drain(app)
        found = statements(app, before)
        assert {shop.deploys.get(each.id).state.value for each in deploys} == {"DONE"}
        batches = found["deploying_entities"]
        names = ["hold_served", "waiting_deploys", "sinks_of_deploys"]
        if app.catalog.engine.dialect == "postgres":
            names.append("answer_deploy_sinks")
            if cutover == "ready":
                names.append("finish_deploys")
            else:
                assert found["slices_that_differ"] == found["serve_version"] == found["advance_deploy"] == ENTITIES
        assert all(found[name] <= batches < ENTITIES / 2 for name in names), found
        assert found.get("deploy_sinks", 0) == 0


def test_housekeeping_deletes_many_at_once(store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path) as (app, shop):
        for number in range(ENTITIES):
            shop.deploy("BOOK", str(number), book(str(number)))
        before = Counter(app.catalog.engine.statements)
        assert app.deploys.housekeep(older_than_s=-1) == ENTITIES
        found = statements(app, before)
        assert found["drop_deploys"] == 1 and sum(found.values()) <= 5, found
