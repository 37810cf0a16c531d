"""Cursors: they find their place again, and nothing else passes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analemma.errors import Invalid
from analemma.pipeline.cursors import decode_cursor, encode_cursor

QUESTION = ("range", "shop", "BOOK", "97")
PLACES = st.one_of(st.text(max_size=60).filter(lambda text: text.isprintable()), st.integers(0, 2**63 - 1))


@given(PLACES)
def test_a_cursor_finds_its_place(place: str | int) -> None:
    assert decode_cursor(QUESTION, encode_cursor(QUESTION, place)) == place


@given(PLACES, st.data())
def test_a_cursor_with_one_other_character_is_refused(place: str | int, data: st.DataObject) -> None:
    cursor = encode_cursor(QUESTION, place)
    at = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.sampled_from("ABCabc019-_=+/ é\0").filter(lambda each: each != cursor[at]))
    with pytest.raises(Invalid, match="not a cursor of this query"):
        decode_cursor(QUESTION, cursor[:at] + other + cursor[at + 1 :])


@pytest.mark.parametrize("question", [("range", "shop", "BOOK", ""), ("range", "other", "BOOK", "97"), ("search",)])
def test_a_cursor_of_another_question_is_refused(question: tuple[str, ...]) -> None:
    with pytest.raises(Invalid):
        decode_cursor(question, encode_cursor(QUESTION, "978"))


@pytest.mark.parametrize("text", ["", "x", "AAAA", "=" * 8, "A" * 5000, "\ud800", None, 7, b"AAAA"])
def test_what_is_no_cursor_is_refused(text: object) -> None:
    with pytest.raises(Invalid):
        decode_cursor(QUESTION, text)  # type: ignore[arg-type]


def test_a_cursor_that_was_cut_off_is_refused() -> None:
    cursor = encode_cursor(QUESTION, "9780000000000")
    for length in range(len(cursor)):
        with pytest.raises(Invalid):
            decode_cursor(QUESTION, cursor[:length])
