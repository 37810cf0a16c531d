"""Change sets: objects to their leaves, lists as one value, hashes of what was and is there."""

from __future__ import annotations

import hashlib
from typing import Any

from analemma import EntityKey
from tests.core.entry_points.slicing import compile_entity
from tests.core.slicing.shop import nothing, predecessor, ruleset_of

KEY = EntityKey("THING", "shop", "1")
RULESET = ruleset_of([{"type": "ALL", "buildRules": {"type": "PassThrough", "fields": ["$"]}}])
CASES: list[tuple[Any, Any, str, list[str]]] = [
    (None, None, "NO_CHANGE", []),
    ({"a": 1}, {"a": 1}, "NO_CHANGE", []),
    (None, {"a": {"b": 1, "c": []}, "d": {}}, "CREATE", ["/a/b", "/a/c", "/d"]),
    (None, {}, "CREATE", [""]),
    ({"a": {"b": 1}}, None, "DELETE", ["/a/b"]),
    ({"a": 1}, {"a": 2}, "UPDATE", ["/a"]),
    ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, "UPDATE", ["/a/c"]),
    ({"a": {"b": 1}}, {}, "UPDATE", ["/a/b"]),
    ({}, {"a": {"b": {"c": 1}}}, "UPDATE", ["/a/b/c"]),
    ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "UPDATE", ["/a"]),
    ({"a": {"b": 1}}, {"a": {}}, "UPDATE", ["/a/b"]),
    ({}, {"a": {}}, "UPDATE", ["/a"]),
    ({"a": {}}, {"a": []}, "UPDATE", ["/a"]),
    ({"a": 1}, {"a": {"b": 1}}, "UPDATE", ["/a", "/a/b"]),
    ({"a": [1]}, {"a": {"b": 1}}, "UPDATE", ["/a", "/a/b"]),
    ({"a": {"b": 1}}, {"a": {"b": {"c": 1}}}, "UPDATE", ["/a/b", "/a/b/c"]),
    ({"a": 1}, {"a": 1.0}, "NO_CHANGE", []),
    ({"a": [1, 0.0]}, {"a": [1.0, -0.0]}, "NO_CHANGE", []),
    ({"a": 1}, {"a": True}, "UPDATE", ["/a"]),
    ({"a": 0}, {"a": None}, "UPDATE", ["/a"]),
    ({}, {"a": None}, "UPDATE", ["/a"]),
    ({"a": "é"}, {"a": "e\u0301"}, "UPDATE", ["/a"]),
    ({"a": 2**60}, {"a": float(2**60)}, "UPDATE", ["/a"]),
    ({"a/b": 1, "~": 1}, {}, "UPDATE", ["/a~1b", "/~0"]),
    ({"b": 1, "a": 1}, {"a": 1, "b": 1}, "NO_CHANGE", []),
]


def changes(old: Any, new: Any) -> Any:
    """What changed between two versions of a document."""
    first = compile_entity(RULESET, KEY, old, nothing)
    return compile_entity(RULESET, KEY, new, nothing, predecessor=predecessor(old, first)).changes


def test_what_changed() -> None:
    wrong = []
    for old, new, kind, pointers in CASES:
        found = changes(old, new)
        if (found.kind, [change.pointer for change in found.changes]) != (kind, pointers):
            wrong.append((old, new, found))
    assert wrong == []


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_a_change_has_the_hashes_of_both_values() -> None:
    gone, came, other = changes({"a": 1, "c": [1]}, {"b": 2, "c": [2]}).changes
    assert (gone.old_hash, gone.new_hash) == (digest("1"), None)
    assert (came.old_hash, came.new_hash) == (None, digest("2"))
    assert (other.old_hash, other.new_hash) == (digest("[1]"), digest("[2]"))
