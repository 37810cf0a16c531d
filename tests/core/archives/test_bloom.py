"""The counting Bloom filter: what it may be wrong about, and that nothing is lost by that."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analemma import App
from analemma.archives import collecting_survey
from analemma.archives.bloom import MOST, CountingBloomFilter
from analemma.archives.collecting_survey import FilteredProtection
from tests.api.archives.collections import cold, put_unit, superseded, units
from tests.stores import Store, local

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
    for _ in range(MOST + 5):
        filter.add("a/1/")
    for _ in range(MOST + 5):
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


class Poisoned(FilteredProtection):
    """A filter to which everything happened that must not: every removal came twice, and for what was not there."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.filter._halves[:] = bytes(len(self.filter._halves))

    def heard(self, changed: object) -> None:
        pass


@pytest.mark.parametrize("passes", [2, 5])
def test_a_filter_that_has_forgotten_everything_loses_nothing(
    passes: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analemma.archives import collecting

    with store.open(archive_gc_filter="bloom") as app:
        kept = {f"{name}/{cold(app, tmp_path, name)}" for name in ("a", "b", "c")}
        _, new = superseded(app, tmp_path, "d")
        monkeypatch.setattr(collecting, "FilteredProtection", Poisoned)
        deleted = refused = 0
        for _ in range(passes):
            report = app.archives.gc_run(0)
            assert report.counts.needed == 0
            deleted += report.deleted
            refused += report.refused
        assert (deleted, refused) == (1, 4 * (passes - 1))
        assert units(app) == kept | {f"d/{new}"}
        for name in "abcd":
            app.archives.restore(name)


def test_what_is_taken_for_needed_is_found_out_in_a_later_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that is full of others takes many for its own; the next salt takes others."""

    class Small(CountingBloomFilter):
        def __init__(self, capacity: int, *, salt: bytes) -> None:
            super().__init__(capacity, salt=salt)
            self._counters = 60
            self._hashes = 2

    monkeypatch.setattr(collecting_survey, "CountingBloomFilter", Small)
    with local(tmp_path).open(archive_gc_filter="bloom") as app:
        kept = {f"{name}/{cold(app, tmp_path, name)}" for name in ("a", "b", "c", "d", "e", "f")}
        for number in range(15):
            put_unit(app, "orphan", f"op{number}")
        assert wrong_in_one_cycle(app) > 0
        for _ in range(30):
            app.archives.gc_run(0)
        assert units(app) == kept


def wrong_in_one_cycle(app: App) -> int:
    return max(app.archives.gc_plan(0).counts.needed - 6 for _ in range(10))


def test_workspaces_that_changed_since_the_snapshot_are_heard_of(store: Store, tmp_path: Path) -> None:
    with store.open(archive_gc_filter="bloom") as app:
        cold(app, tmp_path, "keep")
        op = cold(app, tmp_path, "ws1")
        app.archives.delete("ws1")
        app.archives.gc_run(0)
        left = ["ws1"]

        def undelete_after_the_snapshot(stage: str, count: int) -> None:
            if stage == "looking" and left:
                app.archives.undelete(left.pop())

        before = app.catalog.engine.statements["hold_workspace"]
        report = app.archives.gc_run(0, progress=undelete_after_the_snapshot)
        assert (report.refused, report.deleted) == (1, 0)
        # One for undelete, none for a claim.
        assert app.catalog.engine.statements["hold_workspace"] == before + 1
        assert f"ws1/{op}" in units(app)
