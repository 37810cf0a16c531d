"""Collecting and writing in processes of their own: `python -m tests.crash.gc_worker URL OBJECTS JOB SECONDS SEED`."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from typing import Any

from analemma import App
from analemma.errors import AnalemmaError, Conflict, Corrupt, Expired, Invalid, NotFound, Unavailable
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
SETTINGS: dict[str, Any] = {
    "gc_object_delay_s": 0,
    "gc_upload_age_s": 86_400,
    "pack_threshold_bytes": 2000,
    "pack_least_bytes": 0,
    "pack_target_bytes": 65_536,
    "gc_lease_s": 1,
    "cache_bytes": 0,
}
REFUSALS = (Conflict, Expired, NotFound, Invalid, Unavailable)


def text(name: str, length: int) -> str:
    """Text that no compression makes small."""
    return "".join(hashlib.sha256(f"{name} {line}".encode()).hexdigest() for line in range(length // 64))


def collect_once(app: App) -> None:
    app.gc.run(grace_s=0)


def collect(app: App, seconds: float, seed: int) -> None:
    """Pass after pass, with no grace, against whoever else collects."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            report = app.gc.run(grace_s=0)
        except (Conflict, Unavailable):
            time.sleep(0.05)
            continue
        bad = [kind for kind in report.kinds if kind not in ("conflict", "unavailable")]
        if bad:
            raise AssertionError(report.problems)


def pack(app: App, seconds: float, seed: int) -> None:
    """Into packs and into other packs, whatever others do with the same blocks."""
    pick = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if pick.randrange(2):
                report = app.packing.pack(older_than_s=0)
            else:
                report = app.packing.repack(waste=pick.choice((0.1, 0.5)))
        except (Conflict, Unavailable):
            continue
        if report.problems:
            raise AssertionError(report.problems)


def write(app: App, seconds: float, seed: int) -> None:
    """Save, fork, roll back, merge and let expire, with parts that others also write."""
    pick = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name: dict[str, Any] = {"owner_id": "ann", "workflow_id": f"w{pick.randrange(3)}"}
        try:
            choose(app, pick, name)
        except Corrupt:
            raise
        except REFUSALS:
            continue


def choose(app: App, pick: random.Random, name: dict[str, Any]) -> None:
    kernel = app.kernel
    action = pick.randrange(10)
    branch = pick.choice(("main", "side"))
    if action < 5:
        value = [text(f"part {pick.randrange(6)}", 2500), {"deep": text(f"part {pick.randrange(6)}", 2500)}]
        kernel.save_state_delta({pick.choice("abc"): value, "n": pick.random()}, branch=branch, **name)
    elif action == 5:
        versions = kernel.history(**name)
        kernel.rollback_to_version(version=pick.choice(versions).version, **name)
    elif action == 6:
        versions = kernel.history(**name)
        kernel.fork(pick.choice(versions).manifest_id, owner_id="ann", branch=f"fork{pick.randrange(4)}")
    elif action == 7:
        kernel.merge(source="side", **name)
    elif action == 8:
        kernel.checkpoint_async({"c": text(f"part {pick.randrange(6)}", 2500)}, **name)
    else:
        kernel.set_retention(owner_id="ann", keep_last=2)
        kernel.expire_all()


def main() -> None:
    url, objects, job, seconds, seed = sys.argv[1:]
    # Whoever collects alone need not wait for uploads of others.
    settings = {**SETTINGS, "gc_upload_age_s": 0} if job == "once" else SETTINGS
    with Store(url, objects or None).open(**settings) as app:
        print("ready", flush=True)
        try:
            if job == "once":
                collect_once(app)
            elif job == "save":
                app.kernel.save_state_delta({"large": text("late", 8000)}, **PLACE)
            else:
                {"collect": collect, "pack": pack, "write": write}[job](app, float(seconds), int(seed))
        except AnalemmaError as exc:
            print(f"failed: {exc.kind}: {exc}", flush=True)
            raise
        print("done", flush=True)


if __name__ == "__main__":
    main()
