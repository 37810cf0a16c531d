"""The counting Bloom filter: what it may be wrong about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.core.entry_points.archives import CountingBloomFilter

SALT = b"0123456789abcdef"
NAMES = st.sampled_from([f"ws{number}/op/" for number in range(8)])


def test_a_hundred_thousand_take_about_480_kb_and_one_in_a_hundred_is_a_false_positive() -> None:
    filter = CountingBloomFilter(100_000, salt=SALT)
    assert 475_000 < filter.size_bytes < 485_000
    small = CountingBloomFilter(5000, salt=SALT)
    for number in range(5000):
        small.add(f"ws{number}/op/")
    assert all(f"ws{number}/op/" in small for number in range(5000))
    false = sum(f"other{number}/op/" in small for number in range(20_000))
    assert 100 < false < 300


def test_another_salt_has_other_false_positives() -> None:
    filters = [CountingBloomFilter(1000, salt=bytes([number]) * 16) for number in range(2)]
    for filter in filters:
        for number in range(1000):
            filter.add(f"ws{number}/op/")
    wrong = [{number for number in range(20_000) if f"other{number}/op/" in filter} for filter in filters]
    assert wrong[0] and wrong[1]
    assert len(wrong[0] & wrong[1]) < min(len(wrong[0]), len(wrong[1])) / 4


def test_a_full_counter_stays_full() -> None:
    filter = CountingBloomFilter(1000, salt=SALT)
    for _ in range(20):
        filter.add("a/1/")
    for _ in range(20):
        filter.remove("a/1/")
    assert "a/1/" in filter


@given(st.lists(st.tuples(st.booleans(), NAMES), max_size=60))
def test_matched_events_never_make_it_forget(events: list[tuple[bool, str]]) -> None:
    filter = CountingBloomFilter(100, salt=SALT)
    counts: dict[str, int] = {}
    for added, name in events:
        if added:
            filter.add(name)
            counts[name] = counts.get(name, 0) + 1
        elif counts.get(name):
            filter.remove(name)
            counts[name] -= 1
        assert all(name in filter for name, count in counts.items() if count)


@given(st.lists(st.tuples(st.booleans(), NAMES), max_size=60))
def test_what_was_never_added_is_not_removed_from_others_unless_it_is_taken_for_there(
    events: list[tuple[bool, str]],
) -> None:
    filter = CountingBloomFilter(1000, salt=SALT)
    for name in ("kept/1/", "kept/2/"):
        filter.add(name)
    for added, name in events:
        (filter.add if added else filter.remove)(name)
    # Any events: duplicates, unmatched removals. With so few entries none is taken for another.
    assert "kept/1/" in filter and "kept/2/" in filter
