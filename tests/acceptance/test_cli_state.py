"""The real command line on state: what people do with versions, and what they are told when it does not work."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import pytest

import analemma
from analemma.cli.exit_codes import CODES
from analemma.cli.rendering import to_json
from analemma.cli.running import run
from tests.stores import Store

NO_BLOCK = "ab" * 32


@dataclass(frozen=True)
class CommandLine:
    """One user at one store."""

    directory: Path
    variables: dict[str, str]

    def run(self, *arguments: str, given: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANALEMMA_")}
        return subprocess.run(
            [Path(sys.executable).with_name("analemma"), *arguments],
            cwd=self.directory,
            env=environment | self.variables | variables,
            input=given or "",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def text(self, *arguments: str, given: str | None = None, **variables: str) -> str:
        done = self.run(*arguments, given=given, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def answer(self, *arguments: str, given: str | None = None, **variables: str) -> Any:
        return json.loads(self.text(*arguments, "--json", given=given, **variables))

    def save(self, *assignments: str, workflow: str = "trip") -> Any:
        options = [part for assignment in assignments for part in ("--set", assignment)]
        return self.answer("save", "--workflow", workflow, *options)["commit"]

    def error(self, kind: str, *arguments: str, given: str | None = None, **variables: str) -> str:
        """The error line of a command that must fail with this kind, and with at most a hint besides."""
        done = self.run(*arguments, given=given, **variables)
        assert done.returncode == CODES[kind], done.stderr or done.stdout
        lines = done.stderr.splitlines()
        assert lines[0].startswith("error: ")
        assert [line[:6] for line in lines[1:]] in ([], ["hint: "])
        return lines[0].removeprefix("error: ")


class Fails(Protocol):
    """Runs a command line in this process, which must fail with this kind; gives the error line."""

    def __call__(self, kind: str, *arguments: str) -> str: ...


@pytest.fixture
def fails(here: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fails:
    """For long lists of mistakes, since a process for each would take its time."""
    monkeypatch.chdir(here.directory)
    for name, value in here.variables.items():
        monkeypatch.setenv(name, value)

    def run_and_fail(kind: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        assert run(arguments) == CODES[kind], arguments
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("error: ")
        assert [line[:6] for line in lines[1:]] in ([], ["hint: "])
        return lines[0].removeprefix("error: ")

    return run_and_fail


def at(store: Store, directory: Path) -> CommandLine:
    variables = {"ANALEMMA_URL": store.url, "ANALEMMA_OWNER": "ann"}
    if store.objects is not None:
        variables["ANALEMMA_OBJECTS"] = store.objects
    line = CommandLine(directory, variables)
    line.text("init")
    return line


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
    assert here.answer("load", "-w", "trip", "--version", "1")["state"] == SHOWN
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
def test_a_save_that_makes_no_sense_is_one_line(arguments: Sequence[str], message: str | None, fails: Fails) -> None:
    told = fails("invalid", "save", "-w", "trip", *arguments)
    assert message is None or told == message
    fails("not_found", "load", "-w", "trip")


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


def test_what_is_not_there_is_not_found(here: CommandLine, fails: Fails) -> None:
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
    ):
        fails("not_found", *arguments)


def test_a_command_that_is_not_clear_is_refused(here: CommandLine, fails: Fails) -> None:
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
    ):
        fails("invalid", *arguments)
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
    assert here.text("retention", "-w", "trip") == "keeps  everything\n"
    here.text("retention", "-w", "trip", "--keep-last", "2")
    planned = here.answer("retention", "-w", "trip", "--expire", "--dry-run")["expired"]
    assert [version["version"] for version in planned] == [4, 3, 1]
    assert here.answer("retention", "-w", "trip", "--expire")["expired"] == planned
    assert [version["version"] for version in here.answer("log", "-w", "trip")["versions"]] == [6, 5, 2]
    assert here.answer("verify", "-w", "trip")["report"]["ok"]
    here.text("pin", "-w", "trip", "2", "--remove")
    assert here.answer("pin", "-w", "trip")["pins"] == []
    here.text("retention", "-w", "trip", "--keep-everything")
    assert here.answer("retention", "-w", "trip", "--expire")["expired"] == []
    here.error("invalid", "retention", "--expire")


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
    first = here.answer("workflows", "--limit", "2")
    second = here.answer("workflows", "--limit", "2", "--cursor", first["cursor"])
    assert [each["workflow_id"] for each in first["workflows"] + second["workflows"]] == ["a", "b", "c"]
    assert second["cursor"] is None
    assert here.answer("workflows", "--prefix", "b")["workflows"][0]["version"] == 1
    assert len(here.text("workflows").splitlines()) == 3
    here.error("invalid", "workflows", "--status", "ODD")


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


def test_the_command_line_starts_without_what_it_may_not_need() -> None:
    program = "import sys, analemma.cli.running; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    slow = {"analemma.app", "libipld", "obstore", "orjson", "psycopg", "pydantic", "sqlite3", "zstandard"}
    assert not slow & set(loaded.stdout.split())
