"""The command line on history: logs, tags, decisions, branches, merges, ways back, and watching."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, at
from tests.stores import Store


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    return at(Store(str(tmp_path / "store")), tmp_path)


def test_a_log_is_read_page_by_page(here: CommandLine) -> None:
    for number in range(5):
        here.save(f"n={number}")
    first = here.answer("log", "-w", "trip", "--limit", "2")
    second = here.answer("log", "-w", "trip", "--limit", "2", "--after", str(first["after"]))
    third = here.answer("log", "-w", "trip", "--limit", "2", "--after", str(second["after"]))
    pages = [[version["version"] for version in page["versions"]] for page in (first, second, third)]
    assert pages == [[5, 4], [3, 2], [1]]
    assert third["after"] is None


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
    assert log("--branch", "idea") == [3, 2, 1]
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


def test_the_log_of_a_fork_goes_on_into_its_parent(here: CommandLine) -> None:
    for number in range(1, 4):
        here.save(f"n={number}")
    here.answer("fork", "2", "-w", "trip", "--to-branch", "idea")
    here.answer("fork", "3", "-w", "trip", "--branch", "idea", "--to-workflow", "copy")
    here.save("n=9", workflow="copy")
    expected = [("copy", 2), ("copy", 1), ("trip", 3), ("trip", 2), ("trip", 1)]
    for size in range(1, 7):
        seen: list[tuple[str, int]] = []
        after: list[str] = []
        while True:
            page = here.answer("log", "-w", "copy", "--limit", str(size), *after)
            seen += [(each["workflow_id"], each["version"]) for each in page["versions"]]
            if page["after"] is None:
                break
            after = ["--after", str(page["after"])]
        assert seen == expected
    lines = here.text("log", "-w", "copy").splitlines()
    assert [line.split()[0] for line in lines] == ["2", "1", "forked", "3", "forked", "2", "1"]
    assert (lines[2], lines[4]) == ("forked from ann/trip on idea", "forked from ann/trip on main")
    # What the log shows can be asked for by its number.
    assert here.answer("show", "2", "-w", "trip", "--branch", "idea")["version"]["branch"] == "main"


def test_a_log_says_that_there_is_more(here: CommandLine) -> None:
    for number in range(3):
        here.save(f"n={number}")
    cut = here.run("log", "-w", "trip", "--limit", "2")
    assert (len(cut.stdout.splitlines()), cut.stderr) == (2, "there are more: add --after 2\n")
    whole = here.run("log", "-w", "trip", "--limit", "3")
    assert (len(whole.stdout.splitlines()), whole.stderr) == (3, "")
    assert here.answer("log", "-w", "trip", "--limit", "3")["after"] is None
    here.error("not_found", "log", "-w", "trip", "--after", "yesterday")
    here.error("invalid", "log", "-w", "trip", "--after", "@{yesterday}")
    here.error("invalid", "log", "-w", "trip", "--after", "0")


def test_blame_says_or_before_where_versions_have_expired(here: CommandLine) -> None:
    here.save("old=1")
    for number in range(4):
        here.save(f"n={number}")
    here.text("retention", "set", "-w", "trip", "--keep-last", "2")
    here.text("retention", "expire", "-w", "trip")
    old = here.answer("blame", "/old", "-w", "trip")["version"]
    assert (old["version"], old["or_before"]) == (4, True)
    assert "4 or before" in here.text("blame", "/old", "-w", "trip")
    new = here.answer("blame", "/n", "-w", "trip")["version"]
    assert (new["version"], new["or_before"]) == (5, False)
    assert "or before" not in here.text("blame", "/n", "-w", "trip")
