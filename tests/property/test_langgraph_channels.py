"""Channels in pieces: whatever a thread held before, what a checkpoint holds comes back as the serializer wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import analemma
from analemma import App
from analemma.langgraph import AnalemmaSaver
from tests import depth
from tests.langgraph.graphs import put

PADDING = "p" * 9000
"""One item that makes every value large enough to be cut."""
THREADS = count(1)

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
SHORT = st.lists(ITEMS, max_size=24)
# Long ones repeat short ones: pieces are stored in groups, and some must have several.
LISTS = st.tuples(SHORT, st.integers(1, 12)).map(lambda made: [*made[0] * made[1], PADDING])
DICTS = st.tuples(
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), ITEMS, max_size=24), st.integers(0, 150)
).map(lambda made: {**made[0], **{f"more {number}": number for number in range(made[1])}, "padding": PADDING})


class Recording(JsonPlusSerializer):
    """Remembers the bytes that it was given to read. Of a class of its own, nothing is known of what it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[bytes] = []

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.given.append(data[1])
        return super().loads_typed(data)


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with analemma.open("sqlite:///:memory:") as app:
        yield app


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


def check(app: App, values: list[Any], *, known: bool) -> None:
    """Checkpoints with these values, one after the other, are read as they were, by who wrote them and by others."""
    name = f"thread {next(THREADS)}"
    serde: JsonPlusSerializer = JsonPlusSerializer() if known else Recording()
    saver = AnalemmaSaver(app, serde=serde)
    configs: list[Any] = []
    for value in values:
        configs.append(put(saver, {"channel": value}, configs[-1] if configs else None, name=name))
    for reader in (saver, AnalemmaSaver(app, serde=serde)):
        for value, config in zip(values, configs, strict=True):
            if isinstance(serde, Recording):
                serde.given.clear()
            found = reader.get_tuple(config)
            assert found is not None
            kind, data = serde.dumps_typed(value)
            if isinstance(serde, Recording):
                assert data in serde.given
            assert repr(found.checkpoint["channel_values"]["channel"]) == repr(serde.loads_typed((kind, data)))


@settings(max_examples=depth.count(30, deep=200), deadline=None)
@given(
    pair=st.one_of(edited(), st.tuples(st.one_of(LISTS, DICTS, ITEMS), st.one_of(LISTS, DICTS, ITEMS))),
    known=st.booleans(),
)
def test_a_value_is_read_as_it_was_written_whatever_came_before(app: App, pair: tuple[Any, Any], known: bool) -> None:
    check(app, [*pair, pair[0]], known=known)


@pytest.mark.parametrize("known", [True, False])
def test_an_item_that_is_now_the_end_of_a_longer_one_is_not_taken_for_itself(app: App, known: bool) -> None:
    """Bytes of the one end with bytes of the other, at no boundary of items."""
    pairs: list[tuple[Any, Any]] = [
        ({"": None}, {"": {"": None}}),
        ({1: None}, {1: {1: None}}),
        ([[], None], [[None]]),
        (["a", 1], [["a", 1]]),
    ]
    for before, after in pairs:
        padded = [
            [*each, PADDING, "end"] if isinstance(each, list) else {**each, "padding": PADDING}
            for each in (before, after)
        ]
        check(app, padded, known=known)


@pytest.mark.parametrize("known", [True, False])
def test_lists_that_grow_and_shrink_across_all_sizes(app: App, known: bool) -> None:
    """Whatever stands at the boundaries of groups, headers and of what is cut at all."""
    counts = [*range(25, 34), 14, 15, 16, 17, 63, 64, 65, 66, 129, 128, 127, 40, 0, 1]
    check(app, [[f"{n:04} {'x' * 300}" for n in range(count)] for count in counts], known=known)


@pytest.mark.parametrize("known", [True, False])
def test_lists_at_the_boundary_of_the_longest_header(app: App, known: bool) -> None:
    check(app, [[f"{n:05}" for n in range(count)] for count in (65_535, 65_536, 65_535)], known=known)
