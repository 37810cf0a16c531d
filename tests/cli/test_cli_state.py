"""The command line on state: saving, loading, looking at values and blocks; one store and one tenant at a time."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import analemma
from tests.cli.command_line import CODES, CommandLine, at
from tests.stores import Store


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    return at(Store(str(tmp_path / "store")), tmp_path)


def test_the_story_of_a_workflow(store: Store, tmp_path: Path) -> None:
    here = at(store, tmp_path)
    first = here.save('goal="Korea"', 'plan=["fly"]')
    assert (first["version"], first["parent_id"]) == (1, None)
    second = here.answer(
        "save", "-w", "trip", "--file", "-", "-d", "goal", "-m", "less", given='{"/plan/0": "sail", "n": 1}'
    )["commit"]
    assert second["parent_id"] == first["manifest_id"]
    assert here.answer("load", "-w", "trip")["state"] == {"plan": ["sail"], "n": 1}
    assert json.loads(here.text("load", "-w", "trip", "--version", "1")) == {"goal": "Korea", "plan": ["fly"]}
    assert here.answer("load", first["manifest_id"], "--field", "/plan/0")["state"] == {"/plan/0": "fly"}

    log = here.answer("log", "-w", "trip")
    assert [(version["version"], version["message"]) for version in log["versions"]] == [(2, "less"), (1, None)]
    assert here.answer("show", "2", "-w", "trip")["version"]["fields"] == 2
    changes = here.answer("diff", first["manifest_id"], second["manifest_id"])["changes"]
    assert here.answer("diff", "1", "2", "-w", "trip")["changes"] == changes
    assert {"op": "remove", "path": "/goal"} in changes
    assert here.answer("blame", "/plan/0", "-w", "trip")["version"]["version"] == 2

    preview = here.answer("rollback", "1", "-w", "trip", "--preview")
    assert {"op": "add", "path": "/goal", "value": "Korea"} in preview["changes"]
    assert here.answer("rollback", "1", "-w", "trip", "--yes")["commit"]["version"] == 3
    assert here.answer("load", "-w", "trip")["state"] == {"goal": "Korea", "plan": ["fly"]}

    forked = here.answer("fork", "2", "-w", "trip", "--to-workflow", "cruise")["commit"]
    assert (forked["version"], forked["parent_id"]) == (1, second["manifest_id"])
    assert here.answer("fork", second["manifest_id"], "--to-branch", "idea")["commit"]["version"] == 3
    assert here.answer("load", "-w", "trip", "--branch", "idea")["state"] == {"plan": ["sail"], "n": 1}
    assert here.answer("verify", "-w", "trip")["report"]["ok"]
    assert here.answer("verify", "-w", "trip", "--receipt", second["receipt"])["report"]["ok"]
    assert here.answer("verify", first["manifest_id"])["report"]["ok"]


def test_for_people_it_prints_lines(here: CommandLine) -> None:
    here.save("n=1")
    assert here.text("save", "-w", "trip", "-s", "n=2", "-m", "second").startswith("version     2\n")
    newest, oldest = here.text("log", "-w", "trip").splitlines()
    assert newest.split()[0] == "2" and newest.endswith("second")
    assert oldest.split()[0] == "1"
    assert "state size" in here.text("show", "2", "-w", "trip")
    assert here.text("diff", "1", "2", "-w", "trip") == "replace /n  2\n"
    assert "version      2" in here.text("blame", "n", "-w", "trip")
    assert "verified   yes" in here.text("verify", "-w", "trip")


def test_rollback_shows_what_changes_and_asks(here: CommandLine) -> None:
    here.save("n=1")
    here.save("n=2")
    declined = here.text("rollback", "1", "-w", "trip", given="no\n")
    assert declined.startswith("replace /n  1\n")
    assert declined.endswith("nothing was changed\n")
    assert here.error("invalid", "rollback", "1", "-w", "trip") == "there is nobody to ask"
    assert here.error("invalid", "rollback", "1", "-w", "trip", given="") == "there is nobody to ask"
    assert len(here.answer("log", "-w", "trip")["versions"]) == 2
    assert "version   3" in here.text("rollback", "1", "-w", "trip", given="yes\n")
    failed = here.run("rollback", "1", "-w", "trip", "--json")
    assert (failed.returncode, json.loads(failed.stderr)["error"]["hint"]) == (2, "add --yes or --preview")


def test_executions_have_versions_of_their_own(here: CommandLine) -> None:
    here.answer("save", "-w", "trip", "-s", "n=1", "--execution", "e1", "--segment", "7")
    here.answer("save", "-w", "trip", "-s", "n=2", "--execution", "e2")
    assert here.answer("load", "-w", "trip", "--execution", "e1")["state"] == {"n": 1}
    versions = here.answer("log", "-w", "trip", "--execution", "e1")["versions"]
    assert [(version["execution_id"], version["segment_id"]) for version in versions] == [("e1", 7)]
    here.error("not_found", "load", "-w", "trip", "--execution", "e3")


def test_the_same_idempotency_key_saves_once(here: CommandLine) -> None:
    save = ("save", "-w", "trip", "-s", "n=1", "--idempotency-key", "k")
    assert here.answer(*save)["commit"]["manifest_id"] == here.answer(*save)["commit"]["manifest_id"]
    assert "another request" in here.error("conflict", *save[:3], "-s", "n=2", "--idempotency-key", "k")


def test_blocks_are_printed_decoded_or_raw(here: CommandLine) -> None:
    commit = here.save("n=1", f'text="{"x" * 20_000}"')
    root = here.answer("cat", commit["root_hash"])["block"]
    assert (root["kind"], root["body"]["n"]) == ("map", 1)
    text = root["body"]["text"]["$link"]
    assert here.answer("cat", text)["block"]["kind"] == "text"
    manifest = json.loads(here.text("cat", commit["manifest_id"]))
    assert manifest["kind"] == "manifest"
    assert manifest["fields"]["root"]["$link"] == commit["root_hash"]
    raw = bytes.fromhex(here.text("cat", commit["root_hash"], "--raw").strip())
    assert len(raw) == root["size"]


def test_tenants_see_nothing_of_each_other(here: CommandLine) -> None:
    commit = here.answer("save", "-w", "trip", "-s", "n=1", "--tenant", "shop")["commit"]
    assert here.answer("load", "-w", "trip", ANALEMMA_TENANT="shop")["state"] == {"n": 1}
    here.error("not_found", "load", "-w", "trip")
    here.error("not_found", "load", commit["manifest_id"])
    here.error("not_found", "cat", commit["root_hash"])


@dataclass
class Place:
    name: str
    tags: set[str]


VALUES: dict[str, Any] = {
    "bytes": b"\0\1",
    "moment": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=ZoneInfo("Asia/Seoul")),
    "day": dt.date(2026, 1, 2),
    "noon": dt.time(12),
    "span": dt.timedelta(days=1, microseconds=5),
    "price": Decimal("1.10"),
    "id": uuid.UUID(int=7),
    "pair": (1, [2]),
    "set": {3, 1, 2},
    "dict": {"$type": "mine"},
    "place": Place("Seoul", {"b", "a"}),
}
SHOWN: dict[str, Any] = {
    "bytes": {"$type": "bytes", "value": "AAE="},
    "moment": {"$type": "datetime", "value": "2026-01-02T03:04:05+09:00", "zone": "Asia/Seoul"},
    "day": {"$type": "date", "value": "2026-01-02"},
    "noon": {"$type": "time", "value": "12:00:00"},
    "span": {"$type": "timedelta", "value": [1, 0, 5]},
    "price": {"$type": "decimal", "value": "1.10"},
    "id": {"$type": "uuid", "value": "00000000-0000-0000-0000-000000000007"},
    "pair": {"$type": "tuple", "value": [1, [2]]},
    "set": {"$type": "set", "value": [1, 2, 3]},
    "dict": {"$type": "dict", "value": {"$type": "mine"}},
    "place": {
        "$type": f"{Place.__module__}:Place",
        "value": {"name": "Seoul", "tags": {"$type": "set", "value": ["a", "b"]}},
    },
}


def test_values_beyond_json_are_printed_tagged(here: CommandLine) -> None:
    with analemma.open(here.variables["ANALEMMA_URL"]) as app:
        app.kernel.save_state_delta(VALUES, workflow_id="trip", owner_id="ann", metadata={"at": dt.date(2026, 1, 2)})
        app.kernel.save_state_delta({"place": None}, workflow_id="trip", owner_id="ann")
    # Another process, that has never seen the class.
    loaded = here.process("load", "-w", "trip", "--version", "1")
    assert (loaded.returncode, loaded.stderr) == (0, "")
    assert json.loads(loaded.stdout) == SHOWN
    assert here.answer("load", "-w", "trip")["state"] == {**SHOWN, "place": None}
    assert here.answer("diff", "2", "1", "-w", "trip")["changes"] == [
        {"op": "replace", "path": "/place", "value": SHOWN["place"]}
    ]
    assert here.answer("show", "1", "-w", "trip")["version"]["metadata"] == {"at": SHOWN["day"]}
    assert here.answer("rollback", "1", "-w", "trip", "--yes")["commit"]["version"] == 3
    here.save("n=1")


def test_two_stores_do_not_mix(here: CommandLine) -> None:
    here.text("init", "other")
    here.save("n=1")
    here.error("not_found", "load", "-w", "trip", "--url", "other")
    here.text("save", "-w", "trip", "-s", "n=2", "--url", "other")
    assert here.answer("load", "-w", "trip")["state"] == {"n": 1}
    assert here.answer("load", "-w", "trip", "--url", "other")["state"] == {"n": 2}


def test_damage_is_found_and_is_the_exit_code(here: CommandLine, tmp_path: Path) -> None:
    large = json.dumps({"noise": random.Random(1).randbytes(400_000).hex()})
    commit = here.answer("save", "-w", "trip", "-f", "-", given=large)["commit"]
    packs = [path for path in (tmp_path / "store" / "objects").rglob("*") if path.is_file()]
    for pack in packs:
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.chmod(0o644)
        pack.write_bytes(data)
    assert packs
    for arguments in (["verify", "-w", "trip"], ["verify", commit["manifest_id"]]):
        found = here.run(*arguments, "--json")
        assert found.returncode == CODES["corrupt"]
        report = json.loads(found.stdout)["report"]
        assert not report["ok"] and report["problems"]
        assert "problem: " in here.run(*arguments).stdout


def test_metadata_is_kept_with_the_version(here: CommandLine) -> None:
    here.text("save", "-w", "trip", "-s", "n=1", "--metadata", '{"by": ["me"]}')
    assert here.answer("show", "1", "-w", "trip")["version"]["metadata"] == {"by": ["me"]}
