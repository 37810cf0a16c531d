"""kill -9 at every failpoint of every verb that writes: the reopened store verifies, and doing it again works."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.crash.points import AROUND_COMMIT, COMMIT, FIRST_AND_LAST, kills
from tests.crash.verb_worker import NAME, VERBS
from tests.depth import some
from tests.raw_rows import is_sqlite
from tests.stores import Store

ROOT = Path(__file__).parents[2]
IN_ONE_STATEMENT = set(COMMIT) - set(AROUND_COMMIT)
RECORD = ("record.before_commit", "record.after_commit")
RECORDING = ("tag", "untag", "pin", "decide")
CASES = [(verb, point) for verb in VERBS for point in (RECORD if verb in RECORDING else COMMIT)]
CHOSEN = [
    *(("save", point) for point in FIRST_AND_LAST),
    *((verb, "commit.before_commit") for verb in ("session", "rollback", "fork", "merge")),
    *((verb, "commit.after_commit") for verb in ("session", "merge")),
    *(("tag", point) for point in RECORD),
    *((verb, "record.before_commit") for verb in ("untag", "pin", "decide")),
]
AROUND_COMMITS = [*(("save", point) for point in AROUND_COMMIT), *(("tag", point) for point in RECORD)]


def prepare(app: App) -> None:
    kernel = app.kernel
    for number in range(4):
        kernel.save_state_delta({"n": number, "list": list(range(500))}, **NAME)
    newest = kernel.history(**NAME)[0]
    kernel.fork(newest.manifest_id, owner_id="ann", branch="side")
    kernel.save_state_delta({"theirs": 1}, branch="side", **NAME)
    kernel.tag(newest.manifest_id, "old", owner_id="ann")


def facts(app: App) -> dict[str, Any]:
    """What the verbs change: how many versions each line has, and what was said of them."""
    kernel = app.kernel
    found: dict[str, Any] = {
        "tags": [tag.name for tag in kernel.tags(**NAME)],
        "pins": [pin.version for pin in kernel.pins(**NAME)],
        "approved": [version.version for version in kernel.history(**NAME, decision="approved")],
    }
    for workflow, branch in (("report", "main"), ("report", "other"), ("copy", "main")):
        try:
            versions = kernel.history(workflow_id=workflow, owner_id="ann", branch=branch)
        except KeyError:
            versions = []
        found[f"{workflow} {branch}"] = len(versions)
        if versions:
            assert kernel.verify(workflow_id=workflow, owner_id="ann", branch=branch).problems == []
    return found


PROCEDURES = {
    "save": "commit_versions",
    "fork": "commit_versions",
    "tag": "put_ref",
    "pin": "put_ref",
    "untag": "drop_ref",
}
STEPS = [(verb, point) for verb in PROCEDURES for point in failpoints.steps() if point.startswith(PROCEDURES[verb])]
FIRST_STEPS = [("save", "commit_versions.before"), ("tag", "put_ref.3")]


@pytest.mark.parametrize(("verb", "point"), some(STEPS, test=FIRST_STEPS))
def test_a_kill_between_any_two_statements_leaves_nothing(verb: str, point: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with store.open() as app:
        prepare(app)
        before = facts(app)
    command = [sys.executable, "-m", "tests.crash.verb_worker", store.url, "", verb]
    done = programs.run(
        command, cwd=ROOT, env={**os.environ, failpoints.VARIABLE: point}, capture_output=True, text=True, timeout=60
    )
    # Not each verb does each step.
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    with store.open() as app:
        assert (facts(app) != before) == (done.returncode == 0)


@pytest.mark.parametrize(("verb", "point"), kills(CASES, test=CHOSEN, postgres=AROUND_COMMITS))
def test_a_kill_leaves_all_of_it_or_nothing(verb: str, point: str, store: Store) -> None:
    with store.open() as app:
        prepare(app)
        before = facts(app)
    done = programs.run(
        [sys.executable, "-m", "tests.crash.verb_worker", store.url, store.objects or "", verb],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    # PostgreSQL commits in one statement, so there is no stopping inside it.
    reached = is_sqlite(store) or point not in IN_ONE_STATEMENT
    assert done.returncode == (-signal.SIGKILL if reached else 0), done.stderr
    with store.open() as app:
        after = facts(app)
        happened = not reached or point.endswith("after_commit")
        assert (after != before) == happened
        if verb == "save" or not happened:
            # Whoever was killed tries again: under its key, or because nothing had happened.
            VERBS[verb](app)
        assert facts(app) != before
        if verb == "save":
            assert len(app.kernel.history(**NAME)) == 5
