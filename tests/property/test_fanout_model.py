"""Fanouts as a model: whatever changes, comes, goes and is compiled in whatever order, nobody stays behind, and nobody
is visited more often than needed. What is real is how a fanout moves; catalog and compiles are played."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analemma.catalog.fanouts import FanoutRow
from analemma.pipeline.fanout import after_page
from analemma.pipeline.fanout_progress import Counts, Dependency, Progress, Walk, format_progress, parse_progress

NAMES = (Dependency("BOOK", "author"), Dependency("BOOK", "editor"), Dependency("FILM", "author"))


@dataclass
class Evaluated:
    """A page between its reading and its transaction."""

    row: FanoutRow
    progress: Progress
    passes: int
    walk: Walk | None
    listed: list[int]
    ended: bool
    seen_value: int


@dataclass
class World:
    """One entity, those that name it, its fanout, and the events on their way."""

    page: int
    limits: dict[Dependency, int]
    value: int = 0
    followers: dict[tuple[Dependency, int], int] = field(default_factory=dict)
    """What each has seen of the entity."""
    changes: int = 0
    """Told and not delivered."""
    row: FanoutRow | None = None
    visits: list[tuple[Dependency, int]] = field(default_factory=list)
    in_flight: Evaluated | None = None

    def change(self) -> None:
        self.value += 1
        self.changes += 1

    def deliver(self) -> None:
        if not self.changes:
            return
        self.changes -= 1
        if not self.followers:
            return
        if self.row is None:
            self.row = FanoutRow(1, "QUEUED", 1, 1, 0, 1, 0, "[]", 0, 0, 0, 0, None, 0, 0, 0, None)
        elif self.row.finished_at_us is None:
            self.row = self.row._replace(asked=self.row.asked + 1)
        else:
            self.row = FanoutRow(
                1,
                "QUEUED",
                1,
                self.row.asked + 1,
                self.row.seen,
                self.row.step + 1,
                0,
                "[]",
                0,
                0,
                0,
                0,
                None,
                0,
                0,
                0,
                None,
            )

    def begin_page(self) -> None:
        row = self.row
        if row is None or row.finished_at_us is not None or self.in_flight is not None:
            return
        progress, passes = parse_progress(row.progress), row.passes
        if row.asked != row.seen:
            counts = {name: sum(1 for each, _ in self.followers if each == name) for name in NAMES}
            progress = progress.again({name: count for name, count in counts.items() if count}, self.limits)
            passes += 1
        walk = progress.next
        listed: list[int] = []
        ended = True
        if walk is not None:
            quota = walk.quota(self.page)
            numbers = sorted(number for name, number in self.followers if name == walk.dependency)
            found = [number for number in numbers if walk.cursor < number <= walk.until]
            listed, ended = found[:quota], len(found) <= quota
        self.in_flight = Evaluated(row, progress, passes, walk, listed, ended, self.value)

    def end_page(self, *, dies: bool = False) -> None:
        page, self.in_flight = self.in_flight, None
        if page is None or dies:
            return
        held = self.row
        assert held is not None and held.step == page.row.step
        progress = page.progress
        if page.walk is not None:
            # What was evaluated before the entity changed is evaluated again.
            there = [each for each in page.listed if (page.walk.dependency, each) in self.followers]
            for number in there:
                self.followers[page.walk.dependency, number] = self.value
                self.visits.append((page.walk.dependency, number))
            progress = progress.moved(page.walk.after(page.listed, Counts(len(page.listed)), ended=page.ended))
        self.row = after_page(held, page.row.asked, progress, page.passes, now_us=7)

    def finish(self) -> None:
        self.end_page()
        while self.changes:
            self.deliver()
        for _ in range(10_000):
            if self.row is None or self.row.finished_at_us is not None:
                return
            self.begin_page()
            self.end_page()
        raise AssertionError("it goes on for ever")

    def check(self) -> None:
        over = self.row is None or self.row.finished_at_us is not None
        if over and not self.changes:
            assert set(self.followers.values()) <= {self.value}
        if self.row is not None:
            assert parse_progress(self.row.progress) == parse_progress(
                format_progress(parse_progress(self.row.progress))
            )


ACTIONS = {"change": 2, "deliver": 3, "begin_page": 6, "end_page": 6, "die": 1, "come": 2, "go": 1, "compile": 1}


def live(seed: int) -> World:
    """One life of an entity and of those that follow it."""
    chance = random.Random(seed)

    def anyone() -> tuple[Dependency, int]:
        return chance.choice(NAMES), chance.randrange(1, 30)

    followers = {anyone(): 0 for _ in range(chance.randrange(20))}
    world = World(chance.randrange(1, 5), {name: chance.randrange(1, 10) for name in NAMES}, followers=followers)
    names, weights = list(ACTIONS), list(ACTIONS.values())
    for action in chance.choices(names, weights, k=chance.randrange(60)):
        match action:
            case "come":
                # Compiled from what the entity is now, whatever number it has.
                world.followers[anyone()] = world.value
            case "go" if world.followers:
                del world.followers[chance.choice(sorted(world.followers))]
            case "compile" if world.followers:
                world.followers[chance.choice(sorted(world.followers))] = world.value
            case "die":
                world.end_page(dies=True)
            case "change" | "deliver" | "begin_page" | "end_page":
                getattr(world, action)()
        world.check()
    world.finish()
    world.check()
    return world


def test_nobody_stays_behind() -> None:
    worlds = [live(seed) for seed in range(400)]
    assert sum(1 for world in worlds if world.row is not None and world.row.passes > 1) > 40


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_nobody_stays_behind_at_length(part: int) -> None:
    for seed in range(20_000):
        live(1_000_000 * (part + 1) + seed)


@given(count=st.integers(1, 30), page=st.integers(1, 7), pages=st.integers(0, 20), changes=st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_a_change_costs_each_one_visit_and_those_before_it_a_second_one(
    count: int, page: int, pages: int, changes: int
) -> None:
    name = NAMES[0]
    world = World(page, dict.fromkeys(NAMES, 1000), followers={(name, number): 0 for number in range(1, count + 1)})
    world.change()
    world.deliver()
    for _ in range(pages):
        world.begin_page()
        world.end_page()
    assert world.row is not None
    over = world.row.finished_at_us is not None
    told = len(world.visits)
    for _ in range(changes):
        # However many come while it stands still, they are one.
        world.change()
        world.deliver()
    world.finish()
    world.check()
    assert world.row.passes == (1 if over or not pages else 2)
    visited = [number for _, number in world.visits]
    if over:
        assert len(visited) == 2 * count
    else:
        assert sorted(visited) == sorted([*range(1, count + 1), *range(1, told + 1)])


@given(count=st.integers(1, 40), limit=st.integers(1, 40), page=st.integers(1, 7))
@settings(max_examples=300, deadline=None)
def test_beyond_the_limit_it_is_deferred_with_an_alert_and_done(count: int, limit: int, page: int) -> None:
    name = NAMES[0]
    world = World(page, dict.fromkeys(NAMES, limit), followers={(name, number): 0 for number in range(1, count + 1)})
    world.change()
    world.deliver()
    while world.row is not None and world.row.finished_at_us is None:
        at_once = world.row.status != "DEFERRED"
        before = len(world.visits)
        world.begin_page()
        world.end_page()
        if at_once:
            assert len(world.visits) <= limit
        assert (world.row.alert is not None) == (count > limit)
        # What is within the limit does not wait.
        assert at_once == (before < limit)
    assert world.row is not None and len(world.visits) == count
