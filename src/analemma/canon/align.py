"""Matching two sequences: which stretches are the same, and which became which."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

LONGEST_SCRIPT = 128
"""Changes searched for among repeated elements before settling for "all of this became all of that"."""


ANCHOR_PASSES = 16
"""Times that, on average, an element may be looked at in the search for what to hold fast. Ordinary sequences take two
or three; in some every pass finds one more pair, and the square of their length would be the price."""


class Gap(NamedTuple):
    """Runs of two sequences that do not match: [old_start, old_stop) became [new_start, new_stop)."""

    old_start: int
    old_stop: int
    new_start: int
    new_stop: int


def align(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Gap]:
    """Where two sequences differ, in order: equal ends are trimmed, then elements that occur once in both are held
    fast."""
    gaps: list[Gap] = []
    budget = ANCHOR_PASSES * (len(old) + len(new))
    stack = [Gap(0, len(old), 0, len(new))]
    while stack:
        a, b, c, d = stack.pop()
        while a < b and c < d and old[a] == new[c]:
            a, c = a + 1, c + 1
        while a < b and c < d and old[b - 1] == new[d - 1]:
            b, d = b - 1, d - 1
        if a == b and c == d:
            continue
        anchors: list[tuple[int, int]] = []
        if a < b and c < d and budget > 0:
            budget -= b - a + d - c
            anchors = _anchors(old, new, Gap(a, b, c, d))
        if anchors:
            stack.extend(reversed(_between(anchors, Gap(a, b, c, d))))
        else:
            gaps += _between(_shortest_script(old, new, Gap(a, b, c, d)), Gap(a, b, c, d))
    return gaps


def _between(matches: Sequence[tuple[int, int]], gap: Gap) -> list[Gap]:
    """What is left of a gap between matching pairs of places."""
    a, b, c, d = gap
    left = []
    for old_place, new_place in [*matches, (b, d)]:
        if old_place > a or new_place > c:
            left.append(Gap(a, old_place, c, new_place))
        a, c = old_place + 1, new_place + 1
    return left


def _anchors(old: Sequence[Hashable], new: Sequence[Hashable], gap: Gap) -> list[tuple[int, int]]:
    """Elements that occur exactly once on each side, the longest run of them that keeps its order."""
    old_counts = Counter(old[gap.old_start : gap.old_stop])
    new_places = {}
    new_counts: Counter[Hashable] = Counter()
    for place in range(gap.new_start, gap.new_stop):
        new_counts[new[place]] += 1
        new_places[new[place]] = place
    pairs = [
        (place, new_places[old[place]])
        for place in range(gap.old_start, gap.old_stop)
        if old_counts[old[place]] == 1 and new_counts[old[place]] == 1
    ]
    ends: list[int] = []
    chains: list[int] = []
    previous: list[int] = []
    for number, (_, place) in enumerate(pairs):
        position = bisect_left(ends, place)
        previous.append(chains[position - 1] if position else -1)
        if position == len(ends):
            ends.append(place)
            chains.append(number)
        else:
            ends[position] = place
            chains[position] = number
    chain: list[tuple[int, int]] = []
    number = chains[-1] if chains else -1
    while number >= 0:
        chain.append(pairs[number])
        number = previous[number]
    return chain[::-1]


def _shortest_script(old: Sequence[Hashable], new: Sequence[Hashable], gap: Gap) -> list[tuple[int, int]]:
    """The matching places under the fewest insertions and removals (Myers' greedy algorithm), or none if that takes too
    many."""
    first, last_old, second, last_new = gap
    width, height = last_old - first, last_new - second
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for changes in range(min(width + height, LONGEST_SCRIPT) + 1):
        trace.append(dict(furthest))
        for diagonal in range(-changes, changes + 1, 2):
            if diagonal == -changes or (diagonal != changes and furthest[diagonal - 1] < furthest[diagonal + 1]):
                x = furthest[diagonal + 1]
            else:
                x = furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < width and y < height and old[first + x] == new[second + y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= width and y >= height:
                return _retrace(trace, width, height, first, second)
    return []


def _retrace(trace: list[dict[int, int]], x: int, y: int, first: int, second: int) -> list[tuple[int, int]]:
    matches: list[tuple[int, int]] = []
    for changes in range(len(trace) - 1, -1, -1):
        furthest = trace[changes]
        diagonal = x - y
        if diagonal == -changes or (diagonal != changes and furthest[diagonal - 1] < furthest[diagonal + 1]):
            earlier = diagonal + 1
        else:
            earlier = diagonal - 1
        start_x = furthest[earlier] if changes else 0
        start_y = start_x - earlier if changes else 0
        while x > start_x and y > start_y:
            x, y = x - 1, y - 1
            matches.append((first + x, second + y))
        x, y = start_x, start_y
    return matches[::-1]
