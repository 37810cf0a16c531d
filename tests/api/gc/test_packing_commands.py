"""The real commands: pack, and export lifecycle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests import programs
from tests.api.gc.packing_stores import block_rows, converse, query, states
from tests.stores import Store


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, "-m", "analemma", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ANALEMMA_PACK_LEAST_BYTES": "0", "ANALEMMA_PACK_TARGET_BYTES": "65536", **environment},
    )


def at(store: Store) -> list[str]:
    return ["-u", store.url, *(["--objects", store.objects] if store.objects else [])]


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_pack_and_repack(store: Store) -> None:
    with store.open() as app:
        converse(app, versions=10)
        expected, rows = states(app), block_rows(store)
    plan = answer(command("pack", *at(store), "--older-than", "0", "--dry-run", "--json"))
    assert plan["dry_run"] and plan["blocks"] == len(rows) and block_rows(store) == rows
    fresh = command("pack", *at(store))
    assert (fresh.returncode, fresh.stdout) == (0, "moved  0 blocks\n")
    packed = command("pack", *at(store), "--older-than", "0")
    assert packed.stdout.startswith("moved") and f"{len(rows)} blocks" in packed.stdout and "packs" in packed.stdout
    assert {row[2] is None for row in block_rows(store).values()} == {True}
    assert answer(command("pack", *at(store), "--repack", "--json"))["blocks"] == 0
    with store.open(cache_bytes=0) as app:
        assert states(app) == expected


def test_what_cannot_be_read_is_an_error(store: Store) -> None:
    with store.open() as app:
        converse(app, versions=3)
    damaged = min(block_rows(store))
    query(store, "UPDATE block SET body = ? WHERE id = ?", b"damaged", damaged)
    done = command("pack", *at(store), "--older-than", "0", "--json")
    assert done.returncode == 6 and damaged.hex() in done.stdout
    assert json.loads(done.stderr)["error"]["kind"] == "corrupt"


def test_options_that_contradict_each_other_are_refused(store: Store) -> None:
    store.open().close()
    for options in (["--waste", "0.2"], ["--repack", "--older-than", "3"]):
        done = command("pack", *at(store), *options)
        assert done.returncode == 2 and "hint:" in done.stderr


def test_lifecycle_rules_are_printed_for_the_clouds_own_tools() -> None:
    done = command("export", "lifecycle", "--bucket", "s3://shop/states", "--orphan-days", "3")
    rules = answer(done)["Rules"]
    assert rules[0]["Filter"]["And"]["Tags"] == [{"Key": "status", "Value": "orphan"}]
    assert "put-bucket-lifecycle-configuration --bucket shop" in done.stderr
    whole = answer(command("export", "lifecycle", "--json", ANALEMMA_OBJECTS="gs://shop?secret=hidden"))
    assert whole["bucket"] == {"name": "shop", "prefix": "", "format": "gcs"} and "hidden" not in json.dumps(whole)
    assert command("export", "lifecycle", ANALEMMA_OBJECTS="/srv/objects").returncode == 2
    assert command("export", "lifecycle").returncode == 2
