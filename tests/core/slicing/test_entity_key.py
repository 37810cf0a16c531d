"""Keys of entities are read strictly, and keep their case."""

from __future__ import annotations

import pytest

from analemma import EntityKey
from analemma.errors import Invalid
from tests.core.entry_points.slicing import parse_entity_key


def test_a_key_leads_back_to_its_text() -> None:
    for text in ["BOOK#shop#978", "Book_2#a.b-c#Le Guin/Ü", "B#t#" + "x" * 512]:
        assert str(parse_entity_key(text)) == text


def test_ids_keep_their_case() -> None:
    assert parse_entity_key("BOOK#shop#Ab") != parse_entity_key("BOOK#shop#ab")
    assert parse_entity_key("BOOK#shop#Ab") == EntityKey("BOOK", "shop", "Ab")


NO_KEYS = [
        "", "BOOK", "BOOK#shop", "BOOK#shop#", "#shop#1", "BOOK##1", "BOOK#shop#1#2", "BO OK#shop#1", "1BOOK#shop#1",
        "BOOK#sh op#1", "BOOK#-shop#1", "BOOK#shop# 1", "BOOK#shop#1\n", "BOOK#shop#a\x00b", "BOOK#shop#\ud800",
        "BOOK#shop#" + "x" * 513, "BOOK#shop#" + "é" * 257, "BOOK\n#shop#1",
]  # fmt: skip


def test_what_is_no_key_is_refused() -> None:
    for text in NO_KEYS:
        with pytest.raises(Invalid):
            pytest.fail(f"{text!r} is {parse_entity_key(text)!r}")


def test_keys_are_ordered_for_locking() -> None:
    texts = ["AUTHOR#a#1", "AUTHOR#b#0", "BOOK#a#1", "BOOK#a#10", "BOOK#a#2"]
    assert list(map(str, sorted(map(parse_entity_key, reversed(texts))))) == texts
