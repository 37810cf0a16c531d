"""A sink rule whose target can never be opened is refused when contracts are validated or loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Invalid
from tests.cli.command_line import CommandLine
from tests.stores import Store

CONTRACTS: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "fields": [{"name": "text", "type": "string"}],
    },
    {
        "kind": "RULESET",
        "id": "ruleset.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "slices": [{"type": "TEXT", "buildRules": {"type": "PassThrough", "fields": ["text"]}}],
    },
]


def rule(target: dict[str, Any], **more: Any) -> dict[str, Any]:
    common = {"kind": "SINKRULE", "id": "sink.note", "version": "1.0.0", "status": "ACTIVE", "target": target}
    return {**common, "input": {"type": "SLICE", "entityTypes": ["NOTE"]}, **more}


def package(folder: Path, *entry_points: str) -> None:
    """A package that offers sinks, installed in a folder."""
    facts = folder / "pigeon-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("\n".join(["[analemma.sinks]", *entry_points, ""]))


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"type": "PIGEON", "url": "x"}, ["there is no sink of type 'PIGEON'"]),
    ({"type": "WEBHOOK", "secret": "s"}, ["url is missing"]),
    ({"type": "WEBHOOK", "urll": "${HOOK}"}, ["url is missing", "secret is missing", "urll: there is no such setting"]),
    ({"type": "OPENSEARCH", "url": "ftp://x", "index": "i"}, ["url: is no http:// or https:// URL"]),
    ({"type": "JSONL", "path": "${"}, ["/path: a ${ that names no variable"]),
]


def test_a_target_that_cannot_be_opened_is_not_loaded(store: Store) -> None:
    with store.open() as app:
        for target, reasons in WRONG:
            with pytest.raises(Invalid) as caught:
                app.contracts.load([*CONTRACTS, rule(target)])
            told = [each.reason for each in caught.value.facts["problems"]]
            assert told == [f"the target of sink.note@1.0.0: {reason}" for reason in reasons]
            assert app.contracts.list() == ()


def test_an_unknown_type_of_sink_is_refused_with_those_there_are_and_how_to_get_another(tmp_path: Path) -> None:
    file = tmp_path / "contracts.json"
    file.write_text(
        json.dumps([*CONTRACTS, rule({"type": "PIGEON"}), rule({"type": "WEBHOOK"}, id="sink.b")], indent=1)
    )
    done = CommandLine(file.parent, {}).run("contracts", "validate", str(file))
    told = done.stdout.splitlines()
    assert done.returncode == 2 and len(told) == 3
    assert all(part in told[0] for part in ("'PIGEON'", "WEBHOOK", "analemma.sinks", "install", f"{file}:"))
    assert "url is missing" in told[1] and "secret is missing" in told[2]


def test_what_comes_out_of_environment_variables_is_left_to_the_workers(store: Store) -> None:
    target = {"type": "WEBHOOK", "url": "${NO_SUCH_HOOK}", "secret": "${NO_SUCH_SECRET}", "timeoutS": "${NO_SUCH_TIME}"}
    assert not any(name in os.environ for name in ("NO_SUCH_HOOK", "NO_SUCH_SECRET", "NO_SUCH_TIME"))
    with store.open() as app:
        assert "sink.note" in {each.id for each in app.contracts.load([*CONTRACTS, rule(target)]).contracts}


def test_a_package_of_another_type_of_sink_is_asked_for_its_settings(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "PIGEON = tests.scripted_sink:ScriptedSink", "LOST = tests.no_such_module:Sink")
    monkeypatch.syspath_prepend(tmp_path)
    with store.open() as app:
        for target, reason in (
            ({"type": "PIGEON", "script": "one", "loft": 1}, "loft: there is no such setting"),
            ({"type": "LOST"}, "the package that offers sinks of type LOST cannot be loaded (ModuleNotFoundError)"),
        ):
            with pytest.raises(Invalid) as caught:
                app.contracts.load([*CONTRACTS, rule(target)])
            assert [each.reason.partition(": ")[2] for each in caught.value.facts["problems"]] == [reason]
        app.contracts.load([*CONTRACTS, rule({"type": "PIGEON", "script": "one"})])


def test_a_rule_whose_sink_is_no_longer_installed_can_be_replaced_and_retired(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "PIGEON = tests.scripted_sink:ScriptedSink")
    gone = rule({"type": "PIGEON", "script": "one"})
    with store.open() as app:
        with monkeypatch.context() as installed:
            installed.syspath_prepend(tmp_path)
            app.contracts.load([*CONTRACTS, gone])
        app.contracts.load({**CONTRACTS[0], "version": "1.0.1"})
        with pytest.raises(Invalid, match="PIGEON"):
            app.contracts.load(gone)
        app.contracts.load(rule({"type": "JSONL", "path": "notes.jsonl"}, version="1.0.1"))
        app.contracts.load({**gone, "status": "ARCHIVED"})
