"""The commands that ship and look at sinks: `analemma ship`, `analemma sinks`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.api.pipeline.ship_shop import documents_of, jsonl, lines_of, open_ship_shop, rule
from tests.api.pipeline.shop import put_book
from tests.cli.command_line import CommandLine, at
from tests.stores import Store

TENANT = ("--tenant", "shop")


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nowhere = rule("sink.search", {"type": "OPENSEARCH", "url": f"http://127.0.0.1:{port}", "index": "books"})
    with open_ship_shop(store, tmp_path, jsonl(), nowhere) as (_, shop):
        put_book(shop, "978")
    made = at(store, tmp_path)
    made.variables["ANALEMMA_SHIP_BASE"] = str(tmp_path)
    made.variables["ANALEMMA_SHIP_REST_S"] = "60"
    return made


def test_an_entity_is_shipped_and_shipped_again(here: CommandLine, tmp_path: Path) -> None:
    assert here.answer("worker", "--drain")["events"]["dead"] == 0
    assert list(documents_of(tmp_path / "books.jsonl")) == ["shop__978"]
    asked = here.answer("ship", "BOOK", "978", "--sink", "sink.file", *TENANT)["requested"]
    assert (asked["entity"], asked["ship_seq"], asked["sinks"]) == ("BOOK#shop#978", 1, ["sink.file"])
    here.answer("worker", "--drain")
    assert len(lines_of(tmp_path / "books.jsonl")) == 2
    here.text("ship", "BOOK", "978", "--sink", "sink.file", "--if-needed", *TENANT)
    assert "was requested by sink.file, sink.search; a worker ships it" in here.text("ship", "BOOK", "978", *TENANT)


def test_sinks_say_how_they_are(here: CommandLine) -> None:
    assert here.run("sinks", "list", *TENANT).returncode == 0
    here.answer("worker", "--drain")
    listed = here.run("sinks", "list", *TENANT)
    assert listed.returncode == 1
    file, search = listed.stdout.splitlines()
    assert file == "sink.file  JSONL  ok  0 pending"
    assert search.startswith("sink.search  OPENSEARCH  resting  0 pending  1 to be tried again  left alone for")
    told = here.run("sinks", "list", "--json", *TENANT)
    assert '"state": "resting"' in told.stdout or '"state":"resting"' in told.stdout
    asked = here.run("sinks", "health")
    assert asked.returncode == 1
    assert "sink.file  healthy" in asked.stdout and "sink.search  NOT HEALTHY" in asked.stdout
    assert here.run("sinks", "health", "sink.file").returncode == 0
    status = here.run("outbox", "status")
    assert status.returncode == 1 and "problem: sink.search did not answer 1 times" in status.stdout
    assert here.answer("sinks", "wake", "sink.search")["woken"] is True
    assert "did not rest" in here.text("sinks", "wake", "sink.search")


def test_what_is_not_there_is_named(here: CommandLine) -> None:
    done = here.run("ship", "BOOK", "979", *TENANT)
    assert done.returncode == 3 and "there is no BOOK#shop#979" in done.stderr
    done = here.run("ship", "BOOK", "978", "--sink", "sink.nowhere", *TENANT)
    assert done.returncode == 3 and "there are sink.file, sink.search" in done.stderr
    assert here.run("sinks", "wake", "sink.nowhere").returncode == 3
