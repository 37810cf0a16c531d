"""Channels in pieces: joined, they are byte for byte what the serializer wrote, whatever came before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from analemma.langgraph import channels
from analemma.langgraph.channels import SMALLEST_CUT_BYTES, Channel, _head, cut, join

SERDE = JsonPlusSerializer()
PADDING = "p" * (SMALLEST_CUT_BYTES + 1)
"""One item that makes every value large enough to be cut."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sets(st.integers(0, 9), max_size=3),
    st.datetimes(),
    st.uuids(),
)
ITEMS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
LISTS = st.lists(ITEMS, max_size=24).map(lambda items: [*items, PADDING])
DICTS = st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), ITEMS, max_size=24).map(
    lambda fields: {**fields, "padding": PADDING}
)


@pytest.fixture(scope="module", autouse=True)
def small_groups() -> Iterator[None]:
    """So that short values have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "GROUP", 4)
        yield


@st.composite
def edited(draw: st.DrawFn) -> tuple[Any, Any]:
    """A value, and what some edits make of it."""
    before = draw(LISTS)
    after = list(before)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(after)))
        stop = draw(st.integers(start, min(len(after), start + 3)))
        after[start:stop] = draw(st.lists(ITEMS, max_size=3))
    if draw(st.booleans()):
        return before, after
    return dict(enumerate(before)), dict(enumerate(after))


@given(st.one_of(LISTS, DICTS, ITEMS))
def test_pieces_joined_are_the_serialized_value(value: Any) -> None:
    channel = cut(value, SERDE.dumps_typed).channel
    assert (channel.kind, channel.data) == SERDE.dumps_typed(value)
    if channel.shape != "whole":
        assert join(channel.kind, channel.shape, channel.pieces()) == channel


@given(st.one_of(LISTS, DICTS))
def test_large_lists_and_dicts_are_cut(value: Any) -> None:
    channel = cut(value, SERDE.dumps_typed).channel
    assert channel.shape == ("array" if isinstance(value, list) else "map")
    assert len(channel.ends) == len(value)


@given(st.one_of(edited(), st.tuples(st.one_of(LISTS, DICTS, ITEMS), st.one_of(LISTS, DICTS, ITEMS))), st.booleans())
def test_the_version_before_makes_no_difference(pair: tuple[Any, Any], by_items: bool) -> None:
    before = cut(pair[0], SERDE.dumps_typed).channel
    made = cut(pair[1], SERDE.dumps_typed, before, by_items=by_items)
    alone = cut(pair[1], SERDE.dumps_typed).channel
    assert (alone.kind, alone.data) == SERDE.dumps_typed(pair[1])
    assert made.channel == alone or (made.channel is before and alone.data == before.data)
    splice = made.splice(before)
    if splice is not None:
        pieces = before.pieces()
        pieces[splice.start : splice.stop] = splice.pieces
        assert pieces == made.channel.pieces()


@pytest.mark.parametrize("by_items", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [({"": None}, {"": {"": None}}), ({1: None}, {1: {1: None}}), ([[], None], [[None]]), (["a", 1], [["a", 1]])],
    ids=["text keys", "integer keys", "a list closed later", "an item swallowed"],
)
def test_an_item_that_is_now_the_end_of_a_longer_one_is_not_taken_for_itself(
    before: Any, after: Any, by_items: bool
) -> None:
    """Bytes of the one end with bytes of the other, at no boundary of items."""
    padded = [
        [*each, PADDING, "end"] if isinstance(each, list) else {**each, "padding": PADDING} for each in (before, after)
    ]
    old = cut(padded[0], SERDE.dumps_typed).channel
    assert (
        cut(padded[1], SERDE.dumps_typed, old, by_items=by_items).channel == cut(padded[1], SERDE.dumps_typed).channel
    )


@given(LISTS, st.data(), st.booleans())
def test_only_what_changed_is_serialized_alone(value: list[Any], data: st.DataObject, by_items: bool) -> None:
    before = cut(value, SERDE.dumps_typed).channel
    calls: list[Any] = []

    def counting(obj: Any) -> tuple[str, bytes]:
        calls.append(obj)
        return SERDE.dumps_typed(obj)

    fresh = data.draw(st.lists(ITEMS, min_size=1, max_size=3))
    cut([*value, *fresh], counting, before, by_items=by_items)
    groups = len(value) // 4 if by_items else 0
    assert len(calls) <= 1 + groups + len(fresh)


@pytest.mark.parametrize("by_items", [True, False])
def test_lists_that_grow_and_shrink_across_all_sizes(by_items: bool) -> None:
    """Whatever stands at the boundaries of groups, headers and of what is cut at all."""
    before = None
    for count in [*range(40), *range(40, 0, -3), 70_000, 65_536, 65_535, 20]:
        value = [f"{n:04} {'x' * 300}"[: 300 if count < 100 else 4] for n in range(count)]
        made = cut(value, SERDE.dumps_typed, before, by_items=by_items)
        assert made.channel == cut(value, SERDE.dumps_typed).channel
        assert (made.channel.kind, made.channel.data) == SERDE.dumps_typed(value)
        before = made.channel


def test_headers_are_those_of_msgpack() -> None:
    for count in (0, 15, 16, 65_535, 65_536):
        data = SERDE.dumps_typed([None] * count)[1]
        assert _head("array", count) + b"\xc0" * count == data
        fields = SERDE.dumps_typed(dict.fromkeys(range(count)))[1]
        assert fields.startswith(_head("map", count))


def _lying(change: Callable[[bytes], bytes]) -> Callable[[Any], tuple[str, bytes]]:
    def dumps(obj: Any) -> tuple[str, bytes]:
        kind, data = SERDE.dumps_typed(obj)
        return kind, change(data)

    return dumps


def test_a_serializer_whose_values_are_not_made_of_items_is_left_alone() -> None:
    value = ["a", PADDING]
    changes: list[Callable[[bytes], bytes]] = [
        lambda data: data + b"\0",
        lambda data: b"\xdc\x00\x02" + data[1:],
        lambda data: b"\xc1" + data,
    ]
    for change in changes:
        channel = cut(value, _lying(change)).channel
        assert channel == Channel("msgpack", "whole", (change(SERDE.dumps_typed(value)[1]),))
