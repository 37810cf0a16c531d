"""The command line on state: what people do with versions, and what they are told when it does not work."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import analemma
from analemma.cli.exit_codes import CODES
from analemma.cli.rendering import to_json
from analemma.state.kernel import Kernel
from tests.acceptance.command_line import CommandLine, at
from tests.stores import Store

NO_BLOCK = "ab" * 32


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


def test_a_log_is_read_page_by_page(here: CommandLine) -> None:
    for number in range(5):
        here.save(f"n={number}")
    first = here.answer("log", "-w", "trip", "--limit", "2")
    second = here.answer("log", "-w", "trip", "--limit", "2", "--after", str(first["after"]))
    third = here.answer("log", "-w", "trip", "--limit", "2", "--after", str(second["after"]))
    pages = [[version["version"] for version in page["versions"]] for page in (first, second, third)]
    assert pages == [[5, 4], [3, 2], [1]]
    assert third["after"] is None


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
    assert to_json({name: value for name, value in VALUES.items() if name != "place"}) == {
        name: value for name, value in SHOWN.items() if name != "place"
    }
    assert here.answer("diff", "2", "1", "-w", "trip")["changes"] == [
        {"op": "replace", "path": "/place", "value": SHOWN["place"]}
    ]
    assert here.answer("show", "1", "-w", "trip")["version"]["metadata"] == {"at": SHOWN["day"]}
    assert here.answer("rollback", "1", "-w", "trip", "--yes")["commit"]["version"] == 3
    here.save("n=1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "n=one"], "--set n: not JSON: Expecting value at character 1"),
        (["--set", "n=[1,"], "--set n: not JSON: Expecting value at character 4"),
        (["--set", "n=NaN"], "--set n: not JSON: NaN is no JSON number"),
        (["--set", "n"], "--set n: there is no '='"),
        (["--set", "n=1", "--set", "n=2"], "--set n: it is set twice"),
        (["--set", "n=1", "--delete", "n"], "/n is both set and deleted"),
        (["--set", "/no/where=1"], None),
        (["--file", "missing.json"], "cannot read missing.json: No such file or directory"),
        (["--file", "-"], "standard input: not JSON: Expecting value at character 1"),
        (["--set", "n=1", "--previous", "1"], "not a block id: '1'"),
        ([], "nothing to change"),
    ],
)
def test_a_save_that_makes_no_sense_is_one_line(
    arguments: Sequence[str], message: str | None, here: CommandLine
) -> None:
    told = here.error("invalid", "save", "-w", "trip", *arguments)
    assert message is None or told == message
    here.error("not_found", "load", "-w", "trip")


def test_a_file_that_is_no_object_is_refused(here: CommandLine) -> None:
    assert here.error("invalid", "save", "-w", "trip", "-f", "-", given="[1]") == "standard input: not a JSON object"
    (here.directory / "two.json").write_text('{\n  "n": 1,\n}')
    told = here.error("invalid", "save", "-w", "trip", "-f", "two.json")
    assert told.startswith("two.json: not JSON: ") and "line " in told


def test_a_save_on_a_moved_head_changes_nothing(here: CommandLine) -> None:
    first = here.save("n=1")["manifest_id"]
    here.save("n=2")
    save = ("save", "-w", "trip", "-s", "n=3")
    assert "it is at version 2" in here.error("head_moved", *save, "--previous", first)
    here.error("head_moved", *save, "--previous", "none")
    failed = json.loads(here.run(*save, "--previous", first, "--json").stderr)["error"]
    assert (failed["kind"], failed["found"]["version"], failed["expected"]) == ("head_moved", 2, first)
    assert here.answer("load", "-w", "trip")["state"] == {"n": 2}


def test_what_is_not_there_is_not_found(here: CommandLine) -> None:
    here.save("n=1")
    for arguments in (
        ["load", "-w", "nope"],
        ["log", "-w", "nope"],
        ["log", "-w", "trip", "-b", "nope"],
        ["load", NO_BLOCK],
        ["load", "-w", "trip", "--version", "2"],
        ["load", "-w", "trip", "--field", "m"],
        ["show", NO_BLOCK],
        ["show", "9" * 19, "-w", "trip"],
        ["cat", NO_BLOCK],
        ["diff", "1", NO_BLOCK, "-w", "trip"],
        ["blame", "m", "-w", "trip"],
        ["rollback", "2", "-w", "trip", "--yes"],
        ["fork", NO_BLOCK, "--to-branch", "b"],
        ["verify", "-w", "nope"],
        ["verify", NO_BLOCK],
        ["load", "-w", "trip", "-o", "bob"],
        ["branches", "-w", "nope"],
        ["children", NO_BLOCK],
        ["workflow", "show", "-w", "nope"],
        ["workflow", "set", "-w", "nope", "--name", "n"],
        ["segments", "show", NO_BLOCK],
        ["retention", "expire", "-w", "nope"],
    ):
        here.error("not_found", *arguments)


def test_a_command_that_is_not_clear_is_refused(here: CommandLine) -> None:
    manifest = here.save("n=1")["manifest_id"]
    for arguments in (
        ["load"],
        ["load", manifest, "--version", "1"],
        ["load", "-w", "trip", "--version", "0"],
        ["show", "1"],
        ["cat", "xyz"],
        ["fork", manifest],
        ["fork", manifest, "--to-branch", "b", "--to-workflow", "w"],
        ["verify"],
        ["verify", "-w", "trip", "--receipt", "00"],
        ["log", "-w", "trip", "--limit", "0"],
        ["log", "-w", "trip", "--since", "yesterday"],
        ["log", "-w", "trip", "--decision", "perhaps"],
        ["log", "-w", "trip", "--segment", "x"],
        ["blame", "\udc80", "-w", "trip"],
        ["load", "-w", "trip", "--field", "/\udc80"],
        ["load", "-w", "\udc80"],
        ["save", "-w", "trip", "-s", "n=1", "--metadata", "[1]"],
        ["save", "-w", "trip", "-s", "n=1", "--metadata", "{"],
        ["rollback", "-w", "trip", "--yes"],
        ["rollback", "1", "-w", "trip", "--to-last-safe", "--yes"],
        ["workflow", "set", "-w", "trip"],
        ["workflow", "set", "-w", "trip", "--status", "ODD"],
        ["workflow", "nonsense"],
        ["segments", "create", "-w", "trip", "--config", "-", "--segments", "-"],
        ["segments", "create", "-w", "trip", "--config", "missing.json", "--segments", "-"],
        ["segments", "show"],
        ["segments", "verify", manifest, "--index", "0", "--config", "missing.json"],
        ["retention", "set", "-w", "trip"],
        ["retention", "set", "-w", "trip", "--keep-last", "1", "--keep-everything"],
        ["retention", "set", "-w", "trip", "--keep-last", "0"],
        ["retention", "expire"],
        ["retention", "expire", "--all", "-w", "trip"],
    ):
        here.error("invalid", *arguments)
    assert "--owner" in here.error("invalid", "log", "-w", "trip", ANALEMMA_OWNER="")


def test_a_fork_to_what_exists_is_a_conflict(here: CommandLine) -> None:
    manifest = here.save("n=1")["manifest_id"]
    here.save("n=1", workflow="other")
    here.error("conflict", "fork", manifest, "--to-workflow", "other")


def test_the_store_must_be_named_and_exist(here: CommandLine, tmp_path: Path) -> None:
    assert here.error("invalid", "load", "-w", "trip", ANALEMMA_URL="") == "no store is named"
    here.error("not_found", "save", "-w", "trip", "-s", "n=1", "-u", "nowhere")
    assert not (tmp_path / "nowhere").exists()


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


def test_tags_name_versions_wherever_one_is_typed(here: CommandLine) -> None:
    first = here.save("n=1")
    here.save("n=2")
    tagged = here.answer("tag", "-w", "trip", "before/booking", "1", "-m", "why")["tags"]
    assert [(tag["name"], tag["version"], tag["message"]) for tag in tagged] == [("before/booking", 1, "why")]
    assert here.answer("show", "before/booking", "-w", "trip")["version"]["manifest_id"] == first["manifest_id"]
    assert here.answer("diff", "before/booking", "2", "-w", "trip")["changes"]
    here.error("conflict", "tag", "-w", "trip", "before/booking", "2")
    here.text("tag", "-w", "trip", "before/booking", "2", "--force")
    assert "version 2 on main" in here.text("tag", "-w", "trip")
    here.text("tag", "-w", "trip", "before/booking", "--delete")
    assert here.answer("tag", "-w", "trip")["tags"] == []
    here.error("not_found", "show", "before/booking", "-w", "trip")
    here.error("invalid", "tag", "-w", "trip", "name")


def test_pinned_and_kept_versions_do_not_expire(here: CommandLine) -> None:
    for number in range(6):
        here.save(f"n={number}")
    assert here.answer("pin", "-w", "trip", "2", "--reason", "sent")["pins"][0]["reason"] == "sent"
    assert here.text("retention", "show", "-w", "trip") == "keeps  everything\n"
    assert here.text("retention", "set", "-w", "trip", "--keep-last", "2") == "keep last  2\n"
    assert here.answer("retention", "show", "-w", "trip")["policy"]["keep_last"] == 2
    planned = here.answer("retention", "expire", "-w", "trip", "--dry-run")["expired"]
    assert [version["version"] for version in planned] == [4, 3, 1]
    assert here.answer("retention", "expire", "-w", "trip")["expired"] == planned
    assert [version["version"] for version in here.answer("log", "-w", "trip")["versions"]] == [6, 5, 2]
    assert here.answer("verify", "-w", "trip")["report"]["ok"]
    here.text("pin", "-w", "trip", "2", "--remove")
    assert here.answer("pin", "-w", "trip")["pins"] == []
    here.text("retention", "set", "-w", "trip", "--keep-everything")
    assert here.answer("retention", "expire", "-w", "trip")["expired"] == []
    here.error("expired", "show", "1", "-w", "trip")
    here.error("expired", "load", planned[0]["manifest_id"])


def test_versions_of_all_workflows_expire_at_once(here: CommandLine) -> None:
    for workflow in ("trip", "other", "kept"):
        for number in range(3):
            here.save(f"n={number}", workflow=workflow)
    here.text("retention", "set", "--keep-last", "1")
    here.text("retention", "set", "-w", "kept", "--keep-everything")
    planned = here.answer("retention", "expire", "--all", "--dry-run")
    assert planned["dry_run"]
    assert [(each["workflow_id"], each["expired"]) for each in planned["branches"]] == [("other", 2), ("trip", 2)]
    shown = here.text("retention", "expire", "--all", ANALEMMA_OWNER="")
    assert shown == "ann/other on main: 2 versions expired\nann/trip on main: 2 versions expired\n"
    assert here.answer("retention", "expire", "--all")["branches"] == []
    assert len(here.answer("log", "-w", "kept")["versions"]) == 3


def test_decisions_are_recorded(here: CommandLine) -> None:
    here.save("n=1")
    here.text("decide", "1", "escalated", "-w", "trip")
    here.text("decide", "1", "approved", "-w", "trip", "--actor", "bob", "--score", "0.5", "--reason", "fine")
    decisions = here.answer("decide", "1", "-w", "trip")["decisions"]
    assert [(decision["decision"], decision["actor"]) for decision in decisions] == [
        ("escalated", "ann"),
        ("approved", "bob"),
    ]
    here.error("invalid", "decide", "1", "perhaps", "-w", "trip")


def test_workflows_are_listed_page_by_page(here: CommandLine) -> None:
    for name in ("a", "b", "c"):
        here.save("n=1", workflow=name)
    first = here.answer("workflow", "list", "--limit", "2")
    second = here.answer("workflow", "list", "--limit", "2", "--cursor", first["cursor"])
    assert [each["workflow_id"] for each in first["workflows"] + second["workflows"]] == ["a", "b", "c"]
    assert second["cursor"] is None
    assert here.answer("workflow", "list", "--prefix", "b")["workflows"][0]["version"] == 1
    assert len(here.text("workflow", "list").splitlines()) == 3
    here.error("invalid", "workflow", "list", "--status", "ODD")


def test_a_workflow_has_a_name_and_a_status(here: CommandLine) -> None:
    manifest = here.save("n=1")["manifest_id"]
    assert here.answer("workflow", "set", "-w", "trip", "--name", "To Seoul", "--status", "RUNNING")["workflow"][
        "name"
    ] == ("To Seoul")
    shown = here.answer("workflow", "show", "-w", "trip")["workflow"]
    assert (shown["status"], shown["version"], shown["manifest_id"]) == ("RUNNING", 1, manifest)
    assert "status       RUNNING" in here.text("workflow", "show", "-w", "trip")
    assert [each["workflow_id"] for each in here.answer("workflow", "list", "--prefix", "To")["workflows"]] == ["trip"]


def test_branches_and_children_are_listed(here: CommandLine) -> None:
    first = here.save("n=1")["manifest_id"]
    second = here.save("n=2")["manifest_id"]
    fork = here.answer("fork", "1", "-w", "trip", "--to-branch", "idea")["commit"]["manifest_id"]
    copy = here.answer("fork", "1", "-w", "trip", "--to-workflow", "copy")["commit"]["manifest_id"]
    listed = here.answer("branches", "-w", "trip")["branches"]
    assert [(each["name"], each["version"], each["parent_id"]) for each in listed] == [
        ("main", 2, None),
        ("idea", 2, first),
    ]
    assert here.text("branches", "-w", "trip").splitlines()[1] == f"idea  version 2  {fork}  from {first}"
    for named in ([first], ["1", "-w", "trip"]):
        children = here.answer("children", *named)["children"]
        assert {each["manifest_id"] for each in children} == {second, fork, copy}
    assert here.answer("children", second)["children"] == []
    assert here.text("children", first).startswith("ann/trip on main      2  ")


def test_a_log_is_of_whatever_is_asked_for(here: CommandLine) -> None:
    for number in range(4):
        here.answer(
            "save", "-w", "trip", "-s", f"n={number}", "--segment", str(number % 2), "--execution", f"e{number}"
        )
    here.answer("fork", "2", "-w", "trip", "--to-branch", "idea")
    moments = {each["version"]: each["created_at"] for each in here.answer("log", "-w", "trip")["versions"]}
    for version, decision in ((1, "approved"), (3, "rejected"), (3, "approved"), (4, "pending")):
        here.text("decide", str(version), decision, "-w", "trip")

    def log(*options: str) -> list[int]:
        return [each["version"] for each in here.answer("log", "-w", "trip", *options)["versions"]]

    assert log("--segment", "0") == [3, 1]
    assert log("--execution", "e1") == [2]
    assert log("--branch", "idea") == [3]
    assert log("--decision", "approved") == [3, 1]
    assert log("--decision", "approved", "--limit", "1") == [3]
    assert log("--decision", "approved", "--after", "3") == [1]
    assert log("--decision", "rejected") == []
    assert log("--since", moments[3]) == [4, 3]
    assert log("--until", moments[3]) == [2, 1]
    assert log("--since", moments[2], "--until", moments[4], "--segment", "0") == [3]
    assert log("--since", "2020-01-01") == [4, 3, 2, 1]
    assert log("--until", "2020-01-01T00:00") == []


def test_the_way_back_to_the_newest_approved_version(here: CommandLine) -> None:
    here.save("n=1")
    second = here.save("n=2")["manifest_id"]
    rollback = ("rollback", "-w", "trip", "--to-last-safe")
    here.error("not_found", *rollback, "--yes")
    here.text("decide", "1", "approved", "-w", "trip")
    preview = here.answer(*rollback, "--preview")
    assert (preview["version"], preview["previous_manifest_id"]) == (1, second)
    here.save("n=3")
    here.error("head_moved", *rollback, "--yes", "--previous", second)
    here.error("head_moved", "rollback", "1", "-w", "trip", "--preview", "--previous", second)
    assert here.answer(*rollback, "--yes")["commit"]["version"] == 4
    assert here.answer("load", "-w", "trip")["state"] == {"n": 1}


def test_metadata_is_kept_with_the_version(here: CommandLine) -> None:
    here.text("save", "-w", "trip", "-s", "n=1", "--metadata", '{"by": ["me"]}')
    assert here.answer("show", "1", "-w", "trip")["version"]["metadata"] == {"by": ["me"]}


def test_what_a_workflow_runs(here: CommandLine) -> None:
    config = {"name": "trip"}
    segments: list[dict[str, Any]] = [{"node": "plan"}, {"id": 7, "segment_config": {"node": "book"}}]
    (here.directory / "config.json").write_text(json.dumps(config))
    (here.directory / "segments.json").write_text(json.dumps(segments))
    (here.directory / "book.json").write_text('{"node": "book"}')
    create = ("segments", "create", "-w", "trip", "--config", "config.json")
    made = here.answer(*create, "--segments", "segments.json")["manifest"]
    assert (made["version"], made["hash_version"], made["metadata"]["segment_count"]) == (1, 1, 2)
    here.save("n=1")
    for named in ([], ["2"], [made["manifest_id"]]):
        shown = here.answer("segments", "show", "-w", "trip", *named)
        assert (shown["config"], shown["segments"]) == (config, segments)
    assert "segment 1  " in here.text("segments", "show", "-w", "trip")

    verify = ("segments", "verify", "2", "-w", "trip", "--config", "book.json")
    assert here.answer(*verify, "--index", "1")["verified"]
    for index in ("0", "2", "-1"):
        refused = here.run(*verify, "--index", index, "--json")
        assert (refused.returncode, json.loads(refused.stdout)["verified"]) == (CODES["conflict"], False)

    inject = ("segments", "inject", "2", "-w", "trip", "--config", "-", "--expected-hash-version", "1")
    grown = here.answer(*inject, "--at", "0", given='{"node": "ask"}')["manifest"]
    assert (grown["version"], grown["hash_version"]) == (3, 2)
    assert [each.get("node") for each in here.answer("segments", "show", "-w", "trip")["segments"]] == [
        "ask",
        "plan",
        None,
    ]
    here.error("conflict", *inject, "--at", "0", given='{"node": "ask"}')
    stale = (*create, "--segments", "segments.json", "--parent", made["manifest_id"])
    here.error("head_moved", *stale)
    assert here.answer("segments", "show", "-w", "trip")["manifest"]["hash_version"] == 2


def test_a_tenant_that_is_mistyped_is_not_made(here: CommandLine) -> None:
    manifest = here.answer("save", "-w", "trip", "-s", "n=1", "--tenant", "shop")["commit"]["manifest_id"]
    tenants = here.answer("status")["stats"]["tenants"]
    (here.directory / "one.json").write_text("{}")
    wrong = ("-w", "trip", "--tenant", "shpo")
    for arguments in (
        ["load", *wrong],
        ["log", *wrong],
        ["show", "1", *wrong],
        ["verify", *wrong],
        ["cat", manifest, "--tenant", "shpo"],
        ["diff", "1", "1", *wrong],
        ["blame", "n", *wrong],
        ["rollback", "1", *wrong, "--yes"],
        ["fork", manifest, "--to-branch", "b", "--tenant", "shpo"],
        ["merge", "b", *wrong],
        ["branches", *wrong],
        ["children", "1", *wrong],
        ["watch", *wrong, "--timeout", "0"],
        ["tag", *wrong],
        ["pin", *wrong],
        ["decide", "1", "approved", *wrong],
        ["workflow", "list", "--tenant", "shpo"],
        ["workflow", "show", *wrong],
        ["workflow", "set", *wrong, "--name", "n"],
        ["segments", "show", *wrong],
        ["segments", "verify", "1", *wrong, "--index", "0", "--config", "one.json"],
        ["segments", "inject", "1", *wrong, "--at", "0", "--config", "one.json"],
        ["retention", "show", *wrong],
        ["retention", "expire", *wrong],
        ["retention", "expire", "--all", "--tenant", "shpo"],
    ):
        assert here.error("not_found", *arguments) == "there is no tenant 'shpo'", arguments
    assert here.answer("status")["stats"]["tenants"] == tenants
    assert "there is no tenant" in here.error("not_found", "log", "-w", "trip", ANALEMMA_TENANT="shpo")
    assert here.answer("workflow", "list")["workflows"] == []


def test_words_that_group_commands_list_them(here: CommandLine) -> None:
    for group, command in (("workflow", "list"), ("segments", "inject"), ("retention", "expire")):
        assert command in here.text(group)


def test_a_watcher_is_shown_every_version(here: CommandLine) -> None:
    here.save("n=1")
    here.save("n=2")
    lines = here.text("watch", "-w", "trip", "--since", "0", "--timeout", "0", "--json").splitlines()
    assert [json.loads(line)["version"]["version"] for line in lines] == [1, 2]
    assert here.text("watch", "-w", "trip", "--timeout", "0.01") == ""


def test_branches_are_merged(here: CommandLine) -> None:
    base = here.save("a=1", "b=1", "c=1")["manifest_id"]
    here.answer("fork", base, "--to-branch", "idea")
    here.answer("save", "-w", "trip", "-b", "idea", "-s", "b=2", "-s", "c=2")
    here.save("a=3", "c=3")
    merge = ("merge", "-w", "trip", "idea")
    preview = here.answer(*merge, "--preview")["merge"]
    assert (preview["commit"], [conflict["path"] for conflict in preview["conflicts"]]) == (None, ["/c"])
    here.error("conflict", *merge)
    merged = here.answer(*merge, "--strategy-for", "c=last_write_wins")["merge"]
    assert merged["commit"]["version"] == 3
    assert here.answer("load", "-w", "trip")["state"] == {"a": 3, "b": 2, "c": 2}
    assert here.text(*merge) == "main has everything already\n"
    here.error("invalid", *merge, "--strategy", "coin")
    here.error("not_found", "merge", "-w", "trip", "nope")


WITHOUT_A_COMMAND = {
    "load_latest_state": "`load` names the version that it prints, so it finds that first",
    "last_safe_manifest": "`rollback --to-last-safe --preview` and `log --decision approved` tell it",
    "verify_manifest_integrity": "`verify` with a manifest also says what is wrong",
    "checkpoint_async": "a command ends when its save has happened",
    "load_state_with_consistency": "tickets are for programs",
    "ticket": "tickets are for programs",
    "wait_for": "tickets are for programs",
}


def test_every_verb_of_the_kernel_has_a_command() -> None:
    folder = Path(analemma.__file__).parent / "cli"
    called = set(re.findall(r"kernel\.(\w+)\(", "".join(path.read_text() for path in folder.glob("*_commands.py"))))
    verbs = {name for name, _ in inspect.getmembers(Kernel, inspect.isfunction) if not name.startswith("_")}
    assert verbs - called == verbs & WITHOUT_A_COMMAND.keys()
