"""The pipeline by its commands: contracts and documents in, slices and views out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine, at
from tests.core.contracts.bookshop import EXAMPLE, TEXT, changed
from tests.stores import Store

VIEW = "view.book.detail.v1"
BOOKS = [
    {"isbn": "978", "title": "Solaris", "price": 1200, "authorId": "lem", "tags": ["sf"]},
    {"isbn": "979", "title": "Fiasco", "price": 1500, "authorId": "lem", "tags": ["sf", "late"]},
    {"isbn": "980", "title": "Dune", "price": 900, "authorId": "herbert"},
]
BOOK_TEXT = json.dumps(BOOKS[0])
LEM = {"id": "lem", "name": "Stanisław Lem", "country": "PL"}


def lines(*documents: Any) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in documents)


@pytest.fixture
def shop(store: Store, tmp_path: Path) -> CommandLine:
    line = at(store, tmp_path)
    line.text("contracts", "load", str(EXAMPLE))
    return line


def ingest(line: CommandLine, *documents: Any, entity_type: str = "BOOK", field: str = "isbn", more: Any = ()) -> Any:
    return line.answer("ingest", entity_type, "-", "--id-field", field, *more, given=lines(*documents))["ingested"]


def test_from_documents_to_a_view_and_on_to_a_renamed_author(shop: CommandLine) -> None:
    (shop.directory / "books.jsonl").write_text(lines(*BOOKS))
    told = shop.text("ingest", "BOOK", "books.jsonl", "--id-field", "isbn")
    assert told.splitlines() == ["created    3", "unchanged  0", "refused    0"]
    ingest(shop, LEM, entity_type="AUTHOR", field="id", more=["--drop-id-field"])
    shop.text("worker", "--drain")

    data = json.loads(shop.text("view", "get", VIEW, "978"))
    assert list(data) == ["CORE", "PRICE", "ENRICHED", "INVENTORY"]
    assert data["CORE"] == {"isbn": "978", "title": "Solaris", "tags": ["sf"]}
    assert data["ENRICHED"] == {"author": {"name": "Stanisław Lem", "origin": {"country": "PL"}}}

    ingest(shop, {**LEM, "name": "S. Lem"}, entity_type="AUTHOR", field="id", more=["--drop-id-field"])
    shop.text("worker", "--drain")
    after = shop.answer("view", "get", VIEW, "978")["view"]
    assert after["data"]["ENRICHED"]["author"]["name"] == "S. Lem"
    assert after["meta"]["revision"] > 1 and not after["meta"]["staleness"]["is_stale"]
    assert json.loads(shop.text("view", "get", VIEW, "980"))["ENRICHED"] == {}

    assert shop.text("view", "count", VIEW) == "3\n"
    assert shop.answer("view", "count", VIEW, "--index", "author", "--value", "lem") == {
        "count": 2,
        "unindexed": 0,
    }
    found = shop.answer("view", "search", VIEW, "--index", "tag", "--value", "late")
    assert [each["entity_id"] for each in found["items"]] == ["979"]


def test_pages_follow_each_other_by_their_cursors(shop: CommandLine) -> None:
    ingest(shop, *BOOKS)
    shop.text("compile", "BOOK", "--all")
    first = shop.answer("view", "range", VIEW, "--limit", "2")
    second = shop.answer("view", "range", VIEW, "--limit", "2", "--cursor", first["next_cursor"])
    assert [[each["entity_id"] for each in page["items"]] for page in (first, second)] == [["978", "979"], ["980"]]
    assert second["next_cursor"] is None
    text = shop.text("view", "range", VIEW, "--limit", "2").splitlines()
    assert text[0].startswith("978  {") and text[-1] == f"more: --cursor {first['next_cursor']}"
    assert shop.error("invalid", "view", "range", VIEW, "--cursor", "x") == "not a cursor of this query"
    many = shop.answer("view", "get", VIEW, "980", "nope", "978")
    assert [each["entity_id"] for each in many["items"]] == ["980", "978"]
    assert [each["entity_id"] for each in many["unanswered"]] == ["nope"]


def test_one_document_can_be_given_on_the_command_line(shop: CommandLine) -> None:
    one = ["ingest", "BOOK", "--id", "978", "--payload", json.dumps(BOOKS[0] | {"audit": {"by": "me"}})]
    first = shop.answer(*one)["ingested"]
    assert first["created"] and first["unknown_fields"] == []
    again = shop.answer(*one)["ingested"]
    assert again == {**first, "created": False}
    compiled = shop.answer("compile", "BOOK", "978")["compiled"]
    assert (compiled["version"], compiled["mode"]) == (first["version"], "FULL")
    assert shop.text("compile", "BOOK", "978").splitlines()[3:] == [
        "written    nothing, up to date",
        "unchanged  CORE, PRICE, INVENTORY, ENRICHED",
    ]
    slices = shop.answer("slices", "BOOK", "978")["slices"]
    assert slices["CORE"]["hash"].startswith("sha256:") and slices["CORE"]["version"] == first["version"]
    assert json.loads(shop.text("slices", "BOOK", "978"))["PRICE"] == {"amount": {"minor": 1200}}

    shop.text("ingest", "BOOK", "--id", "978", "--delete")
    shop.text("compile", "BOOK", "978")
    assert shop.error("not_found", "view", "get", VIEW, "978").startswith("BOOK 978 was deleted at 20")
    old = shop.answer("view", "get", VIEW, "978", "--version", first["version"])["view"]
    assert old["data"]["CORE"]["title"] == "Solaris"


def test_a_named_version_keeps_its_content(shop: CommandLine) -> None:
    one = ["ingest", "BOOK", "--id", "978", "--version", "0HZX000000000", "--payload"]
    assert shop.answer(*one, json.dumps(BOOKS[0]))["ingested"]["version"] == "0HZX000000000"
    assert not shop.answer(*one, json.dumps(BOOKS[0]))["ingested"]["created"]
    assert "other content" in shop.error("conflict", *one, json.dumps(BOOKS[1]))


def test_compile_all_tells_what_failed_and_goes_on(shop: CommandLine) -> None:
    ingest(shop, *BOOKS)
    shop.text("compile", "BOOK", "--all")
    ingest(shop, {**BOOKS[0], "audit": {"by": "me"}}, {**BOOKS[1], "price": 7})
    # A change that the ruleset no longer ignores is refused in the incremental mode.
    strict = changed('ignore: ["/audit/*"]', "ignore: [/nothing]").replace("version: 1.0.0", "version: 1.0.1")
    (shop.directory / "strict.yaml").write_text(strict)
    shop.text("contracts", "load", "strict.yaml")
    done = shop.run("compile", "BOOK", "--all")
    assert done.returncode != 0
    assert done.stdout.splitlines() == ["compiled    1", "up to date  1", "failed      1"]
    assert done.stderr.startswith("978: ")
    answer = shop.run("compile", "BOOK", "--all", "--json")
    assert [each["id"] for each in json.loads(answer.stdout)["problems"]] == ["978"]
    assert shop.answer("compile", "BOOK", "--all", "--mode", "full")["compiled"]["failed"] == 0


def test_contracts_are_loaded_and_listed_in_a_store(store: Store, tmp_path: Path) -> None:
    line = at(store, tmp_path)
    assert line.text("contracts", "list") == "no contracts are loaded\n"
    assert line.error("not_found", "view", "count", VIEW) == "no contracts are loaded"
    told = line.text("contracts", "load", str(EXAMPLE)).splitlines()
    assert told[-1] == "6 changed, 6 loaded in all" and "view.book.detail.v1@1.0.0  new -> ACTIVE" in "\n".join(told)
    assert line.text("contracts", "load", str(EXAMPLE)) == "0 changed, 6 loaded in all\n"
    listed = line.answer("contracts", "list")["contracts"]
    assert [each["id"] for each in listed][:2] == ["entity.author.v1", "entity.book.v1"]
    assert {each["checksum"] for each in listed} == {
        each["checksum"] for each in line.answer("contracts", "list", str(EXAMPLE))["contracts"]
    }
    (tmp_path / "next.yaml").write_text(changed("fields: [isbn, title, tags]", "fields: [isbn, title]"))
    assert "is in use with other content" in line.error("invalid", "contracts", "load", "next.yaml")
    (tmp_path / "old.yaml").write_text(TEXT.replace("status: ACTIVE", "status: DEPRECATED"))
    assert "ACTIVE -> DEPRECATED" in line.text("contracts", "load", "old.yaml")


SENSELESS = [
    ["ingest", "BOOK"],
    ["ingest", "BOOK", "x.jsonl", "--id", "7"],
    ["ingest", "BOOK", "x.jsonl", "--delete"],
    ["ingest", "BOOK", "nothing-here.jsonl"],
    ["ingest", "BOOK", "."],
    ["ingest", "BOOK", "x\0y"],
    ["ingest", "BOOK", "-", "--on-error", "ignore"],
    ["ingest", "BOOK", "-", "--batch", "0"],
    ["ingest", "BOOK", "-", "--resume", "."],
    ["ingest", "BOOK", "--id", "7"],
    ["ingest", "BOOK", "--id", "7", "--payload", BOOK_TEXT, "--resume", "cursor.json"],
    ["ingest", "BOOK", "--id", "7", "--payload", BOOK_TEXT, "--batch", "7"],
    ["ingest", "BOOK", "--id", "7", "--payload", BOOK_TEXT, "--id-field", "isbn"],
    ["ingest", "BOOK", "--id", "7", "--payload", BOOK_TEXT, "--drop-id-field"],
    ["ingest", "BOOK", "--id", "7", "--payload", BOOK_TEXT, "--on-error", "skip"],
    ["ingest", "BOOK", "--id", "7", "--payload", BOOK_TEXT, "--schema", "entity.book.v1@"],
    ["ingest", "BOOK", "--id", "7", "--payload", BOOK_TEXT, "--schema", "@1.0.0"],
    ["ingest", "BOOK", "--id", "7", "--payload", BOOK_TEXT, "--schema", ""],
    ["ingest", "BOOK", "--id", "7", "--payload", "{}", "--delete"],
    ["ingest", "BOOK", "--id", "7", "--payload", "[]"],
    ["ingest", "BOOK", "--id", "7", "--payload", '{"a": 1, "a": 2}'],
    ["ingest", "BOOK", "--id", "7", "--payload", "\udcff"],
    ["ingest", "book type", "--id", "7", "--payload", "{}"],
    ["compile", "BOOK"],
    ["compile", "BOOK", "7", "--all"],
    ["compile", "BOOK", "978", "--prefix", "9"],
    ["compile", "BOOK", "--all", "--version", "0HZX000000000"],
    ["compile", "BOOK", "7", "--mode", "half"],
    ["slices", "BOOK", "7", "--version", "1"],
    ["view", "get", VIEW, "7", "8", "--version", "0HZX000000000"],
    ["view", "count", VIEW, "--index", "tag"],
    ["view", "count", VIEW, "--value", "sf"],
    ["view", "search", VIEW, "--index", "nope", "--value", "x"],
    ["view", "search", VIEW, "--index", "tag", "--value", "\udcff"],
    ["view", "get", VIEW, "7", "--view-version", "one"],
]
MISSING = [
    ["compile", "BOOK", "7"],
    ["compile", "NOTHING", "--all"],
    ["slices", "BOOK", "7"],
    ["slices", "BOOK", "978", "--version", "0HZX000000000"],
    ["slices", "BOOK", "978", "--version", "FZZZZZZZZZZZZ"],
    ["view", "get", VIEW, "978", "--version", "0HZX000000000"],
    ["view", "get", VIEW, "7"],
    ["ingest", "NOTHING", "-"],
    ["ingest", "NOTHING", "-", "--on-error", "skip"],
    ["view", "get", "view.nope", "7"],
    ["view", "get", VIEW, "7", "--view-version", "9.0.0"],
    ["ingest", "BOOK", "--id", "7", "--delete"],
    ["ingest", "NOTHING", "--id", "7", "--payload", "{}"],
    ["view", "count", VIEW, "--tenant", "nobody"],
]


def test_what_makes_no_sense_is_refused_in_one_line(tmp_path: Path) -> None:
    shop = at(Store(str(tmp_path / "store")), tmp_path)
    shop.text("contracts", "load", str(EXAMPLE))
    one = ["ingest", "BOOK", "--payload", BOOK_TEXT, "--id"]
    shop.text(*one, "978", "--schema", "entity.book.v1@1.0.0")
    shop.text("compile", "BOOK", "978")
    for arguments in SENSELESS:
        shop.error("invalid", *arguments)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    shop = at(Store(str(tmp_path / "store")), tmp_path)
    shop.text("contracts", "load", str(EXAMPLE))
    shop.text("ingest", "BOOK", "--payload", BOOK_TEXT, "--id", "978")
    for arguments in MISSING:
        shop.error("not_found", *arguments)
        shop.error("not_found", *arguments, given=lines(*BOOKS))
