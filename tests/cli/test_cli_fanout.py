"""Fanouts by their commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine, at
from tests.core.contracts.bookshop import TEXT
from tests.stores import Store

LIMITED = TEXT.replace("maxFanout: 10000", "maxFanout: 3")


@pytest.fixture
def shop(store: Store, tmp_path: Path) -> CommandLine:
    """Five books of one author, of whom three may follow at once."""
    assert LIMITED != TEXT
    line = at(store, tmp_path)
    (line.directory / "contracts.yaml").write_text(LIMITED)
    line.text("contracts", "load", "contracts.yaml")
    books = [{"isbn": str(number), "title": "x", "price": 1, "authorId": "lem"} for number in range(5)]
    _ingest(line, "BOOK", "isbn", books)
    line.text("worker", "--drain")
    return line


def _ingest(line: CommandLine, kind: str, field: str, documents: list[dict[str, Any]], *more: str) -> None:
    line.text(
        "ingest", kind, "-", "--id-field", field, *more, given="".join(f"{json.dumps(each)}\n" for each in documents)
    )


def rename(line: CommandLine, name: str) -> None:
    _ingest(line, "AUTHOR", "id", [{"id": "lem", "name": name}], "--drop-id-field")
    line.text("worker", "--drain")


def test_a_fanout_is_shown_with_its_alert(shop: CommandLine) -> None:
    assert shop.answer("fanout", "status")["status"]["alerts"] == 0
    rename(shop, "Lem")
    found = shop.answer("fanout", "show", "AUTHOR", "lem")["fanout"]
    assert (found["status"], found["affected"], found["processed"], found["failed"]) == ("DONE", 5, 5, 0)
    assert [each["index_type"] for each in found["dependencies"]] == ["author"]
    told = shop.text("fanout", "show", "AUTHOR", "lem")
    assert "BOOK.author: 5 affected, 5 processed, 0 skipped, 0 failed, limit 3, done" in told.splitlines()
    assert "0 under way, 1 in all" in shop.text("fanout", "status")
    (alerted,) = shop.answer("fanout", "alerts")["fanouts"]
    assert alerted["alert"] == "5 BOOK.author follow it, of which 3 at once and the others when there is time"
    assert alerted["alert"] in shop.text("fanout", "alerts")
    assert shop.answer("fanout", "list", "--under-way")["fanouts"] == []
    (line,) = shop.text("fanout", "list").splitlines()
    assert line.startswith("AUTHOR#default#lem  DONE  5 affected, 5 processed, 0 skipped, 0 failed  alert: ")
    assert shop.answer("fanout", "resume", "AUTHOR", "lem")["fanout"]["status"] == "DONE"


def test_an_alert_of_what_is_under_way_is_an_exit_code(shop: CommandLine, store: Store) -> None:
    with store.open() as app:
        tenant = app.default
        version = tenant.ingest("AUTHOR", "lem", {"name": "Lem"}).version
        tenant.compile("AUTHOR", "lem")
        fanout = tenant.pipeline.fanout
        fanout.on_entity_change("AUTHOR", "lem", version)
        assert shop.run("fanout", "status").returncode == 0
        fanout.advance("AUTHOR", "lem", 1)
    done = shop.run("fanout", "status")
    assert done.returncode == 1 and "1 under way, 1 in all" in done.stdout
    (line,) = shop.text("fanout", "list", "--under-way").splitlines()
    assert line.startswith("AUTHOR#default#lem  DEFERRED  5 affected, 3 processed, 0 skipped, 0 failed  alert: 5 BOOK")
    shop.text("worker", "--drain")
    assert shop.run("fanout", "status").returncode == 0


def test_what_there_is_not_is_said(shop: CommandLine) -> None:
    done = shop.run("fanout", "show", "AUTHOR", "nobody")
    assert done.returncode != 0
    assert "AUTHOR#default#nobody has no fanout" in done.stderr and "hint: " in done.stderr
    done = shop.run("fanout", "list", "--cursor", "nonsense", "--json")
    assert json.loads(done.stderr)["error"]["kind"] == "invalid"


def test_lists_go_on_where_they_ended(shop: CommandLine) -> None:
    _ingest(
        shop, "BOOK", "isbn", [{"isbn": f"x{at}", "title": "x", "price": 1, "authorId": f"a{at}"} for at in range(3)]
    )
    shop.text("worker", "--drain")
    _ingest(shop, "AUTHOR", "id", [{"id": f"a{at}", "name": "x"} for at in range(3)], "--drop-id-field")
    shop.text("worker", "--drain")
    first = shop.answer("fanout", "list", "--limit", "2")
    second = shop.answer("fanout", "list", "--limit", "2", "--cursor", first["cursor"])
    keys = sorted(each["key"] for each in (*first["fanouts"], *second["fanouts"]))
    assert keys == [f"AUTHOR#default#a{at}" for at in range(3)] and second["cursor"] is None
    assert f"more: --cursor {first['cursor']}" in shop.text("fanout", "list", "--limit", "2").splitlines()
