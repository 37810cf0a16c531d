"""The commands on contracts: they need files, and no store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine, Done
from tests.core.contracts.bookshop import EXAMPLE, TEXT, changed, line_of

LINE = CommandLine(Path.cwd(), {})


def contracts(*arguments: str | Path, given: str | None = None) -> Done:
    return LINE.run("contracts", *map(str, arguments), given=given)


def answer(*arguments: str | Path, given: str | None = None) -> Any:
    return LINE.answer("contracts", *map(str, arguments), given=given)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    file = tmp_path / "broken.yaml"
    text = changed("targetSliceType: SUMMARY", "targetSliceType: SHORT")
    file.write_text(changed("batchSize: 1000", "batchSize: 0", text=text), encoding="utf-8")
    return file


def test_valid_contracts_are_told_so() -> None:
    done = LINE.process("contracts", "validate", str(EXAMPLE))
    assert (done.returncode, done.stdout, done.stderr) == (0, "6 contracts in 1 file are valid\n", "")
    assert answer("validate", EXAMPLE) == {"contracts": 6, "files": [str(EXAMPLE)], "warnings": []}


def test_every_problem_is_a_line_with_its_place(broken: Path) -> None:
    done = contracts("validate", broken)
    text = broken.read_text(encoding="utf-8")
    places = [line_of(text, part) for part in ("targetSliceType: SHORT", "batchSize: 0")]
    assert [line.split(": ")[0] for line in done.stdout.splitlines()] == [f"{broken}:{place}" for place in places]
    assert (done.returncode, done.stderr) == (2, "error: there are 2 problems\n")
    failed = contracts("validate", broken, "--json")
    problems = json.loads(failed.stderr)["error"]["problems"]
    assert failed.returncode == 2 and [each["line"] for each in problems] == places
    assert problems[0]["reason"] == "ruleset.author.v1@1.0.0 has no slice SHORT"
    refused = contracts("list", broken)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 2


def test_contracts_in_use_keep_their_content(tmp_path: Path) -> None:
    file = tmp_path / "next.yaml"
    file.write_text(changed("batchSize: 1000", "batchSize: 10"), encoding="utf-8")
    assert contracts("validate", file).returncode == 0
    done = contracts("validate", file, "--against", EXAMPLE)
    assert done.returncode == 2 and "sinkrule.file.book@1.0.0 is in use with other content" in done.stdout


def test_contracts_are_listed() -> None:
    lines = contracts("list", EXAMPLE).stdout.splitlines()
    assert [line.split()[0] for line in lines].count("RULESET") == 2
    listed = answer("list", EXAMPLE)["contracts"]
    assert listed[4]["id"] == "view.book.detail.v1" and listed[4]["checksum"].startswith("sha256:")
    assert listed[4]["place"] == f"{EXAMPLE}:{line_of(TEXT, 'kind: VIEW_DEFINITION')}"


def test_differences_have_levels_and_may_fail(tmp_path: Path) -> None:
    file = tmp_path / "next.yaml"
    file.write_text(changed("fields: [name, country]", "fields: [name]"), encoding="utf-8")
    shown = contracts("diff", EXAMPLE, file)
    assert shown.returncode == 0 and "major  slice SUMMARY: field /country removed" in shown.stdout
    found = answer("diff", EXAMPLE, file)
    assert not found["sufficient"] and found["differences"][0]["level"] == "major"
    assert contracts("diff", EXAMPLE, file, "--check").returncode == 2
    assert contracts("diff", EXAMPLE, EXAMPLE, "--check").stdout == "no differences\n"


def test_a_simulation_tells_which_slices_would_change(tmp_path: Path) -> None:
    file = tmp_path / "next.yaml"
    file.write_text(changed("fields: [name, country]", "fields: [name]"), encoding="utf-8")
    lines = [
        {
            "entityType": "BOOK",
            "entityId": "978",
            "payload": {"isbn": "978", "title": "T", "price": 1, "authorId": "a"},
        },
        {"entityType": "AUTHOR", "entityId": "a", "payload": {"name": "A\u2028B", "country": "DE"}},
    ]
    given = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    found = answer("simulate", file, "--against", EXAMPLE, "--documents", "-", given=given)
    assert found["totals"] == {"ADDED": 0, "REMOVED": 0, "CHANGED": 2, "UNCHANGED": 4}
    shown = contracts("simulate", file, "--against", EXAMPLE, "-d", "-", given=given).stdout
    assert "BOOK 978  ENRICHED  changed  /author/origin/country" in shown
    for wrong in ("{}", "[]", "nope", f"{given}\n{json.dumps(lines[0])}"):
        assert contracts("simulate", file, "-d", "-", given=wrong).returncode == 2
