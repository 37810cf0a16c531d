"""The demo's agent: what it tells is what is in its store, and in the world outside."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from pathlib import Path

from rich.console import Console

import analemma
from analemma.cli.demo_agent import FORK, NAME, QUESTIONS, tell_agent_story


def test_the_agent_is_killed_goes_on_and_takes_two_ways(tmp_path: Path) -> None:
    told = StringIO()
    tell_agent_story(Console(file=told, width=200), tmp_path / "store", tmp_path)

    calls = [line.split(maxsplit=2) for line in (tmp_path / "outside.txt").read_text().splitlines()]
    searched = Counter(key for verb, key, _ in calls if verb == "search")
    # Whatever was under way when the process died may have been asked twice, and of each task only one thing is.
    assert len(searched) == len(QUESTIONS) and set(searched.values()) <= {1, 2}
    assert 1 <= sum(searched.values()) - len(QUESTIONS) <= 2
    assert [what for verb, _, what in calls if verb == "think"] == ["two weeks in Korea"]
    assert [what for verb, _, what in calls if verb == "pay"] == ["61 for the train", "48 for the plane"]

    with analemma.open(tmp_path / "store") as app:
        fork, run = app.flows.runs(workflow_id=NAME["workflow_id"])
        assert (run.status, run.branch, run.incarnation) == ("COMPLETED", "main", 2)
        assert (fork.status, fork.branch, fork.incarnation) == ("COMPLETED", FORK, 1)
        assert [segment.segment_id for segment in run.segments] == ["plan", "research", "decide", "book", "write"]
        assert run.state["notes"] == fork.state["notes"] and len(run.state["notes"]) == len(QUESTIONS)
        assert run.state["receipt"] != fork.state["receipt"]
        # The letter that was taken back is still there, as the version that it was.
        versions = {version.version: version for version in app.kernel.history(**NAME)}
        drafts = [app.kernel.load_state(versions[number].manifest_id)["letter"] for number in (6, 8)]
        assert drafts[0] != drafts[1] == run.state["letter"]
        assert app.kernel.verify(**NAME).ok
        assert all(f"{version.version:>7}  " in told.getvalue() for version in versions.values())
    twice = sum(searched.values()) - len(QUESTIONS)
    sent = "1 search was" if twice == 1 else f"{twice} searches were"
    assert f"{sent} sent twice: nobody could know whether" in told.getvalue()
    for said in ("killed with kill -9 (exit -9)", "plan is not run again", "roll back to version 5", "by eve"):
        assert said in told.getvalue()
