"""kill -9 around and inside of deletions: everything is there, or nothing, and doing it again works."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from analemma import Workflow
from analemma.errors import NotFound
from analemma.testing import failpoints
from tests import programs
from tests.crash.points import kills
from tests.raw_rows import change
from tests.stores import Store

ROOT = Path(__file__).parents[2]
AROUND = ["remove.before_transaction", "remove.before_commit", "remove.after_commit"]
VERBS = {"delete": "move_branches", "undelete": "move_branches", "collect": "remove_branches"}
STEPS = {verb: sorted(name for name in failpoints.steps() if name.startswith(f"{of}.")) for verb, of in VERBS.items()}
CASES = [(verb, point) for verb in VERBS for point in (*AROUND, *STEPS[verb])]
CHOSEN = [(verb, point) for verb in VERBS for point in AROUND] + [
    (verb, points[at]) for verb, points in STEPS.items() for at in (0, len(points) // 2, -1)
]


def run(store: Store, verb: str, point: str) -> int:
    done = programs.run(
        [sys.executable, "-m", "tests.crash.removal_worker", store.url, store.objects or "", verb],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode


def facts(trip: Workflow) -> object:
    """What there is of the workflow; None if it is deleted."""
    try:
        branches = [(each.name, each.version) for each in trip.branches()]
    except NotFound:
        return None
    for name, _ in branches:
        assert trip.branch(name).verify().problems == []
    return branches, [(each.name, each.version) for each in trip.tags()], trip.load(), trip.save({}, key="req").version


@pytest.mark.parametrize(("verb", "point"), kills(CASES, test=CHOSEN, postgres=[(each, AROUND[2]) for each in VERBS]))
def test_a_kill_leaves_all_or_nothing(verb: str, point: str, store: Store) -> None:
    with store.open() as app:
        trip = app.workflow("trip", owner="ann")
        trip.save({"n": 1}, key="first")
        trip.save({}, key="req")
        trip.branch("draft", at=1).save({"d": 1})
        trip.tag("good", 1)
        before = facts(trip)
        if verb != "delete":
            trip.delete()
    code = run(store, verb, point)
    change(store, "UPDATE gc SET lease_until = 0")  # the lease of the collector that died has ended
    inside = code != 0
    assert code == -signal.SIGKILL if inside else point.startswith(("move_branches", "remove_branches"))
    with store.open() as app:
        trip = app.workflow("trip", owner="ann")
        happened = not inside or point == "remove.after_commit"
        if verb == "delete":
            assert facts(trip) == (None if happened else before) and bool(trip.deleted()) == happened
            if not happened:
                trip.delete()
            trip.undelete()
        elif verb == "undelete":
            assert facts(trip) == (before if happened else None) and bool(trip.deleted()) != happened
            if not happened:
                trip.undelete()
        else:
            # Branch by branch: after the first, the kill comes before the second.
            assert facts(trip) is None and len(trip.deleted()) in ((0, 1) if happened else (2,))
    with store.open(delete_grace_s=0) as app:
        trip = app.workflow("trip", owner="ann")
        if verb != "collect":
            assert facts(trip) == before
            trip.delete()
        for _ in range(2):
            assert app.gc.run(grace_s=0, force=True).problems == ()
        assert trip.deleted() == [] and trip.save({"fresh": 1}).version == 3
        assert trip.verify().problems == []
