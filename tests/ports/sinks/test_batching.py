"""What all sinks share: documents that are judged one by one, halves, reasons, names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from analemma import SHIPPED, BatchingSink, Health, Parcel, Shipped, SinkContext, SinkDocument, refused
from analemma.testing.sinks import HOSTILE_IDS, Outcome, gone, make_document
from tests.ports.entry_points.sinks import safe_name


class Shelf(BatchingSink):
    """Takes everything, and remembers what it was sent together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Sequence[Parcel]] = []

    @classmethod
    def open(cls, settings: Any, context: SinkContext) -> Self:
        return cls()

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        self.batches.append(parcels)
        return [SHIPPED] * len(parcels)

    def check_health(self) -> Health:
        return Health(True, "it is there")


WRONG: dict[str, SinkDocument] = {
    "id": make_document("\ud800"),
    "number": make_document(number=2**70),
    "tenant": replace(make_document(), tenant="\udfff"),
    "set": make_document(x={1}),
}


def test_a_document_that_cannot_be_encoded_changes_nothing_for_those_beside_it() -> None:
    fine = [make_document(doc_id) for doc_id in HOSTILE_IDS] + [gone(make_document("x"), 2), make_document(a=[1, None])]
    alone, beside = Shelf(), Shelf()
    assert {each.outcome for each in alone.ship_batch(fine)} == {Outcome.SHIPPED}
    for wrong in WRONG.values():
        beside.batches.clear()
        *answers, last = beside.ship_batch([*fine, wrong])
        assert {each.outcome for each in answers} == {Outcome.SHIPPED}
        assert last.outcome is Outcome.REFUSED and last.reason
        assert [list(batch) for batch in beside.batches] == [list(batch) for batch in alone.batches]


def test_a_mapping_that_is_no_dict_is_a_body_too() -> None:
    shelf = Shelf()
    document = replace(make_document(), body=MappingProxyType({"a": 1}))
    assert shelf.ship(document).outcome is Outcome.SHIPPED
    assert shelf.batches == [[Parcel(document, b'{"a":1}')]]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80), unique=True, max_size=20))
def test_names_are_safe_and_different(ids: list[str]) -> None:
    everything = sorted({*ids, *HOSTILE_IDS})
    names = [safe_name(doc_id) for doc_id in everything]
    assert len(set(names)) == len(everything)
    for doc_id, name in zip(everything, names, strict=True):
        assert name.isascii() and not set(name) & set(" .*>/\\\n\r\t") and 0 < len(name) <= 200
        assert name.startswith("~") or unquote(name) == doc_id


def test_a_reason_is_one_line_without_control_characters() -> None:
    answer = refused("first\nsecond\x1b[31m\x00 " + "x" * 1000)
    assert answer.reason is not None and answer.reason.isprintable() and len(answer.reason) == 300
