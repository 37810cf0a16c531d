"""Listings come out sorted by whole keys, whichever of the two orders a store uses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analemma.errors import Unavailable
from tests.core.entry_points.blocks import ObjectInfo, in_key_order

names = st.text(alphabet="ab-.0!", min_size=1, max_size=3)
trees = st.sets(st.lists(names, min_size=1, max_size=3).map(tuple), max_size=30)


def listed(keys: list[str]) -> list[str]:
    return [info.key for info in in_key_order((ObjectInfo(key, 0, 0) for key in keys), "")]


@settings(deadline=None)
@given(trees)
def test_tree_order_and_byte_order_both_come_out_in_key_order(paths: set[tuple[str, ...]]) -> None:
    expected = sorted("/".join(path) for path in paths)
    assert listed(expected) == expected
    assert listed(["/".join(path) for path in sorted(paths)]) == expected


def test_memory_is_bounded_by_one_group_of_similar_names() -> None:
    taken = 0

    def found() -> object:
        nonlocal taken
        for folder in range(1000):
            for item in range(10):
                taken += 1
                yield ObjectInfo(f"f{folder:04}/{item}", 0, 0)

    ordered = in_key_order(found(), "")  # type: ignore[arg-type]
    for count, _ in enumerate(ordered, 1):
        assert taken - count <= 11


def test_a_store_without_any_order_is_refused_rather_than_misread() -> None:
    with pytest.raises(Unavailable):
        listed(["b/x", "c/x", "a/x"])
