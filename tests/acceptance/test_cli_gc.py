"""`analemma gc` and `analemma worker` as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.stores import Store, local
from tests.unit.gc.collections import PLACE, expire_all_but_newest, save_versions, script


def analemma(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("analemma"), *arguments], capture_output=True, text=True, timeout=60
    )


def answer(*arguments: str) -> Any:
    done = analemma(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def store_with_garbage(tmp_path: Path) -> Store:
    store = local(tmp_path)
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
    return store


def test_a_dry_run_tells_what_a_run_then_deletes(tmp_path: Path) -> None:
    url = store_with_garbage(tmp_path).url
    first = answer("gc", "run", "-u", url, "--grace", "0")["report"]
    dry = answer("gc", "run", "-u", url, "--grace", "0", "--dry-run")["plan"]["tenants"][0]
    assert dry["to_delete"] == first["doomed"] > 0
    shown = analemma("gc", "plan", "-u", url, "--grace", "0").stdout
    assert f"{dry['to_delete']} blocks would be deleted ({dry['delete_bytes']} bytes)" in shown
    done = answer("gc", "run", "-u", url, "--grace", "0")["report"]
    assert (done["deleted"], done["bytes"]) == (dry["to_delete"], dry["delete_bytes"])
    status = answer("gc", "status", "-u", url)["status"]
    assert [run["number"] for run in status["runs"]] == [2, 1] and status["runs"][0]["deleted"] == done["deleted"]


def test_a_plan_that_was_written_down_can_be_carried_out(tmp_path: Path) -> None:
    url, file = store_with_garbage(tmp_path).url, str(tmp_path / "plan.json")
    answer("gc", "run", "-u", url, "--grace", "0")
    plan = answer("gc", "plan", "-u", url, "--grace", "0", "--out", file)["plan"]
    assert answer("gc", "run", "-u", url, "--plan", file)["report"]["deleted"] == plan["tenants"][0]["to_delete"]
    bad = analemma("gc", "run", "-u", url, "--plan", os.devnull)
    assert bad.returncode == 2 and "this is no plan" in bad.stderr


def test_a_brake_shows_in_the_exit_code_and_says_why(tmp_path: Path) -> None:
    store = store_with_garbage(tmp_path)
    with store.open() as app:
        script(app, "DELETE FROM head; DELETE FROM manifest")
    stopped = analemma("gc", "run", "-u", store.url, "--grace", "0")
    assert stopped.returncode == 9 and "nothing that leads to any of them" in stopped.stdout
    assert analemma("gc", "run", "-u", store.url, "--grace", "0", "--force").returncode == 0


def test_failures_are_listed(tmp_path: Path) -> None:
    url = store_with_garbage(tmp_path).url
    assert answer("gc", "failures", "-u", url, "--retry") == {"failures": [], "retried": 0}


def test_a_worker_collects_once_and_ends(tmp_path: Path) -> None:
    url = store_with_garbage(tmp_path).url
    told = answer("worker", "-u", url, "--once")
    assert told["failed"] == 0 and told["jobs"][0]["job"] == "gc" and "pass 1" in told["jobs"][0]["said"]


def test_a_worker_packs_what_is_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with_garbage(tmp_path)
    monkeypatch.setenv("ANALEMMA_PACK_AFTER_S", "0")
    monkeypatch.setenv("ANALEMMA_PACK_LEAST_BYTES", "0")
    told = {job["job"]: job["said"] for job in answer("worker", "-u", store.url, "--once")["jobs"]}
    assert "blocks of default into" in told["pack"]
    with store.open() as app:
        assert app.packing.pack(older_than_s=0, dry_run=True).blocks == 0
        assert app.kernel.verify(**PLACE).ok


def test_a_worker_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    store = store_with_garbage(tmp_path)
    worker = subprocess.Popen(
        [Path(sys.executable).with_name("analemma"), "worker", "-u", store.url],
        env={**os.environ, "ANALEMMA_GC_INTERVAL_S": "1", "ANALEMMA_GC_GRACE_S": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with store.open() as app:
            deadline = time.monotonic() + 30
            while app.gc.status().newest < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            worker.send_signal(signal.SIGTERM)
            said, _ = worker.communicate(timeout=20)
            assert worker.returncode == 0 and "gc: pass 2" in said
            assert app.gc.status().holder is None
            assert app.kernel.load_latest_state(**PLACE)["n"] == 4
    finally:
        worker.kill()
