"""Bulk ingest of JSON lines: whatever stands in them, each is counted, and a run that was stopped goes on behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine, Done, at
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

FILE = "books.jsonl"
CURSOR = "cursor.json"
INGEST = ["ingest", "BOOK", FILE, "--id-field", "isbn"]
RESUMED = [*INGEST, "--resume", CURSOR]
LONGEST = 16 * 1024 * 1024

HOSTILE = {
    "no end": (b"{", "JSON"),
    "not utf-8": (b'{"isbn": "x", "title": "\xff"}', "UTF-8"),
    "nan": (b'{"isbn": "x", "price": NaN}', "JSON"),
    "too large": (b'{"isbn": "x", "price": 1e999}', "JSON|range|large"),
    "twice": (b'{"isbn": "x", "isbn": "y"}', "isbn"),
    "deep": (b'{"isbn": "x", "audit": ' + b'{"a":' * 200 + b"1" + b"}" * 201, "nest"),
    "surrogate": (b'{"isbn": "\\ud800"}', "JSON"),
    "zero": (b"\x00", "JSON"),
    "no object": (b"[]", "not a JSON object"),
    "number": (b"7", "not a JSON object"),
    "no id": (b'{"title": "x"}', "has no field 'isbn'"),
    "odd id": (b'{"isbn": {}}', "neither text nor a whole number"),
    "id that is none": (b'{"isbn": "a#b", "title": "x", "price": 1}', "not an entity id"),
    "no such book": (b'{"isbn": "x", "title": 7, "price": 1}', "/title"),
}


def book(isbn: str, **more: Any) -> bytes:
    return json.dumps({"isbn": isbn, "title": "x", "price": 1, **more}).encode()


@pytest.fixture
def shop(tmp_path: Path) -> CommandLine:
    line = at(Store(str(tmp_path / "store")), tmp_path)
    line.text("contracts", "load", str(EXAMPLE))
    return line


def write(shop: CommandLine, data: bytes) -> None:
    (shop.directory / FILE).write_bytes(data)


def ingested(shop: CommandLine, data: bytes, *more: str, run: list[str] = INGEST) -> Any:
    write(shop, data)
    return shop.answer(*run, *more)["ingested"]


def refusal(done: Done) -> dict[str, Any]:
    assert done.returncode != 0
    error: dict[str, Any] = json.loads(done.stderr)["error"]
    return error


def wrongs(shop: CommandLine, line: bytes, reason: str) -> Iterator[object]:
    """What a bad line on place 3 does that it should not."""
    write(shop, b"\n".join([book("1"), b"", line, book("2"), book("3")]))
    error = refusal(shop.run(*INGEST, "--batch", "2", "--json"))
    if (error["kind"], error["line"]) != ("invalid", 3) or error["created"] + error["unchanged"] != 1:
        yield error
    message = error["message"]
    if not message.startswith(f"{FILE}, line 3: ") or not any(part in message for part in reason.split("|")):
        yield message[:200]
    told = shop.run(*INGEST, "--on-error", "skip")
    said = told.stderr.splitlines()
    if told.returncode != 0 or len(said) != 1 or not said[0].startswith(f"{FILE}, line 3: "):
        yield told.stderr[:200]
    done = shop.answer(*INGEST, "--on-error", "skip")["ingested"]
    counts = [done[name] for name in ("created", "unchanged", "refused", "lines")]
    if counts != [0, 3, 1, 4] or [each["line"] for each in done["problems"]] != [3]:
        yield counts


def test_a_bad_line_stops_with_its_number_or_is_skipped(shop: CommandLine) -> None:
    found = {name: list(wrongs(shop, line, reason)) for name, (line, reason) in HOSTILE.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_a_line_that_is_too_long_stops_with_its_number_or_is_skipped(shop: CommandLine) -> None:
    assert list(wrongs(shop, b'{"isbn": "' + b"x" * LONGEST + b'"}', "longer than")) == []


def test_blank_lines_count_and_are_no_documents(shop: CommandLine) -> None:
    data = b"\n" + book("1") + b"\r\n  \n[]\n" + book("2")
    done = ingested(shop, data, "--on-error", "skip")
    assert (done["lines"], done["created"], [each["line"] for each in done["problems"]]) == (3, 2, [4])


def test_a_byte_order_mark_is_no_part_of_the_first_line(shop: CommandLine) -> None:
    assert ingested(shop, b"\xef\xbb\xbf" + book("1") + b"\n")["created"] == 1


def test_only_newlines_end_a_line(shop: CommandLine) -> None:
    text = json.dumps({"isbn": "1", "title": "x\u2028y\u0085z", "price": 1}, ensure_ascii=False)
    assert ingested(shop, f"{text}\n".encode())["lines"] == 1
    shop.text("compile", "BOOK", "1")
    assert shop.answer("slices", "BOOK", "1")["slices"]["CORE"]["data"]["title"] == "x\u2028y\u0085z"


@pytest.mark.deep("lines of sixteen megabytes")
def test_the_longest_line_is_read_and_a_longer_one_is_not(shop: CommandLine) -> None:
    for length, problem in ((LONGEST, "it is no BOOK"), (LONGEST + 1, "longer than")):
        text = b'{"isbn": "x", "title": "' + b"x" * (length - 38) + b'", "price": 1}'
        assert len(text) == length
        done = ingested(shop, text + b"\n" + book("2"), "--on-error", "skip")
        assert done["created"] + done["unchanged"] + done["refused"] == 2
        assert [problem in each["reason"] for each in done["problems"]] in ([], [True]), done["problems"]
        assert (length > LONGEST) == bool([each for each in done["problems"] if "longer" in each["reason"]])


def test_a_run_that_was_stopped_goes_on_where_it_was(shop: CommandLine) -> None:
    books = [book(f"{number:03}") + b"\n" for number in range(100)]
    run = [*RESUMED, "--batch", "10"]
    write(shop, b"".join([*books[:57], b"broken\n", *books[57:]]))
    assert shop.error("invalid", *run).startswith(f"{FILE}, line 58: ")
    assert json.loads((shop.directory / CURSOR).read_text())["lines"] == 50

    done = ingested(shop, b"".join(books), run=run)
    # Seven lines of the batch that was not finished were stored all the same.
    assert (done["skipped_lines"], done["created"], done["unchanged"]) == (50, 43, 7)
    assert shop.answer(*run)["ingested"]["created"] == 0
    done = ingested(shop, b"".join([*books, book("100")]), run=run)
    assert (done["skipped_lines"], done["created"], done["lines"]) == (100, 1, 1)

    other = ["ingest", "AUTHOR", *run[2:]]
    assert "another run: entity_type differs" in shop.error("invalid", *other)
    other = ["ingest", "BOOK", FILE, "--id-field", "title", "--drop-id-field", "--resume", CURSOR]
    assert "another run: drop_id_field, id_field differs" in shop.error("invalid", *other)
    write(shop, b"".join(reversed(books)))
    assert "its first 101 lines changed" in shop.error("invalid", *run)
    assert sorted(each.name for each in shop.directory.iterdir()) == [FILE, CURSOR, "store"]


def test_another_input_is_not_gone_on_with(shop: CommandLine) -> None:
    ingested(shop, book("1") + b"\n", run=RESUMED)
    for other in (book("9") + b"\n" + book("2"), b'{"isbn"', b""):
        write(shop, other)
        assert "its first 1 lines changed" in shop.error("invalid", *RESUMED)


def test_reading_goes_on_wherever_it_stopped(shop: CommandLine) -> None:
    lines = [book("1"), b"", b"[]", book("2", title="y\u2028"), b"  \r", b"\xff", book("3")]
    whole = b"\n".join(lines)
    expected = ingested(shop, whole, "--on-error", "skip")["problems"]
    for stop in range(len(lines) + 1):
        (shop.directory / CURSOR).unlink(missing_ok=True)
        begun = b"".join(line + b"\n" for line in lines[:stop])[: len(whole)]
        before, after = (ingested(shop, data, "--on-error", "skip", run=RESUMED) for data in (begun, whole))
        assert after["skipped_lines"] == stop
        assert before["problems"] + after["problems"] == expected
        assert before["lines"] + after["lines"] == 5


def test_a_last_line_without_an_end_is_counted_once(shop: CommandLine) -> None:
    data = book("1") + b"\n" + book("2")
    for appended in (b"\n" + book("3") + b"\n", b"\r\n" + book("3"), b"  \n" + book("3")):
        (shop.directory / CURSOR).unlink(missing_ok=True)
        assert ingested(shop, data, run=RESUMED)["lines"] == 2
        again = ingested(shop, data + appended, run=RESUMED)
        assert (again["skipped_lines"], again["lines"], again["refused"]) == (2, 1, 0)
        assert json.loads((shop.directory / CURSOR).read_text())["lines"] == 3


def test_a_last_line_that_grew_is_told(shop: CommandLine) -> None:
    data = book("1") + b"\n" + book("2")
    ingested(shop, data, run=RESUMED)
    grown = ingested(shop, data + book("3") + b"\n" + book("4"), "--on-error", "skip", run=RESUMED)
    assert grown["problems"] == [{"line": 2, "reason": "it was shorter when it was read before"}]
    assert grown["created"] == 1


def test_a_run_from_standard_input_can_go_on_too(shop: CommandLine) -> None:
    run = ["ingest", "BOOK", "-", "--id-field", "isbn", "--resume", CURSOR]
    begun = book("1").decode() + "\n"
    shop.answer(*run, given=begun)
    assert shop.answer(*run, given=begun + book("2").decode())["ingested"]["created"] == 1


def test_what_is_no_cursor_file_is_refused(shop: CommandLine) -> None:
    ingested(shop, book("1") + b"\n" + book("2"), run=RESUMED)
    cursor = shop.directory / CURSOR
    good = json.loads(cursor.read_text())
    odd: dict[str, list[Any]] = {
        "format": [2, None],
        "lines": ["2", -1, None, True, good["bytes"] + 1],
        "bytes": [2.5, -20, "20", []],
        "sha256": [7, "ab", "AB" * 32, "ab" * 32 + "\n"],
    }
    changed = [json.dumps({**good, name: value}) for name, values in odd.items() for value in values]
    texts = ["", "{}", "[]", '{"format": 2}', "\x00", *changed]
    taken = []
    for text in texts:
        cursor.write_text(text)
        done = shop.run(*RESUMED)
        if done.returncode != 2 or "is no cursor file" not in done.stderr:
            taken.append(text)
    assert taken == []
    cursor.write_text(json.dumps(good))
    assert shop.answer(*RESUMED)["ingested"]["skipped_lines"] == 2
