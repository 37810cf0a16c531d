"""One grammar of revisions in every command that takes a version, and where versions come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, at
from tests.stores import Store

W = ("-w", "trip")


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    """Three versions, the first tagged, and a branch from the second with one more."""
    line = at(Store(str(tmp_path / "store")), tmp_path)
    for number in (1, 2, 3):
        line.save(f"n={number}")
    line.text("tag", "good", "HEAD~2", *W)
    line.text("fork", "HEAD~1", *W, "--to-branch", "side")
    line.text("save", *W, "-b", "side", "--set", "side=true")
    return line


def test_every_command_that_takes_a_version_takes_a_revision(here: CommandLine) -> None:
    newest = here.answer("show", "HEAD", *W)["version"]["manifest_id"]
    assert here.answer("load", "HEAD~1", *W)["state"] == {"n": 2}
    assert here.answer("load", "good", *W)["version"]["version"] == 1
    assert here.answer("load", newest[:9])["state"] == {"n": 3}
    assert here.answer("load", "side@4", *W)["state"] == {"n": 2, "side": True}
    assert here.answer("load", "@{2999-01-01}", *W)["version"]["version"] == 3
    assert here.answer("diff", "good", "HEAD", *W)["changes"] == [{"op": "replace", "path": "/n", "value": 3}]
    assert here.answer("children", "HEAD~2", *W)["children"][0]["version"] == 2
    assert here.answer("verify", "side~1", *W)["report"]["ok"]
    assert here.answer("pin", "side", *W)["pins"][0]["branch"] == "side"
    assert here.answer("pin", "side@4", *W, "--remove") == {
        "removed": here.answer("load", "side", *W)["version"]["manifest_id"]
    }
    assert here.answer("decide", "HEAD~", "approved", *W)["decisions"][0]["decision"] == "approved"
    assert [each["version"] for each in here.answer("log", *W, "--after", "HEAD~1")["versions"]] == [1]
    assert [each["version"] for each in here.answer("log", *W, "--after", "3")["versions"]] == [2, 1]
    assert here.answer("segments", "show", "HEAD~1", *W)["manifest"]["version"] == 2
    watched = here.text("watch", *W, "--since", "HEAD~2", "--timeout", "0").splitlines()
    assert [int(line.split()[0]) for line in watched] == [2, 3]
    assert here.answer("save", *W, "--set", "n=4", "--previous", "HEAD")["commit"]["version"] == 4
    here.error("head_moved", "save", *W, "--set", "n=5", "--previous", "HEAD~1")
    here.error("head_moved", "rollback", "good", *W, "--yes", "--previous", newest[:8])
    assert here.answer("rollback", "good", *W, "--yes", "--previous", "HEAD")["commit"]["version"] == 5
    assert here.answer("rollback", "side", *W, "--preview")["changes"][-1]["path"] in ("/n", "/side")
    assert here.answer("merge", "side~0", *W)["merge"]["commit"]["version"] == 6
    assert here.answer("merge", "side", *W)["merge"]["commit"] is None
    config = here.directory / "config.json"
    config.write_text("{}")
    (here.directory / "segments.json").write_text("[]")
    files = ("--config", "config.json", "--segments", "segments.json")
    here.error("head_moved", "segments", "create", *W, *files, "--parent", "HEAD~1")
    assert here.answer("segments", "create", *W, *files, "--parent", "HEAD")["manifest"]["version"] == 7


def test_what_names_no_version_says_what_would(here: CommandLine) -> None:
    assert here.error("not_found", "load", "nope", *W) == "workflow ann/trip has no tag or branch 'nope'"
    assert here.error("not_found", "show", "9", *W) == "workflow ann/trip has no version 9"
    assert "before version 3" in here.error("not_found", "load", "HEAD~9", *W)
    assert "'HEAD'" in here.error("invalid", "load", "HEAD")
    assert "not a time" in here.error("invalid", "load", "@{soon}", *W)
    here.error("not_found", "load", "ab" * 8)
    assert "'7'" in here.error("invalid", "fork", "HEAD", *W, "--to-branch", "7")
    assert "'HEAD'" in here.error("invalid", "tag", "HEAD", "1", *W)
    here.error("invalid", "rollback", "side~x", *W, "--yes")
    here.error("invalid", "watch", *W, "--since", "side", "--timeout", "0")


def test_a_version_says_where_it_comes_from(here: CommandLine) -> None:
    plain = {
        "log": here.answer("log", *W),
        "show": here.answer("show", "HEAD", *W),
        "blame": here.answer("blame", "n", *W),
    }
    assert all("why" not in str(answer) for answer in plain.values())
    why = {"model": "m-1", "reason": "user asked"}
    facts = ("--why", "model=m-1", "--why", "reason=user asked")
    here.text("save", *W, "--set", "n=4", *facts, "--metadata", '{"cost": 3}', "-m", "go on")
    versions = here.answer("log", *W)["versions"]
    assert [version.pop("why", None) for version in versions] == [why, None, None, None]
    assert versions[1:] == plain["log"]["versions"]
    shown = here.answer("show", "HEAD", *W)["version"]
    assert (shown["why"], shown["metadata"]) == (why, {"cost": 3, "why": why})
    assert here.answer("blame", "n", *W)["version"]["why"] == why
    line = "model=m-1, reason=user asked"
    log = here.text("log", *W).splitlines()
    assert (log[0].endswith("go on"), log[1].strip(), len(log)) == (True, f"why: {line}", 5)
    text = here.text("show", "HEAD", *W)
    assert line in text and '{"cost": 3}' in text
    assert line in here.text("blame", "n", *W)


def test_where_a_version_comes_from_is_said_in_order(here: CommandLine) -> None:
    save = ("save", *W, "--set", "n=9")
    assert here.error("invalid", *save, "--why", "model") == "--why model: there is no '='"
    assert here.error("invalid", *save, "--why", "=m") == "--why =m: it has no name"
    assert here.error("invalid", *save, "--why", "a=1", "--why", "a=2") == "--why a=2: it is said twice"
    assert "reserved" in here.error("invalid", *save, "--metadata", '{"why": 1}')
    assert here.answer("load", *W)["state"] == {"n": 3}


def test_the_owner_may_stand_in_a_file(here: CommandLine) -> None:
    (here.directory / "analemma.toml").write_text('owner = "ann"\n')
    assert here.answer("load", *W, ANALEMMA_OWNER="")["state"] == {"n": 3}
    here.error("not_found", "load", *W, "-o", "bob", ANALEMMA_OWNER="")
    (here.directory / "analemma.toml").write_text("owner = 7\n")
    assert "owner in" in here.error("invalid", "load", *W, ANALEMMA_OWNER="")
