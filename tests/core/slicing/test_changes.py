"""Change sets: objects to their leaves, lists as one value, hashes of what was and is there."""

from __future__ import annotations

from typing import Any

import pytest

from analemma.slicing.changes import ChangeKind, compare_documents, content_hash


@pytest.mark.parametrize(
    ("old", "new", "kind", "pointers"),
    [
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
    ],
    ids=range(25),
)
def test_what_changed(old: Any, new: Any, kind: str, pointers: list[str]) -> None:
    found = compare_documents(old, new)
    assert (found.kind, [change.pointer for change in found.changes]) == (ChangeKind(kind), pointers)


def test_a_change_has_the_hashes_of_both_values() -> None:
    gone, came, other = compare_documents({"a": 1, "c": [1]}, {"b": 2, "c": [2]}).changes
    assert (gone.old_hash, gone.new_hash) == (content_hash(1), None)
    assert (came.old_hash, came.new_hash) == (None, content_hash(2))
    assert (other.old_hash, other.new_hash) == (content_hash([1]), content_hash([2]))
    assert content_hash({}) == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
