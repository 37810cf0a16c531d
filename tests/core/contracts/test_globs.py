"""Names with wildcards: what they stand for, and that asking takes no time."""

from __future__ import annotations

import fnmatch
import itertools
import time

from tests.core.entry_points.contracts import matches, why_no_glob

CASES = [
    ("runs", "runs", True),
    ("runs", "runs/1", False),
    ("runs/*", "runs/1", True),
    ("runs/*", "runs/", True),
    ("runs/*", "runs/1/scratch", False),
    ("runs/**", "runs/1/scratch", True),
    ("runs/*/scratch", "runs/1/scratch", True),
    ("**/scratch", "runs/1/scratch", True),
    ("**a*b", "a/ab", True),
    ("**a*b", "a/a/b", False),
    ("*", "", True),
    ("*", "a/b", False),
    ("**", "a/b", True),
    ("a?[b]", "a?[b]", True),
    ("a?", "ab", False),
    ("a.c", "abc", False),
    ("ann*", "ann\nb", True),
    ("über-*", "über-1", True),
    ("A*", "abc", False),
]


def test_what_a_pattern_stands_for() -> None:
    assert [(pattern, name) for pattern, name, expected in CASES if matches([pattern], name) is not expected] == []


def test_within_a_segment_it_is_what_shells_do() -> None:
    names = ["".join(each) for size in range(5) for each in itertools.product("ab", repeat=size)]
    for pattern in {"".join(each) for size in range(5) for each in itertools.product("ab*", repeat=size)}:
        if why_no_glob(pattern) is None and "**" not in pattern:
            assert [name for name in names if matches([pattern], name)] == fnmatch.filter(names, pattern), pattern


def test_a_pattern_of_many_wildcards_takes_no_time() -> None:
    started = time.process_time()
    assert not matches(["**a" * 100 + "b"], "a" * 512)
    # Tried in every way, it would take longer than the universe has.
    assert time.process_time() - started < 60


def test_three_in_a_row_are_a_mistake() -> None:
    assert why_no_glob("a***") is not None and why_no_glob("a**/*") is None
