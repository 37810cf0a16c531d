"""What holds of a run of `flow_matrix`, while it is interrupted and when it is over."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analemma import App, Run
from tests.core.contracts.bookshop import EXAMPLE
from tests.crash.flow_matrix import (
    EFFECTS,
    EVENTS,
    INGESTS,
    MOST_AT_ONCE,
    TENANT,
    Outside,
    open_store,
    place,
)
from tests.crash.flow_matrix_forks import Forks
from tests.raw_rows import select
from tests.stores import Store

INGESTED = "SELECT count(*) FROM raw JOIN entity ON raw.entity = entity.id WHERE entity.key = '1'"
EMITTED = "SELECT type, count(*) FROM outbox WHERE aggregatetype = 'RUN' GROUP BY type"
UNKNOWN = "SELECT count(*) FROM effect WHERE state = 'intent'"
KEPT = "SELECT count(*) FROM effect WHERE state <> 'done'"


@dataclass(frozen=True)
class Course:
    """What a run came to, in terms that are the same for every run of the flow."""

    root: str
    segments: tuple[tuple[str, int, str], ...]
    """Each with its iteration and the root of the state behind it, where that has nothing of its time."""
    effects: frozenset[tuple[str, str]]
    """Names and keys, without the run's own name in them."""


def course_of(app: App, run: Run, outside: Outside) -> Course:
    versions = app.tenant(TENANT).kernel.history(workflow_id=run.workflow_id, owner_id=run.owner_id, limit=1000)
    roots = {each.manifest_id: each.root_hash for each in versions}
    segments = tuple(
        (each.segment_id, each.iteration, "" if each.segment_id == "put" else roots[each.output_manifest_id])
        for each in run.segments
    )
    own = f"{run.execution_id}:"
    effects = frozenset((name, key.removeprefix(own)) for name, key in outside.calls() if key.startswith(own))
    return Course(versions[0].root_hash, segments, effects)


@dataclass
class Interrupted:
    """Runs in one store, each of them interrupted again and again until it is over."""

    store: Store
    forks: Forks
    folder: Path
    number: int = 0
    kills: int = 0
    at: list[str] = field(default_factory=list)
    """Where."""
    unknown: int = 0
    """Effects of which nobody knew after a kill."""
    repeated: int = 0
    meanwhile: int = 0

    def __post_init__(self) -> None:
        self.outside = Outside(self.folder / "outside")
        with open_store(self.store) as app:
            app.contracts.load(EXAMPLE)

    def drive(self, die: dict[str, list[int]], after_s: float | None = None) -> bool:
        """One process, which goes on until it is killed, or the run is over; whether it is over."""
        ended = self.forks.drive(self.store, self.folder / "outside", self.number, die, after_s)
        if ended.code == 0:
            return True
        assert ended.code == -signal.SIGKILL, ended.said
        self.kills += 1
        if ended.at is not None:
            self.at.append(ended.at)
        return False

    def run(self, app: App) -> Run | None:
        """The run at hand, if it was born."""
        found = app.tenant(TENANT).flows.runs(workflow_id=place(self.number)["workflow_id"])
        assert len(found) <= 1
        return found[0] if found else None

    def check_between(self, app: App, reference: Course) -> None:
        """After a kill: the store is whole, and the run is at some place of its course, with all that led there."""
        unknown = select(self.store, UNKNOWN)[0][0]
        assert unknown <= MOST_AT_ONCE
        self.unknown += unknown
        run = self.run(app)
        if run is None:
            return
        shop = app.tenant(TENANT)
        assert shop.kernel.verify(**place(self.number)).problems == []
        course = course_of(app, run, self.outside)
        done = course.segments if run.status != "WAITING_HUMAN" else course.segments[:-1]
        assert done == reference.segments[: len(done)]
        assert run.executed == len(done)
        assert course.effects <= reference.effects
        # Somebody else is at the same entity: a second ingest of the run's would be another version of it.
        shop.ingest("BOOK", "1", {"isbn": "1", "title": "Another", "price": self.kills + 5000})
        self.meanwhile += 1

    def check_end(self, app: App, reference: Course, kills: int) -> None:
        """The run is what it would have been, had nobody interrupted it."""
        run, runs = self.run(app), self.number + 1
        assert run is not None and run.status == "COMPLETED"
        assert course_of(app, run, self.outside) == reference
        assert app.tenant(TENANT).kernel.verify(**place(self.number)).problems == []
        # In the database: exactly once.
        assert Counter(dict(select(self.store, EMITTED))) == Counter({name: n * runs for name, n in EVENTS.items()})
        assert select(self.store, INGESTED)[0][0] == INGESTS * runs + self.meanwhile
        # Outside: never under another key, and so once where keys are honoured; else once more per kill at most.
        assert select(self.store, KEPT)[0][0] == 0
        assert self.outside.done() == sum(EFFECTS.values()) * runs
        own = {key: n for key, n in self.outside.calls().items() if key[1].startswith(f"{run.execution_id}:")}
        assert Counter(name for name, _ in own) == EFFECTS
        assert all(n <= 1 + kills for n in own.values())
        self.repeated += sum(n - 1 for n in own.values())
        assert self.repeated <= self.unknown


def uninterrupted(store: Store, forks: Forks, folder: Path) -> Course:
    """What a run that nobody interrupts comes to."""
    runs = Interrupted(store, forks, folder)
    forks.begin()
    assert runs.drive({})
    with open_store(store) as app:
        run = runs.run(app)
        assert run is not None
        reference = course_of(app, run, runs.outside)
        runs.check_end(app, reference, 0)
    return reference


def interrupt(
    runs: Interrupted, app: App, reference: Course, one: Callable[[], tuple[dict[str, list[int]], float | None]]
) -> int:
    """Let the next run be interrupted as `one` says, until it is over; how often it was."""
    before = runs.kills
    runs.forks.begin()
    while not runs.drive(*one()):
        runs.check_between(app, reference)
    kills = runs.kills - before
    runs.check_end(app, reference, kills)
    runs.number += 1
    return kills


def facts(runs: Interrupted) -> dict[str, Any]:
    return {"kills": runs.kills, "runs": runs.number, "unknown": runs.unknown, "repeated": runs.repeated}
