"""Modes of compiles are taken as they are documented and as results print them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from analemma.aio import open as open_async
from analemma.errors import Invalid
from tests.cli.command_line import user_of
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


@pytest.fixture
def noted(store: Store) -> Store:
    with store.open() as app:
        app.contracts.load(CONTRACTS)
        app.default.ingest("NOTE", "1", {"text": "one"})
        app.default.compile("NOTE", "1")
    return store


def command(store: Store, *arguments: str) -> tuple[int, str, str]:
    done = user_of(store).run(*arguments)
    return done.returncode, done.stdout, done.stderr


def test_a_mode_is_taken_as_results_print_it(noted: Store) -> None:
    with noted.open() as app:
        for mode in ("full", "incremental"):
            result = app.default.compile("NOTE", "1", mode=mode)
            assert str(result.mode) == mode.upper()
            assert app.default.compile("NOTE", "1", mode=str(result.mode)).mode == result.mode
            assert app.default.entity("NOTE", "1").compile(mode=result.mode).mode == result.mode
        assert app.default.compile("NOTE", "1", mode="AUTO").up_to_date


def test_a_backfill_takes_both_spellings_of_a_mode(noted: Store) -> None:
    with noted.open() as app:
        for mode in ("full", "FULL", "auto", "AUTO"):
            assert app.backfills.plan({"types": ["NOTE"]}, mode=mode).total == 1
        with pytest.raises(Invalid, match="INCREMENTAL") as caught:
            app.backfills.plan({"types": ["NOTE"]}, mode="INCREMENTAL")
        assert caught.value.hint == "full or auto"


def test_what_is_no_mode_is_refused_with_those_there_are(noted: Store) -> None:
    wrong: list[Any] = ["fast", "", None]
    with noted.open() as app:
        for mode in wrong:
            with pytest.raises(Invalid) as caught:
                app.default.compile("NOTE", "1", mode=mode)
            assert caught.value.hint == "auto, full or incremental"


def test_coroutines_take_both_spellings_of_a_mode(noted: Store) -> None:
    async def compiled(mode: str) -> str:
        async with open_async(noted.url, objects=noted.objects) as app:
            return str((await app.default.compile("NOTE", "1", mode=mode)).mode)

    assert [asyncio.run(compiled(mode)) for mode in ("full", "FULL")] == ["FULL", "FULL"]


def test_commands_take_both_spellings_of_a_mode_and_print_one(noted: Store) -> None:
    for mode in ("full", "FULL"):
        code, out, _ = command(noted, "compile", "NOTE", "1", "--mode", mode)
        assert code == 0 and "FULL" in out
        assert command(noted, "backfill", "plan", "--type", "NOTE", "--mode", mode)[0] == 0
    code, _, err = command(noted, "compile", "NOTE", "1", "--mode", "fast")
    assert code != 0 and "auto, full or incremental" in err
