"""JSON lines: whatever stands in them, every line is counted, and reading goes on after each."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analemma.cli.line_input import CursorFile, Line, LineReader, Position
from analemma.errors import Invalid


def read(data: bytes, *, longest_bytes: int = 1000) -> list[Line]:
    return list(LineReader(io.BytesIO(data), longest_bytes=longest_bytes))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"a": NaN}', "JSON"),
        (b'{"a": 1, "a": 2}', "twice|duplicate"),
        (b'{"a": "\xff"}', "UTF-8|utf-8|JSON"),
        (b'{"a": "\\ud800"}', "surrogate|JSON"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "deep|nest"),
        (b'{"a": 1e999}', "range|JSON|large"),
        (b"[1, 2]", "not a JSON object"),
        (b"7", "not a JSON object"),
        (b'{"a": 1', "JSON"),
        (b'{"a": "' + b"x" * 2000 + b'"}', "longer than 1000 bytes"),
        (b"\x00", "JSON"),
    ],
)
def test_a_line_that_is_no_object_is_told_and_the_next_one_is_read(line: bytes, problem: str) -> None:
    first, bad, last = read(b'{"n": 1}\n' + line + b'\n{"n": 3}\n')
    assert (first.number, first.value) == (1, {"n": 1})
    assert (bad.number, bad.value) == (2, None)
    assert bad.problem is not None and any(part in bad.problem for part in problem.split("|")), bad.problem
    assert (last.number, last.value) == (3, {"n": 3})


def test_blank_lines_count_and_are_no_lines() -> None:
    assert [line.number for line in read(b'\n{"n": 1}\r\n  \n{"n": 2}')] == [2, 4]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert read(b'\xef\xbb\xbf{"n": 1}\n')[0].value == {"n": 1}


def test_only_newlines_end_a_line() -> None:
    (line,) = read('{"a": "x\u2028y\u0085z"}\n'.encode())
    assert line.value == {"a": "x\u2028y\u0085z"}


@pytest.mark.parametrize("length", [999, 1000, 1001, 1002, 5000])
def test_the_longest_line_is_read_and_a_longer_one_is_not(length: int) -> None:
    text = b'{"a": "' + b"x" * (length - 9) + b'"}'
    assert len(text) == length
    found = read(text + b'\n{"n": 2}\n')
    assert (found[0].problem is None) == (length <= 1000)
    assert found[1].value == {"n": 2}


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(0, 8))
def test_reading_goes_on_where_it_stopped(parts: list[bytes], stop: int) -> None:
    data = b"\n".join(parts)
    reader = LineReader(io.BytesIO(data), longest_bytes=10)
    lines = iter(reader)
    before = [line for _, line in zip(range(stop), lines, strict=False)]
    position = reader.position
    rest = list(lines)
    again = LineReader(io.BytesIO(data), longest_bytes=10)
    again.skip(position, "it")
    assert [*before, *again] == [*before, *rest] == list(LineReader(io.BytesIO(data), longest_bytes=10))
    assert again.position == reader.position


def test_another_input_is_not_gone_on_with() -> None:
    reader = LineReader(io.BytesIO(b'{"n": 1}\n{"n": 2}\n'))
    next(iter(reader))
    for other in (b'{"n": 9}\n{"n": 2}\n', b'{"n"', b""):
        with pytest.raises(Invalid, match="its first 1 lines changed"):
            LineReader(io.BytesIO(other)).skip(reader.position, "it")


@pytest.mark.parametrize("appended", [b'\n{"n": 3}\n', b'\r\n{"n": 3}', b'  \n{"n": 3}'], ids=range(3))
def test_a_last_line_without_an_end_is_counted_once(appended: bytes) -> None:
    data = b'{"n": 1}\n{"n": 2}'
    reader = LineReader(io.BytesIO(data))
    assert [line.number for line in reader] == [1, 2]
    again = LineReader(io.BytesIO(data + appended))
    again.skip(reader.position, "it")
    (line,) = again
    assert (line.number, line.value) == (3, {"n": 3})
    whole = LineReader(io.BytesIO(data + appended))
    assert len(list(whole)) == 3 and whole.position == again.position


def test_a_last_line_that_grew_is_told() -> None:
    reader = LineReader(io.BytesIO(b'{"n": 1}\n{"n": 2}'))
    list(reader)
    again = LineReader(io.BytesIO(b'{"n": 1}\n{"n": 2}{"n": 3}\n{"n": 4}'))
    again.skip(reader.position, "it")
    grown, last = again
    assert (grown.number, grown.value, grown.problem) == (2, None, "it was shorter when it was read before")
    assert (last.number, last.value) == (3, {"n": 4})


def test_a_cursor_file_keeps_the_position(tmp_path: Path) -> None:
    cursor = CursorFile(str(tmp_path / "cursor"), about={"store": "one", "entity_type": "BOOK"})
    assert cursor.read() is None
    cursor.write(Position(2, 20, "ab" * 32))
    cursor.write(Position(3, 30, "cd" * 32))
    assert cursor.read() == Position(3, 30, "cd" * 32)
    assert [each.name for each in tmp_path.iterdir()] == ["cursor"]
    with pytest.raises(Invalid, match="another run: entity_type differs"):
        CursorFile(str(tmp_path / "cursor"), about={"store": "one", "entity_type": "AUTHOR"}).read()


def cursor_text(**other: Any) -> str:
    return json.dumps({"format": 1, "lines": 2, "bytes": 20, "sha256": "ab" * 32, **other})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"format": 2}',
        "\x00",
        cursor_text(lines="2"),
        cursor_text(lines=-1),
        cursor_text(lines=None),
        cursor_text(lines=True),
        cursor_text(lines=21),
        cursor_text(bytes=2.5),
        cursor_text(bytes=-20),
        cursor_text(bytes="20"),
        cursor_text(bytes=[]),
        cursor_text(sha256=7),
        cursor_text(sha256="ab"),
        cursor_text(sha256="AB" * 32),
        cursor_text(sha256="ab" * 32 + "\n"),
    ],
    ids=range(18),
)
def test_what_is_no_cursor_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "cursor").write_text(text)
    with pytest.raises(Invalid, match="is no cursor file"):
        CursorFile(str(tmp_path / "cursor"), about={}).read()
