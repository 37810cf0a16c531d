"""`analemma backfill`: plan, run, status, list, pause, resume, cancel, verify."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from analemma.testing import failpoints
from tests.api.pipeline.backfill_shop import fill
from tests.cli.command_line import PROGRAM, CommandLine, at
from tests.raw_rows import change
from tests.stores import Store

SHOP = ("--tenant", "shop")


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    with store.open() as app:
        fill(app, 30)
    return at(store, tmp_path)


def test_a_plan_says_what_a_run_then_does(here: CommandLine) -> None:
    plan = here.answer("backfill", "plan", "--type", "BOOK", *SHOP)["plan"]
    assert plan["total"] == 30 and plan["changes"]["slices"] == 120 and plan["exact"]
    text = here.run("backfill", "plan", "--type", "BOOK", *SHOP).stdout
    assert "would write  120 slices of 30 versions" in text and "30 of 30: 30 never compiled" in text
    assert "BOOK#shop#b00000  write CORE, PRICE, INVENTORY, ENRICHED" in text
    quick = here.answer("backfill", "plan", "--quick", *SHOP)["plan"]
    assert quick["total"] == 35 and quick["changes"] is None
    done = here.answer("backfill", "run", "--type", "BOOK", *SHOP)["backfill"]
    assert (done["state"], done["counts"]) == ("DONE", plan["changes"])
    assert here.answer("backfill", "status", done["id"])["backfill"]["counts"]["done"] == 30
    shown = here.text("backfill", "status", done["id"])
    assert "DONE" in shown and "30 of 30" in shown
    assert done["id"] in here.text("backfill", "list", *SHOP)
    assert [each["id"] for each in here.answer("backfill", "list")["backfills"]] == [done["id"]]


def test_one_that_is_saved_is_run_later(here: CommandLine) -> None:
    saved = here.answer("backfill", "plan", "--quick", "--save", *SHOP)["backfill"]
    assert here.answer("backfill", "pause", saved)["backfill"]["state"] == "PAUSED"
    refused = here.run("backfill", "run", saved)
    assert refused.returncode == 4 and "it is PAUSED" in refused.stderr
    described = here.run("backfill", "run", saved, "--type", "BOOK")
    assert described.returncode == 2
    ran = here.run("backfill", "resume", saved)
    assert ran.returncode == 0 and "35 of 35" in ran.stdout and "done: 35 of 35 (100%)" in ran.stderr
    other = here.answer("backfill", "plan", "--quick", "--save", *SHOP)["backfill"]
    assert "CANCELLED" in here.text("backfill", "cancel", other)
    assert here.run("backfill", "resume", other).returncode == 4
    assert here.run("backfill", "status", "bf-none").returncode == 3


def test_what_is_damaged_makes_verify_fail(here: CommandLine, store: Store) -> None:
    stale = here.run("backfill", "verify", *SHOP)
    assert stale.returncode == 4 and "uncompiled  35" in stale.stdout
    assert here.run("backfill", "run", "--verify", "strict", *SHOP).returncode == 0
    assert here.run("backfill", "verify", *SHOP).returncode == 0
    body = "SELECT root FROM slice JOIN entity ON entity.id = slice.entity WHERE key = 'b00003' AND slice.type = 'CORE'"
    assert change(store, f"UPDATE block SET body = ? WHERE id IN ({body})", [b"not what it was"]) == 1  # noqa: S608
    for more in ((), ("--fast",)):
        found = here.run("backfill", "verify", *SHOP, *more)
        assert found.returncode == 6 and "BOOK#shop#b00003" in found.stdout
    report = here.run("backfill", "verify", "--json", *SHOP)
    assert report.returncode == 6 and '"corrupt": 1' in report.stdout


def test_entities_that_fail_are_told_and_the_exit_code_is_theirs(here: CommandLine, store: Store) -> None:
    roots = "SELECT root FROM raw JOIN entity ON entity.id = raw.entity WHERE key = 'b00004'"
    assert change(store, f"DELETE FROM block WHERE id IN ({roots})") == 1  # noqa: S608
    done = here.run("backfill", "run", "--type", "BOOK", *SHOP)
    assert done.returncode == 6 and "BOOK#shop#b00004@" in done.stdout and "corrupt:" in done.stdout


@pytest.mark.deep("processes that each open the store")
def test_it_runs_on_processes(here: CommandLine) -> None:
    done = here.process("backfill", "run", "--executor", "processes:1", "--json", *SHOP)
    assert done.returncode == 0 and '"done": 35' in done.stdout, done.stderr


def test_wrong_words_are_refused(here: CommandLine) -> None:
    for arguments in (
        ("run", "--kind", "sideways"),
        ("run", "--sink", "x", "--no-sinks"),
        ("run", "--executor", "clouds"),
        ("run", "--verify", "hard"),
        ("plan", "--mode", "incremental"),
    ):
        assert here.run("backfill", *arguments, *SHOP).returncode == 2, arguments
    assert here.run("backfill", "run", "--type", "NOBODY", *SHOP).returncode == 3


def test_ctrl_c_pauses_it(here: CommandLine, store: Store) -> None:
    stopped = failpoints.variable("backfill.before_transaction", time=3, then="stop")
    program = subprocess.Popen(
        [PROGRAM, "backfill", "run", "--page", "2", *SHOP],
        cwd=here.directory,
        env={**os.environ, **here.variables, **stopped},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with program, store.open() as app:
        try:
            _, status = os.waitpid(program.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            program.send_signal(signal.SIGINT)
            program.send_signal(signal.SIGCONT)
            assert program.wait(60) == 130
        finally:
            program.kill()
        (found,) = app.backfills.list()
        backfill = found.id
        assert (found.state, found.holder) == ("PAUSED", None) and found.counts.done < 35
        assert app.backfills.resume(backfill).counts.done == 35
