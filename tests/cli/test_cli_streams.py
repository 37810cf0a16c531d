"""The streams of a process that are not as usual: an input that is closed or breaks off, an output for few letters."""

from __future__ import annotations

import json
import os
import pty
import random
import resource
import subprocess
import sys
import tty
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CODES, PROGRAM, CommandLine, at
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

VIEW = "view.book.detail.v1"


@pytest.fixture
def shop(tmp_path: Path) -> CommandLine:
    line = at(Store(str(tmp_path / "store")), tmp_path)
    line.text("contracts", "load", str(EXAMPLE))
    return line


def book(isbn: str, **more: Any) -> dict[str, Any]:
    return {"isbn": isbn, "title": "x", "price": 1, **more}


def lines(*documents: Any) -> bytes:
    return "".join(f"{json.dumps(each)}\n" for each in documents).encode()


def process(shop: CommandLine, *arguments: str, **options: Any) -> tuple[int, str, str]:
    environment = {**os.environ, **shop.variables}
    done = subprocess.run(
        [PROGRAM, *arguments],
        cwd=shop.directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


def close_standard_input() -> None:
    os.close(0)


@pytest.mark.parametrize(
    "arguments",
    [["ingest", "BOOK", "-"], ["contracts", "simulate", str(EXAMPLE), "--documents", "-"]],
    ids=["ingest", "simulate"],
)
def test_an_input_that_is_closed_is_told(arguments: list[str], shop: CommandLine) -> None:
    code, _, errors = process(shop, *arguments, preexec_fn=close_standard_input)
    assert (code, errors.splitlines()[0]) == (
        CODES["invalid"],
        "error: there is no standard input: it is closed",
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the end of a terminal is an error of input only on Linux")
def test_an_input_that_breaks_off_is_told_and_what_came_before_is_stored(shop: CommandLine) -> None:
    """A terminal whose other side is gone: what it holds can be read, and then there is an error."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    given = lines(book("1"), book("2")) + b"\n" + lines(book("3"))
    os.write(theirs, given)
    os.close(theirs)
    run = ["ingest", "BOOK", "-", "--id-field", "isbn", "--resume", "cursor.json", "--batch", "2"]
    try:
        code, _, errors = process(shop, *run, "--json", stdin=ours)
    finally:
        os.close(ours)
    error = json.loads(errors)["error"]
    assert code == CODES["unavailable"]
    assert error["message"].startswith("standard input, line 5: it cannot be read: ")
    assert (error["line"], error["created"], error["unchanged"]) == (5, 3, 0)
    cursor = json.loads((shop.directory / "cursor.json").read_text())
    assert (cursor["lines"], cursor["bytes"]) == (4, len(given))

    done = shop.answer(*run, given=(given + lines(book("4"))).decode())["ingested"]
    assert (done["skipped_lines"], done["created"], done["lines"]) == (4, 1, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that can be opened and not read")
def test_an_input_that_cannot_be_read_at_all_is_told(shop: CommandLine) -> None:
    code, _, errors = process(shop, "ingest", "BOOK", "/proc/self/mem", "--resume", "cursor.json")
    assert code == CODES["unavailable"]
    assert errors.startswith("error: /proc/self/mem, line 1: it cannot be read: ")
    assert not (shop.directory / "cursor.json").exists()


def test_an_output_for_few_letters_shows_the_others_by_their_codes(shop: CommandLine) -> None:
    shop.text("ingest", "BOOK", "-", "--id-field", "isbn", given=lines(book("é\u20ac")).decode())
    shop.text("compile", "BOOK", "--all")
    done = shop.process("view", "range", VIEW, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(r"\xe9\u20ac  {")
    done = shop.process("view", "range", VIEW, PYTHONIOENCODING="utf-8")
    assert done.stdout.startswith("é€  {")


def test_a_file_with_two_documents_of_one_id_makes_versions_whenever_it_is_run(shop: CommandLine) -> None:
    """As the help says; with --resume it does not."""
    (shop.directory / "books.jsonl").write_bytes(lines(book("1"), book("1", price=2), book("2")))
    run = ["ingest", "BOOK", "books.jsonl", "--id-field", "isbn"]
    assert [shop.answer(*run)["ingested"]["created"] for _ in range(2)] == [3, 2]
    resumed = [*run, "--resume", "cursor.json"]
    assert [shop.answer(*resumed)["ingested"]["created"] for _ in range(3)] == [2, 0, 0]
    assert "becomes a version again" in " ".join(shop.text("ingest", "--help").replace("│", " ").split())


def test_a_document_from_an_input_that_is_closed_is_told(shop: CommandLine) -> None:
    run = ["save", "--owner", "ann", "--workflow", "w", "--file", "-"]
    code, _, errors = process(shop, *run, preexec_fn=close_standard_input)
    assert (code, errors.splitlines()[0]) == (
        CODES["invalid"],
        "error: there is no standard input: it is closed",
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
def test_a_store_that_can_grow_no_more_says_what_was_stored_before(shop: CommandLine) -> None:
    chance = random.Random(1)
    given = [book(f"{number:04}", title=chance.randbytes(300).hex()) for number in range(3000)]
    (shop.directory / "books.jsonl").write_bytes(lines(*given))
    run = ["ingest", "BOOK", "books.jsonl", "--id-field", "isbn", "--batch", "100", "--resume", "cursor.json", "--json"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))

    code, _, errors = process(shop, *run, preexec_fn=limit)
    error = json.loads(errors)["error"]
    assert (code, error["kind"]) == (CODES["unavailable"], "unavailable")
    assert error["created"] > 0 and error["created"] % 100 == 0 and error["line"] == error["created"] + 1
    assert error["message"].startswith(f"books.jsonl, line {error['line']}: ")
    assert error["hint"].startswith("lines before it are stored")
    done = shop.answer(*run[:-1])["ingested"]
    assert (done["skipped_lines"], done["created"]) == (error["created"], 3000 - error["created"])
