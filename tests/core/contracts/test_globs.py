"""Names with wildcards: what they stand for, and that asking takes no time."""

from __future__ import annotations

import fnmatch
import itertools
import time

import pytest

from analemma.contracts.globs import is_glob, matches, why_no_glob


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
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
    ],
)
def test_what_a_pattern_stands_for(pattern: str, name: str, expected: bool) -> None:
    assert matches([pattern], name) is expected


def test_within_a_segment_it_is_what_shells_do() -> None:
    names = ["".join(each) for size in range(5) for each in itertools.product("ab", repeat=size)]
    for pattern in {"".join(each) for size in range(5) for each in itertools.product("ab*", repeat=size)}:
        if why_no_glob(pattern) is None and "**" not in pattern:
            assert [name for name in names if matches([pattern], name)] == fnmatch.filter(names, pattern), pattern


def test_a_pattern_of_many_wildcards_takes_no_time() -> None:
    started = time.perf_counter()
    assert not matches(["**a" * 100 + "b"], "a" * 512)
    assert time.perf_counter() - started < 5


def test_three_in_a_row_are_a_mistake() -> None:
    assert why_no_glob("a***") is not None and why_no_glob("a**/*") is None
    assert is_glob("a*") and not is_glob("a")
