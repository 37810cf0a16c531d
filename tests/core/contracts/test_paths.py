"""One parser for paths, and what paths match, cover and touch."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from analemma.errors import Invalid
from tests.core.entry_points.contracts import parse_path

(ONE,), (ANY,) = parse_path("*").segments, parse_path("**").segments


SPELLINGS: list[tuple[list[str], Any]] = [
    (["/a/b", "a.b", "$.a.b", "$['a']['b']", 'a["b"]'], ("a", "b")),
    (["/a/*/c", "a[*].c", "a.*.c", "$.a[*].c"], ("a", ONE, "c")),
    (["/a/**", "a.**", "$.a.**", "/a/**/**"], ("a", ANY)),
    (["$"], ()),
    (["*", "/*", "$.*", "$[*]", "[*]"], (ONE,)),
    (["/a~1b/~0c", "$['a/b']['~c']", "a/b.~c"], ("a/b", "~c")),
    (["a[0].b", "/a/0/b", "a.0.b"], ("a", "0", "b")),
    (["$['a.b'][\"it's\"]", "['a.b']['it\\'s']"], ("a.b", "it's")),
    (["$['*']['**']['']"], ("*", "**", "")),
]


def test_every_spelling_is_the_same_path() -> None:
    for texts, segments in SPELLINGS:
        for text in texts:
            assert parse_path(text).segments == segments, text
            assert parse_path(str(parse_path(text))) == parse_path(text)
    assert ONE != ANY


def test_what_is_no_path_is_refused() -> None:
    wrong = ["", " a", "a ", "a..b", ".a", "a.", "a[", "a[]", "a[-1]", "a[x]", "a]b", "//a", "/a/", "/", "$a", "$..a"]
    for text in [*wrong, "/~2"]:
        with pytest.raises(Invalid):
            pytest.fail(f"{text!r} is {parse_path(text)}")


def test_paths_have_limits() -> None:
    with pytest.raises(Invalid, match="1001 characters"):
        parse_path("a" * 1001)
    with pytest.raises(Invalid, match="65 segments"):
        parse_path("/a" * 65)


def found(text: str, document: Any) -> dict[str, Any]:
    return {"/".join(map(str, each.path)): each.value for each in parse_path(text).select(document)}


def test_select_finds_the_highest_places_in_order() -> None:
    document = {"b": {"y": 1, "x": 2}, "a": [{"n": 1}, {}, {"n": 3}], "0": "zero"}
    assert found("b.*", document) == {"b/x": 2, "b/y": 1}
    assert list(found("b.*", document)) == ["b/x", "b/y"]
    assert found("a[*].n", document) == {"a/0/n": 1, "a/2/n": 3}
    assert found("a[2].n", document) == {"a/2/n": 3}
    assert found("a.02.n", document) == found("a[3]", document) == found("b.x.y", document) == {}
    assert found("0", document) == {"0": "zero"}
    assert found("**.n", document) == {"a/0/n": 1, "a/2/n": 3}
    assert found("a.**", document) == {"a": document["a"]}
    assert found("**", document) == {"": document}
    assert [each.bound for each in parse_path("a[*].*").select(document)] == [(0, "n"), (2, "n")]


COVERED = [
    ("/brand", "/brand", True, True),
    ("/brand", "/brand/name", True, True),
    ("/brand", "/brandnew", False, False),
    ("/brand/name", "/brand", False, True),
    ("/brand/name", "/brand/code", False, False),
    ("/a/*/c", "/a/x/c/d", True, True),
    ("/a/*/c", "/a/x", False, True),
    ("/a/*/c", "/a/x/d", False, False),
    ("/audit/*", "/audit", False, True),
    ("/audit/*", "/audit/by/name", True, True),
    ("/a/**/z", "/a", False, True),
    ("/a/**/z", "/a/z", True, True),
    ("/a/**/z", "/a/b/c", False, True),
    ("/a/**/z", "/a/b/c/z/d", True, True),
    ("/a/**/z", "/b", False, False),
    ("/a/**", "/a", True, True),
    ("$", "/anything", True, True),
    ("**", "/anything", True, True),
]


def test_what_a_pattern_covers_and_touches() -> None:
    for pattern, path, covers, touches in COVERED:
        tokens = tuple(path.split("/")[1:])
        assert parse_path(pattern).covers(tokens) is covers, (pattern, path)
        assert parse_path(pattern).touches(tokens) is touches, (pattern, path)


def every_path(tokens: str, longest: int) -> list[tuple[str, ...]]:
    return [path for length in range(longest + 1) for path in itertools.product(tokens, repeat=length)]


def test_overlap_and_coverage_agree_with_trying_every_path() -> None:
    """Patterns of at most three segments over two names cannot tell longer paths, or more names, apart."""
    seeded = random.Random(7)
    paths = every_path("abx", 6)

    def pattern() -> Any:
        made = [seeded.choice(["a", "b", "*", "**"]) for _ in range(seeded.randrange(4))]
        return parse_path("/" + "/".join(made)) if made else parse_path("$")

    outcomes: set[tuple[bool, bool]] = set()
    for _ in range(250):
        one, other, third = pattern(), pattern(), pattern()
        overlap = any(one.covers(path) and other.covers(path) for path in paths)
        covered = all(other.covers(path) or third.covers(path) for path in paths if one.covers(path))
        assert one.overlaps(other) is other.overlaps(one) is overlap, (one, other)
        assert one.covered_by([other, third]) is covered, (one, other, third)
        outcomes.add((overlap, covered))
    assert len(outcomes) >= 3
