"""The commands that deliver events and tend them: `analemma worker` and `analemma outbox`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import PROGRAM, CommandLine, at
from tests.outbox_events import event, produce
from tests.stores import Store


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    with store.open() as app:
        produce(app, [event("a", id="dead", type="Unheard"), event("a", id="behind", type="Unheard")], tenant="shop")
        produce(app, [event("b", id="other", type="Unheard")])
    return at(store, tmp_path)


def unwell(here: CommandLine, *arguments: str) -> Any:
    """What a command answers that finds something wrong."""
    done = here.run(*arguments, "--json")
    assert done.returncode == 1
    return json.loads(done.stdout)


def test_dead_letters_are_found_shown_replayed_and_discarded(here: CommandLine) -> None:
    drained = unwell(here, "worker", "--drain")
    assert (drained["events"]["delivered"], drained["events"]["dead"], drained["parked"]) == (0, 2, 2)
    assert [each["id"] for each in here.answer("outbox", "dead", "--tenant", "shop")["events"]] == ["dead"]
    page = here.answer("outbox", "dead", "--limit", "1")
    assert len(page["events"]) == 1 and page["cursor"]
    assert len(here.answer("outbox", "dead", "--cursor", page["cursor"])["events"]) == 1
    shown = here.answer("outbox", "show", "dead")["event"]
    assert (shown["status"], shown["attempts"], shown["tenant"]) == ("DEAD", 1, "shop")
    assert "Unheard" in shown["failure_reason"]
    assert "Unheard" in here.text("outbox", "dead") and "DEAD" in here.text("outbox", "show", "dead")
    assert here.answer("outbox", "replay", "dead")["replayed"]["revived"] == 1
    assert here.answer("outbox", "failed")["events"] == []
    unwell(here, "worker", "--drain", "--tenant", "shop")
    assert unwell(here, "outbox", "status")["status"]["counts"]["DEAD"] == 2
    assert here.answer("outbox", "discard", "dead", "--reason", "by hand")["discarded"] == 1
    assert unwell(here, "worker", "--drain")["events"]["dead"] == 1
    assert "2 discarded" in here.text("outbox", "discard", "--all", "--yes")
    assert here.answer("outbox", "housekeep", "--dead-after", "0")["deleted"] == 3
    assert "none waits" in here.text("outbox", "status")


def test_what_producers_wrote_does_not_steer_the_terminal(store: Store, here: CommandLine) -> None:
    with store.open() as app:
        produce(app, [event("c\x1b[2J", id="evil\x1b]0;x\x07", type="Un\x9bheard\nline")])
    worked = here.process("worker", "--drain")
    assert worked.returncode == 1 and "evil" in worked.stderr
    shown = (here.text("outbox", "dead"), here.text("outbox", "show", "evil\x1b]0;x\x07"), worked.stderr)
    for text in shown:
        assert "evil\\x1b]0;x\\x07" in text and "c\\x1b[2J" in text
        assert all(each.isprintable() for each in text if each != "\n")


def test_status_fails_when_something_is_wrong(here: CommandLine) -> None:
    assert here.run("outbox", "status").returncode == 0
    wrong = here.run("outbox", "status", ANALEMMA_OUTBOX_WARN_PENDING="1")
    assert wrong.returncode == 1 and "problem: 3 events are pending" in wrong.stdout


def test_it_has_to_be_said_which_events(here: CommandLine) -> None:
    here.error("invalid", "outbox", "replay")
    here.error("invalid", "outbox", "discard", "dead", "--all")
    here.error("not_found", "outbox", "show", "unheard")
    here.error("conflict", "outbox", "discard", "behind")
    here.error("invalid", "outbox", "housekeep", "--tenant", "shop")
    here.error("invalid", "worker", "--drain", "--once")


def test_a_worker_delivers_until_it_is_asked_to_stop(store: Store, here: CommandLine, tmp_path: Path) -> None:
    variables = {**os.environ, "ANALEMMA_URL": store.url, "ANALEMMA_AUTO_MIGRATE": "true"}
    if store.objects:
        variables["ANALEMMA_OBJECTS"] = store.objects
    command = [PROGRAM, "worker", "--concurrency", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with store.open() as app:
            deadline = time.monotonic() + 60
            while app.outbox.status().dead < 2:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
            app.outbox.replay("other")
            while app.outbox.get("other").status != "DEAD":
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "3 dead" in stdout
