"""kill -9 at every failpoint of a flow of more than twenty segments, one after the other in one run: each process goes
on where the one before it died. The run comes to what it would have come to if nobody had been killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.flow_matrix import ITEMS, SEGMENTS, make_flow, open_store
from tests.crash.flow_matrix_checks import Course, Interrupted, facts, interrupt, uninterrupted
from tests.crash.flow_matrix_forks import Forks
from tests.depth import DEEP, some
from tests.stores import Store, local

POINTS = [
    "run.before_segment",
    "run.after_segment",
    "run.before_advance",
    "run.after_advance",
    "run.after_claim",
    "run.before_move",
    "run.after_move",
    "effect.after_intent",
    "effect.before_result",
    "effect.after_result",
    "task.before_record",
    "task.after_record",
    "commit.before_transaction",
    "commit.after_head",
    "commit.after_blocks",
    "commit.before_commit",
    "commit.after_commit",
    "upload.before_intent",
    "upload.after_intent",
    "upload.after_object",
    "ingest.before_transaction",
    "ingest.after_blocks",
    "ingest.before_commit",
    "ingest.after_commit",
]
FEW = [
    *("run.after_segment", "run.after_move", "effect.before_result"),
    *("task.after_record", "upload.after_object", "ingest.after_commit"),
]
"""The others are tried in test_flow_kill.py."""
INSIDE_ONE_STATEMENT = {"commit.after_head", "commit.after_blocks", "ingest.after_blocks"}
"""PostgreSQL does these in one statement, so there is no stopping between them."""

ONCE_ON_POSTGRES = {"commit.before_commit"}
"""Only where a run begins or ends: PostgreSQL commits a segment in one call."""

LATER = {
    "run.before_segment": [1, 8, 21],
    "run.after_segment": [1, 12, 24],
    "effect.after_intent": [1, 2, 17, 50],
    "effect.before_result": [1, 5, 33, 55],
    "commit.before_commit": [1, 6, 10],
    "commit.after_commit": [1, 4, 20],
}
"""When, where it is passed often: at the first item and in the midst of them, in branches, at the end."""

RANDOM_KILLS = 100
"""With each seed."""
LONGEST_S = 1.0
"""So long a process lives that is killed at a random moment."""


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Forks:
    return Forks(tmp_path_factory.mktemp("forks"))


@pytest.fixture(scope="module")
def alone(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """What a run on SQLite that nobody interrupts comes to."""
    folder = tmp_path_factory.mktemp("alone")
    return uninterrupted(local(folder), forks, folder)


def test_the_flow_has_what_can_be_interrupted() -> None:
    plan = make_flow(lambda *_: None).plan()
    assert len(plan.segments) == SEGMENTS >= 20
    kinds = {segment.type for segment in plan.segments}
    assert kinds >= {"steps", "human", "branch", "loop", "parallel", "for_each", "merge"}
    assert plan.segments[-1].type == "human" and ITEMS >= 40


def test_killed_at_every_failpoint_a_run_comes_to_the_same(
    store: Store, forks: Forks, alone: Course, tmp_path: Path
) -> None:
    """At the first time that it passes each, and at later ones."""
    points = set(some(POINTS, test=FEW))
    on_postgres = store.url.startswith("postgresql")
    reached = points - (INSIDE_ONE_STATEMENT if on_postgres else set())
    runs = Interrupted(store, forks, tmp_path)
    once = ONCE_ON_POSTGRES if on_postgres else set()
    die = {point: LATER.get(point, [1, 2]) if DEEP and point not in once else [1] for point in points}
    with open_store(store) as app:
        kills = interrupt(runs, app, alone, lambda: (die, None))
    assert kills == len(runs.at)
    assert {(point, count) for point, _, count in (each.partition(":") for each in runs.at)} == {
        (point, str(count)) for point in reached for count in die[point]
    }


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_runs_come_to_the_same(
    store: Store, forks: Forks, alone: Course, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    runs = Interrupted(store, forks, tmp_path)
    with open_store(store) as app:
        while runs.kills < RANDOM_KILLS:
            interrupt(runs, app, alone, lambda: ({}, chance.uniform(0.0, LONGEST_S)))
    print(f"seed {seed}, {store.url.partition(':')[0]}: {facts(runs)}")
