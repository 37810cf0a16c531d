"""What people are told when a command on state does not work; nothing is changed by it, and nothing is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, at
from tests.stores import Store

NO_BLOCK = "ab" * 32


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    return at(Store(str(tmp_path / "store")), tmp_path)


SENSELESS: list[tuple[list[str], str | None]] = [
    (["--set", "n=one"], "--set n: not JSON: Expecting value at character 1"),
    (["--set", "n=[1,"], "--set n: not JSON: Expecting value at character 4"),
    (["--set", "n=NaN"], "--set n: not JSON: NaN is no JSON number"),
    (["--set", "n"], "--set n: there is no '='"),
    (["--set", "=1"], "--set =1: there is no name before the '='"),
    (["--set", 'n={"a": 1, "b": {"c": 1, "c": 1}}'], "--set n: an object names the key 'c' twice"),
    (["--set", f"n={'[' * 100_000}"], "--set n: it is nested too deeply to be read"),
    (["--set", "n=1", "--set", "n=2"], "--set n: it is set twice"),
    (["--set", "n=1", "--delete", "n"], "/n is both set and deleted"),
    (["--set", "/no/where=1"], None),
    (["--file", "missing.json"], "cannot read missing.json: No such file or directory"),
    (["--file", "-"], "standard input: not JSON: Expecting value at character 1"),
    (["--set", "n=1", "--previous", "HEAD~x"], None),
    ([], "nothing to change"),
]


def test_a_save_that_makes_no_sense_is_one_line(here: CommandLine) -> None:
    told = [(here.error("invalid", "save", "-w", "trip", *arguments), message) for arguments, message in SENSELESS]
    assert [(found, message) for found, message in told if message not in (None, found)] == []
    here.error("not_found", "load", "-w", "trip")


def test_a_file_that_is_no_object_is_refused(here: CommandLine) -> None:
    assert here.error("invalid", "save", "-w", "trip", "-f", "-", given="[1]") == "standard input: not a JSON object"
    twice = here.error("invalid", "save", "-w", "trip", "-f", "-", given='{"n": 1, "n": 2}')
    assert twice == "standard input: an object names the key 'n' twice"
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
