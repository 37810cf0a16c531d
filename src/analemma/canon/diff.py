"""What changed: in a list, the runs of old and of new items; between two sequences, the stretches that do not match;
between two trees, the operations that make the one into the other, found without reading what they share."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analemma.canon.nodes import (
    HIGHEST_LEVEL,
    BlockId,
    Kind,
    Node,
    Wire,
    broken_promise,
    encode_stored,
    link_wire,
    too_deep,
    wire_link,
)
from analemma.canon.pointer import MAXIMUM_DEPTH, Operation, Path
from analemma.canon.read import MISSING, Nodes, Reader, container_kind, inline_content, joined, root_link
from analemma.errors import Limit

MOST_DIFFERING = 2**24
"""Nodes, fields and items that one comparison may look at. A few blocks that name each other twice stand for any number
of them, so that nothing else would end it."""
LONGEST_SCRIPT = 128
"""Changes searched for among repeated elements before settling for "all of this became all of that"."""
ANCHOR_PASSES = 16
"""Times that, on average, an element may be looked at in the search for what to hold fast. Ordinary sequences take two
or three; in some every pass finds one more pair, and the square of their length would be the price."""


Run = range | list[Any]

PAGE = 128
"""Runs are kept in pages of about this many, so that finding a position looks at pages first."""


class Runs:
    """The items of a list after any number of changes to it: runs of old items, by their positions, and runs of new
    ones, found quickly however many there are."""

    def __init__(self, *runs: Run) -> None:
        self._pages: list[list[Run]] = [list(runs)]
        self._lengths = [sum([len(run) for run in runs])]
        self.length = self._lengths[0]

    def __iter__(self) -> Iterator[Run]:
        for page in self._pages:
            yield from page

    def get(self, index: int) -> tuple[Run, int]:
        """The run that holds a position, and where in it."""
        page, number, offset = self._find(index)
        return self._pages[page][number], offset

    def splice(self, index: int, removed: int, fresh: Sequence[Any]) -> None:
        """Put new items in the place of the one at this position (`removed` is 1) or before it (0); the length is the
        place after the last."""
        page, number, offset = self._find(index)
        runs = self._pages[page]
        run = runs[number] if number < len(runs) else range(0)
        by = len(fresh) - removed
        if isinstance(run, list):
            run[offset : offset + removed] = fresh
            if not run:
                del runs[number]
        else:
            before = runs[number - 1] if number and not offset else None
            if isinstance(before, list):
                before += fresh
                fresh = ()
            parts: list[Run] = [run[:offset], list(fresh), run[offset + removed :]]
            runs[number : number + 1] = [part for part in parts if part]
        self.length += by
        self._lengths[page] += by
        if len(runs) > 2 * PAGE:
            self._pages[page : page + 1] = halves = [runs[:PAGE], runs[PAGE:]]
            self._lengths[page : page + 1] = [sum([len(run) for run in half]) for half in halves]

    def _find(self, index: int) -> tuple[int, int, int]:
        page = 0
        last = len(self._pages) - 1
        while page < last and index >= self._lengths[page]:
            index -= self._lengths[page]
            page += 1
        runs = self._pages[page]
        for number, run in enumerate(runs):
            if index < len(run):
                return page, number, index
            index -= len(run)
        return page, len(runs), 0


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
        gap = Gap(a, b, c, d)
        if set(old[a:b]).isdisjoint(new[c:d]):
            gaps.append(gap)
            continue
        anchors = _anchors(old, new, gap) if budget > 0 else []
        budget -= b - a + d - c
        if anchors:
            stack.extend(reversed(_between(anchors, gap)))
        else:
            gaps += _between(_shortest_script(old, new, gap), gap)
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
    # By diagonal: how far it leads, and the runs of matches that were passed, each with the one before.
    furthest: dict[int, tuple[int, Any]] = {1: (0, None)}
    for changes in range(min(width + height, LONGEST_SCRIPT) + 1):
        for diagonal in range(-changes, changes + 1, 2):
            if diagonal == -changes or (diagonal != changes and furthest[diagonal - 1][0] < furthest[diagonal + 1][0]):
                x, run = furthest[diagonal + 1]
            else:
                x, run = furthest[diagonal - 1]
                x += 1
            y, start = x - diagonal, x
            while x < width and y < height and old[first + x] == new[second + y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x, run if x == start else (start, x, diagonal, run)
            if x >= width and y >= height:
                matches: list[tuple[int, int]] = []
                run = furthest[diagonal][1]
                while run is not None:
                    start, stop, diagonal, run = run
                    matches += [(first + x, second + x - diagonal) for x in range(stop - 1, start - 1, -1)]
                return matches[::-1]
    return []


def diff(old: BlockId, new: BlockId, nodes: Nodes, reader: Reader) -> list[Operation]:
    """The operations (RFC 6902: add, replace, remove) that turn the tree at `old` into the one at `new`; values are
    read by the reader."""
    if old == new:
        return []
    roots = nodes.get_many([old, new])
    differ = _Differ(nodes)
    differ.compare(link_wire(root_link(old, roots[old])), link_wire(root_link(new, roots[new])), ())
    values = reader.read_wires([change.value for change in differ.changes])
    return [Operation(op, path, value) for (op, path, _), value in zip(differ.changes, values, strict=True)]


class _Differ:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._looked_at = 0
        self.changes: list[Operation] = []
        """With values in stored form."""

    def compare(self, old: Wire, new: Wire, path: Path) -> None:
        """Record how `old` becomes `new`."""
        if len(path) > MAXIMUM_DEPTH:
            raise too_deep()
        kind = container_kind(old)
        if kind != container_kind(new) or kind is None:
            if _differ(old, new):
                self.changes.append(Operation("replace", path, new))
        elif kind == "map":
            self._compare_maps(old, new, path)
        else:
            self._compare_lists(old, new, path)

    def _compare_maps(self, old: Wire, new: Wire, path: Path) -> None:
        before: dict[str, Wire] = {}
        after: dict[str, Wire] = {}
        for _, olds, news in self._stretches("map", old, new):
            before |= olds
            after |= news
        added: list[Operation] = []
        changed: list[tuple[str, Wire, Wire]] = []
        # Most of the fields in leaves that differ are the same, and most of them texts.
        for key, wire in after.items():
            held = before.get(key, MISSING)
            if held is MISSING:
                added.append(Operation("add", (*path, key), wire))
            elif (held != wire) if type(held) is type(wire) is str else _differ(held, wire):
                changed.append((key, held, wire))
        self._prefetch([(held, wire) for _, held, wire in changed])
        self.changes += [Operation("remove", (*path, key)) for key in before if key not in after]
        self.changes += added
        for key, held, wire in changed:
            if type(held) is type(wire) is str and len(path) < MAXIMUM_DEPTH:
                # What `compare` would find, once more.
                self.changes.append(Operation("replace", (*path, key), wire))
            else:
                self.compare(held, wire, (*path, key))

    def _compare_lists(self, old: Wire, new: Wire, path: Path) -> None:
        for start, before, after in self._stretches("list", old, new):
            gaps = align([encode_stored(wire) for wire in before], [encode_stored(wire) for wire in after])
            pairs = [(before[gap.old_start + n], after[gap.new_start + n]) for gap in gaps for n in range(_paired(gap))]
            self._prefetch(pairs)
            for gap in gaps:
                # To the left of this gap the list is already the new one, so positions count in the new list.
                place = start + gap.new_start
                paired = _paired(gap)
                for number in range(paired):
                    self.compare(
                        before[gap.old_start + number], after[gap.new_start + number], (*path, str(place + number))
                    )
                for _ in range(gap.old_start + paired, gap.old_stop):
                    self.changes.append(Operation("remove", (*path, str(place + paired))))
                for number in range(paired, gap.new_stop - gap.new_start):
                    self.changes.append(Operation("add", (*path, str(place + number)), after[gap.new_start + number]))

    def _prefetch(self, pairs: Sequence[tuple[Wire, Wire]]) -> None:
        """Fetch the roots of all pairs that will be looked into, together."""
        wanted = [
            link.id
            for pair in pairs
            if dict in (type(pair[0]), type(pair[1]))
            and container_kind(pair[0]) is not None
            and container_kind(pair[0]) == container_kind(pair[1])
            for wire in pair
            if (link := wire_link(wire)) is not None
        ]
        self._nodes.get_many(wanted)

    def _stretches(self, kind: Kind, old: Wire, new: Wire) -> list[tuple[int, Any, Any]]:
        """Stretches of two containers that may differ: where they start in the new one, what the old one has there and
        what the new one has. Leaves that both have in the same order are in none."""
        links = [link for wire in (old, new) if (link := wire_link(wire)) is not None]
        if not links:
            return [(0, inline_content(old), inline_content(new))]
        if len(links) == 1:
            for node in self._nodes.get_many([link.id for link in links]).values():
                self._look_at(node.length)
            before, after = self._nodes.contents([old, new])
            return [(0, before, after)]
        counts = {link.id: link.count for link in links}
        stretches = [(0, [links[0].id], [links[1].id])]
        above = HIGHEST_LEVEL + 1
        while True:
            nodes = self._nodes.get_many([block for _, *sides in stretches for side in sides for block in side])
            level = max([node.level for node in nodes.values()], default=0)
            for block, node in nodes.items():
                # Every round goes down, or there would be no end.
                if node.kind != kind or node.level >= above:
                    raise broken_promise(block)
            if level == 0:
                break
            above, narrower = level, []
            for start, *sides in stretches:
                olds, news = [self._expanded(side, nodes, level, counts) for side in sides]
                position = 0
                for gap in align(olds, news):
                    start += sum([counts[block] for block in news[position : gap.new_start]])
                    position = gap.new_start
                    narrower.append((start, olds[gap.old_start : gap.old_stop], news[gap.new_start : gap.new_stop]))
            stretches = narrower
        for node in nodes.values():
            self._look_at(node.length)
        return [
            (
                start,
                joined(kind, [nodes[block].body for block in olds], links[0].id),
                joined(kind, [nodes[block].body for block in news], links[1].id),
            )
            for start, olds, news in stretches
        ]

    def _expanded(
        self, blocks: Sequence[BlockId], nodes: Mapping[BlockId, Node], level: int, counts: dict[BlockId, int]
    ) -> list[BlockId]:
        """These nodes with those of the given level replaced by their children, whose counts are noted."""
        expanded: list[BlockId] = []
        for block in blocks:
            node = nodes[block]
            if node.level != level:
                expanded.append(block)
                continue
            self._look_at(len(node.body))
            below = [child[0][4:] for child in node.body]
            counts.update(zip(below, [child[1] for child in node.body], strict=True))
            expanded += below
        return expanded

    def _look_at(self, count: int) -> None:
        self._looked_at += count
        if self._looked_at > MOST_DIFFERING:
            raise Limit("the two values differ in too many places", hint="compare parts of them")


def _differ(old: Wire, new: Wire) -> bool:
    """Compared encoded: to Python 1, 1.0 and True are equal."""
    return encode_stored(old) != encode_stored(new)


def _paired(gap: Gap) -> int:
    return min(gap.old_stop - gap.old_start, gap.new_stop - gap.new_start)
