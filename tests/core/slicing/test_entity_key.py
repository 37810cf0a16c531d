"""Keys of entities are read strictly, and keep their case."""

from __future__ import annotations

import pytest

from analemma import EntityKey
from analemma.errors import Invalid
from analemma.slicing.entity_key import parse_entity_key


@pytest.mark.parametrize("text", ["BOOK#shop#978", "Book_2#a.b-c#Le Guin/Ü", "B#t#" + "x" * 512])
def test_a_key_leads_back_to_its_text(text: str) -> None:
    assert str(parse_entity_key(text)) == text


def test_ids_keep_their_case() -> None:
    assert parse_entity_key("BOOK#shop#Ab") != parse_entity_key("BOOK#shop#ab")
    assert parse_entity_key("BOOK#shop#Ab") == EntityKey("BOOK", "shop", "Ab")


@pytest.mark.parametrize(
    "text",
    [
        "", "BOOK", "BOOK#shop", "BOOK#shop#", "#shop#1", "BOOK##1", "BOOK#shop#1#2", "BO OK#shop#1", "1BOOK#shop#1",
        "BOOK#sh op#1", "BOOK#-shop#1", "BOOK#shop# 1", "BOOK#shop#1\n", "BOOK#shop#a\x00b", "BOOK#shop#\ud800",
        "BOOK#shop#" + "x" * 513, "BOOK#shop#" + "é" * 257, "BOOK\n#shop#1",
    ],
    ids=range(18),
)  # fmt: skip
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_entity_key(text)


def test_keys_are_ordered_for_locking() -> None:
    texts = ["AUTHOR#a#1", "AUTHOR#b#0", "BOOK#a#1", "BOOK#a#10", "BOOK#a#2"]
    assert list(map(str, sorted(map(parse_entity_key, reversed(texts))))) == texts
