"""Puts a cloud's listing into the order of whole keys.

AWS lists by the bytes of the whole key, so `a-b/x` comes before `a/x`; others walk a tree and give `a/x` first. A merge
of a listing with a catalog would take the difference for missing objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from analemma.blocks.port import ObjectInfo
from analemma.errors import Unavailable


def in_key_order(found: Iterable[ObjectInfo], start: str) -> Iterator[ObjectInfo]:
    """The same objects sorted by key, from either order.

    `start` is what all keys begin with. The two orders differ only between a name and longer names that continue it
    with a character below the slash, and these stand together; so one such group is held in memory at a time.
    """
    group: list[ObjectInfo] = []
    group_name = ""
    last_key = ""
    for info in found:
        name = info.key[len(start) :].partition("/")[0]
        if group and not (name == group_name or (name.startswith(group_name) and name[len(group_name)] < "/")):
            yield from _sorted_group(group, last_key)
            last_key = group[-1].key
            group = []
        if not group:
            group_name = name
        group.append(info)
    yield from _sorted_group(group, last_key)


def _sorted_group(group: list[ObjectInfo], last_key: str) -> Iterator[ObjectInfo]:
    group.sort(key=lambda info: info.key)
    if group and group[0].key <= last_key:
        raise Unavailable(
            "the object store lists its keys in no usable order", hint="use a bucket type that lists in key order"
        )
    yield from group
