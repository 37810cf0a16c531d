"""Which text may become a key or a column."""

from __future__ import annotations

from typing import Any

import pytest

from analemma.catalog.names import KEY_BYTES, check_part, check_texts
from analemma.errors import Invalid


@pytest.mark.parametrize("text", ["a", "é", "字" * 170, "a" * KEY_BYTES, "tab\tand\nline"])
def test_short_text_is_taken(text: str) -> None:
    check_part(text, "execution id")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("\ud800", "not valid Unicode"),
        ("a\udfffb", "not valid Unicode"),
        ("a\0b", "NUL"),
        ("a" * (KEY_BYTES + 1), "513 bytes"),
        ("字" * 171, "513 bytes"),
        (7, "of type int"),
        (b"abc", "of type bytes"),
        (None, "of type NoneType"),
    ],
)
def test_other_text_is_invalid(text: Any, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint) as caught:
        check_part(text, "execution id")
    assert "the execution id" in str(caught.value) and "\n" not in str(caught.value)


def test_the_limit_is_the_caller_s() -> None:
    check_part("m" * 10_000, "message", 10_000)
    with pytest.raises(Invalid, match="10001 bytes"):
        check_part("m" * 10_001, "message", 10_000)


@pytest.mark.parametrize("text", ["a\0", "\ud800", 5])
def test_long_text_is_checked_too(text: Any) -> None:
    check_texts(("fine", None, "", "字" * 10_000))
    with pytest.raises(Invalid):
        check_texts(("fine", text))
