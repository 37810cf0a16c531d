"""The command line on workflows: names and status, what they run, and which versions are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CODES, CommandLine, at
from tests.stores import Store


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    return at(Store(str(tmp_path / "store")), tmp_path)


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


def test_words_that_group_commands_list_them(here: CommandLine) -> None:
    for group, command in (("workflow", "list"), ("segments", "inject"), ("retention", "expire")):
        assert command in here.text(group)


def test_workflows_and_branches_are_deleted_and_come_back(here: CommandLine) -> None:
    for number in range(3):
        here.save(f"n={number}")
    here.answer("fork", "-w", "trip", "2", "--to-branch", "draft")
    (draft,) = here.answer("delete", "-w", "trip", "--branch", "draft", "--yes")["deleted"]
    assert (draft["owner_id"], draft["workflow_id"], draft["branch"], draft["version"]) == ("ann", "trip", "draft", 3)
    assert draft["deleted_at"] < draft["until"] and here.answer("deleted")["deleted"] == [draft]
    assert here.text("delete", "-w", "trip", "--yes").startswith("ann/trip on main  version 3  until 2")
    here.error("not_found", "log", "-w", "trip")
    for digits in (draft["manifest_id"], draft["manifest_id"][:8]):
        here.error("not_found", "load", digits, ANALEMMA_OWNER="")
    assert here.answer("workflow", "list")["workflows"] == []
    assert [each["branch"] for each in here.answer("deleted", "-w", "trip")["deleted"]] == ["main", "draft"]
    assert here.text("undelete", "-w", "trip") == "ann/trip on main  version 3\n"
    assert here.answer("undelete", "-w", "trip", "--branch", "draft")["restored"] == [draft]
    assert [each["name"] for each in here.answer("branches", "-w", "trip")["branches"]] == ["main", "draft"]
    assert here.text("deleted") == "" and here.answer("verify", "-w", "trip")["report"]["ok"]
    here.error("not_found", "undelete", "-w", "trip")
    here.error("not_found", "delete", "-w", "trip", "--branch", "odd", "--yes")
    here.error("invalid", "delete", "-w", "trip")
