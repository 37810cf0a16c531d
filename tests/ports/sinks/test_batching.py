"""What all sinks share: batches cut to size, halves, names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analemma import Shipped, SinkDocument
from analemma.blocks.port import check_key
from analemma.sinks.batching import Parcel, PlaceIsDown, in_chunks, pack, pack_all, send_by_halves, send_chunks
from analemma.sinks.naming import HASHED, safe_name
from analemma.sinks.port import SHIPPED, Outcome, refused, retry
from analemma.testing.sinks import HOSTILE_IDS, gone, make_document


def _parcels(*sizes: int) -> list[Parcel]:
    found = [pack(make_document(f"{number}", text="x" * size)) for number, size in enumerate(sizes)]
    return [each for each in found if isinstance(each, Parcel)]


@given(st.lists(st.integers(0, 3000), max_size=30), st.integers(1, 8), st.integers(1, 5000))
def test_chunks_have_everything_in_order_and_only_single_ones_are_too_large(
    sizes: list[int], most: int, most_bytes: int
) -> None:
    parcels = _parcels(*sizes)
    chunks = list(in_chunks(parcels, most=most, most_bytes=most_bytes))
    assert [parcel for chunk in chunks for parcel in chunk] == parcels
    for chunk in chunks:
        assert 1 <= len(chunk) <= most
        assert len(chunk) == 1 or sum(parcel.size for parcel in chunk) <= most_bytes


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_halves_find_exactly_the_guilty(count: int, guilty: set[int]) -> None:
    parcels = _parcels(*[1] * count)
    requests = 0

    def send(sent: Sequence[Parcel]) -> list[Shipped] | Shipped:
        nonlocal requests
        requests += 1
        if any(int(parcel.document.doc_id) in guilty for parcel in sent):
            return refused("one of them")
        return [SHIPPED] * len(sent)

    answers = send_by_halves(parcels, send)
    found = {number for number, answer in enumerate(answers) if answer.outcome is Outcome.REFUSED}
    assert found == {number for number in guilty if number < count} and len(answers) == count
    assert requests <= max(1, 2 * len(found) * (count.bit_length() + 1))


def test_a_failure_of_all_is_not_sent_again_in_halves() -> None:
    calls: list[int] = []

    def send(sent: Sequence[Parcel]) -> Shipped:
        calls.append(len(sent))
        return retry("down")

    assert {each.outcome for each in send_by_halves(_parcels(1, 1, 1), send)} == {Outcome.RETRY}
    assert calls == [3]


@pytest.mark.parametrize(
    "wrong",
    [
        make_document("\ud800"),
        make_document(number=2**70),
        replace(make_document(), tenant="\udfff"),
        make_document(x={1}),
    ],
    ids=["id", "number", "tenant", "set"],
)
def test_packing_together_is_packing_one_by_one(wrong: SinkDocument) -> None:
    fine = [make_document(doc_id) for doc_id in HOSTILE_IDS] + [gone(make_document("x"), 2), make_document(a=[1, None])]
    assert pack_all(fine) == [pack(document) for document in fine]
    assert pack_all([]) == []
    assert pack_all([*fine, wrong]) is None and isinstance(pack(wrong), str)


def test_a_mapping_that_is_no_dict_is_a_body_too() -> None:
    document = replace(make_document(), body=MappingProxyType({"a": 1}))
    assert pack_all([document]) is None and pack(document) == Parcel(document, b'{"a":1}')


def test_a_place_that_is_down_is_asked_once() -> None:
    calls: list[int] = []

    def send(sent: Sequence[Parcel]) -> list[Shipped]:
        calls.append(len(sent))
        if len(calls) == 2:
            raise PlaceIsDown(retry("down", 7))
        return [SHIPPED] * len(sent)

    answers = send_chunks(in_chunks(_parcels(*[1] * 9), most=2, most_bytes=10_000), send)
    assert [each.outcome for each in answers] == [Outcome.SHIPPED] * 2 + [Outcome.RETRY] * 7
    assert calls == [2, 2] and {each.after_s for each in answers[2:]} == {7}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80), unique=True, max_size=20))
def test_names_are_safe_and_different(ids: list[str]) -> None:
    everything = sorted({*ids, *HOSTILE_IDS})
    names = [safe_name(doc_id) for doc_id in everything]
    assert len(set(names)) == len(everything)
    for doc_id, name in zip(everything, names, strict=True):
        check_key(f"{name}.json")
        assert name.isascii() and not set(name) & set(" .*>/\\\n\r\t")
        assert name.startswith(HASHED) or unquote(name) == doc_id


def test_a_reason_is_one_line_without_control_characters() -> None:
    answer = refused("first\nsecond\x1b[31m\x00 " + "x" * 1000)
    assert answer.reason is not None and answer.reason.isprintable() and len(answer.reason) == 300
