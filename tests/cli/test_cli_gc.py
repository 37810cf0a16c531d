"""The commands that collect: `analemma gc` and `analemma worker`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import PROGRAM, CommandLine
from tests.raw_rows import change
from tests.stores import Store, local

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, {})


def store_with_garbage(tmp_path: Path) -> Store:
    """Five versions of which the newest is kept: each has a large text of its own, and they share another."""
    store = local(tmp_path)
    pick = random.Random(1)
    with store.open() as app:
        app.kernel.save_state_delta({"shared": pick.randbytes(2000).hex()}, **PLACE)
        for number in range(5):
            app.kernel.save_state_delta({"own": pick.randbytes(2000).hex(), "n": number}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        app.kernel.expire(**PLACE)
    return store


def test_a_dry_run_tells_what_a_run_then_deletes(here: CommandLine, tmp_path: Path) -> None:
    url = store_with_garbage(tmp_path).url
    first = here.answer("gc", "run", "-u", url, "--grace", "0")["report"]
    dry = here.answer("gc", "run", "-u", url, "--grace", "0", "--dry-run")["plan"]["tenants"][0]
    assert dry["to_delete"] == first["doomed"] > 0
    shown = here.run("gc", "plan", "-u", url, "--grace", "0").stdout
    assert f"{dry['to_delete']} blocks would be deleted ({dry['delete_bytes']} bytes)" in shown
    done = here.answer("gc", "run", "-u", url, "--grace", "0")["report"]
    assert (done["deleted"], done["bytes"]) == (dry["to_delete"], dry["delete_bytes"])
    status = here.answer("gc", "status", "-u", url)["status"]
    assert [run["number"] for run in status["runs"]] == [done["number"], first["number"]]
    assert status["runs"][0]["deleted"] == done["deleted"]


def test_a_plan_that_was_written_down_can_be_carried_out(here: CommandLine, tmp_path: Path) -> None:
    url, file = store_with_garbage(tmp_path).url, str(tmp_path / "plan.json")
    here.answer("gc", "run", "-u", url, "--grace", "0")
    plan = here.answer("gc", "plan", "-u", url, "--grace", "0", "--out", file)["plan"]
    assert here.answer("gc", "run", "-u", url, "--plan", file)["report"]["deleted"] == plan["tenants"][0]["to_delete"]
    bad = here.run("gc", "run", "-u", url, "--plan", os.devnull)
    assert bad.returncode == 2 and "this is no plan" in bad.stderr


def test_a_brake_shows_in_the_exit_code_and_says_why(here: CommandLine, tmp_path: Path) -> None:
    store = store_with_garbage(tmp_path)
    for table in ("head", "manifest"):
        assert change(store, f"DELETE FROM {table}") == 1  # noqa: S608
    stopped = here.run("gc", "run", "-u", store.url, "--grace", "0")
    assert stopped.returncode == 9 and "nothing that leads to any of them" in stopped.stdout
    assert here.run("gc", "run", "-u", store.url, "--grace", "0", "--force").returncode == 0


def test_failures_are_listed(here: CommandLine, tmp_path: Path) -> None:
    url = store_with_garbage(tmp_path).url
    assert here.answer("gc", "failures", "-u", url, "--retry") == {"failures": [], "retried": 0}


def test_a_worker_collects_once_and_ends(here: CommandLine, tmp_path: Path) -> None:
    url = store_with_garbage(tmp_path).url
    told = here.answer("worker", "-u", url, "--once")
    assert told["failed"] == 0 and [job["job"] for job in told["jobs"]].count("gc") == 1
    [run] = here.answer("gc", "status", "-u", url)["status"]["runs"]
    assert told["jobs"][0]["said"].startswith(f"pass {run['number']}: ")


def test_a_worker_packs_what_is_cold(here: CommandLine, tmp_path: Path) -> None:
    store = store_with_garbage(tmp_path)
    everything = {"ANALEMMA_PACK_AFTER_S": "0", "ANALEMMA_PACK_LEAST_BYTES": "0"}
    jobs = here.answer("worker", "-u", store.url, "--once", **everything)["jobs"]
    told = {job["job"]: job["said"] for job in jobs}
    assert "blocks of default into" in told["pack"]
    with store.open() as app:
        assert app.packing.pack(older_than_s=0, dry_run=True).blocks == 0
        assert app.kernel.verify(**PLACE).ok


def test_a_worker_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    store = store_with_garbage(tmp_path)
    worker = subprocess.Popen(
        [PROGRAM, "worker", "-u", store.url],
        env={**os.environ, "ANALEMMA_GC_INTERVAL_S": "1", "ANALEMMA_GC_GRACE_S": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with store.open() as app:
            assert worker.stdout is not None
            passes = (line for line in worker.stdout if line.startswith("gc: pass "))
            assert next(passes, None) and next(passes, None), "it ended before its second pass"
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=120)
            assert worker.returncode == 0
            assert app.gc.status().holder is None
            assert app.kernel.load_latest_state(**PLACE)["n"] == 4
    finally:
        worker.kill()
