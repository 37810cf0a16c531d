"""Rolling back to a version that is damaged: refused where the damage would become the newest state."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any, NamedTuple

import pytest

from analemma import aio
from analemma.errors import Corrupt
from tests.programs import run
from tests.raw_rows import change, select
from tests.stores import Store

NAME: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}


def text(seed: int, size: int) -> str:
    return random.Random(seed).randbytes(size).hex()


class Written(NamedTuple):
    """Version 2 changed one text of two."""

    store: Store
    kept: bytes
    """The block of the text that both versions have."""
    changed: bytes
    """That of the text as version 1 alone has it."""

    def damage(self, block: bytes) -> None:
        assert change(self.store, "UPDATE block SET body = ? WHERE id = ?", (b"damaged", block)) == 1


@pytest.fixture
def written(store: Store) -> Written:
    with store.open() as app:
        app.kernel.save_state_delta({"kept": text(1, 9_000), "changed": text(2, 4_000)}, **NAME)
        kept, changed = select(store, "SELECT id FROM block ORDER BY size DESC LIMIT 2")
        app.kernel.save_state_delta({"changed": text(3, 4_000)}, **NAME)
    return Written(store, bytes(kept[0]), bytes(changed[0]))


@pytest.mark.parametrize("preview", [False, True])
def test_what_a_rollback_would_change_is_verified(written: Written, preview: bool) -> None:
    options: Any = {"preview": preview}
    with written.store.open() as app:
        first = app.kernel.history(**NAME)[1].manifest_id
        assert app.kernel.load_state(first)["changed"] == text(2, 4_000)
        written.damage(written.changed)
        # Also by a program that has the block as it was at hand.
        with pytest.raises(Corrupt, match="cannot be rolled back to") as raised:
            app.kernel.rollback_to_version(version=1, **NAME, **options)
        assert raised.value.version == 1
        assert [each.version for each in app.kernel.history(**NAME)] == [2, 1]


def test_a_rollback_to_the_last_safe_version_is_verified_too(written: Written) -> None:
    with written.store.open() as app:
        app.kernel.decide(app.kernel.history(**NAME)[1].manifest_id, "approved", actor="ann")
        written.damage(written.changed)
        with pytest.raises(Corrupt):
            app.kernel.rollback_to_last_safe(**NAME)


def test_what_the_newest_version_has_too_is_verified_when_asked(written: Written) -> None:
    written.damage(written.kept)
    with written.store.open() as app:
        with pytest.raises(Corrupt):
            app.kernel.rollback_to_version(version=1, deep=True, **NAME)
        with pytest.raises(Corrupt):
            app.kernel.rollback_to_version(version=1, deep=True, preview=True, **NAME)
        # It is as damaged before as after, and the rest comes back.
        assert app.kernel.rollback_to_version(version=1, **NAME).version == 3
        newest = app.kernel.history(**NAME)[0].manifest_id
        assert app.kernel.load_fields(newest, ["changed"]) == {"changed": text(2, 4_000)}


def test_a_damaged_newest_version_can_be_left_for_one_that_is_whole(written: Written) -> None:
    [(root,)] = select(written.store, "SELECT root FROM manifest WHERE version = 2")
    written.damage(bytes(root))
    with written.store.open() as app:
        with pytest.raises(Corrupt):
            app.kernel.load_latest_state(**NAME)
        assert app.kernel.rollback_to_version(version=1, deep=True, **NAME).version == 3
        assert app.kernel.load_latest_state(**NAME)["changed"] == text(2, 4_000)


def test_the_command_and_coroutines_verify_deeply_when_asked(written: Written) -> None:
    written.damage(written.kept)
    objects = () if written.store.objects is None else ("--objects", written.store.objects)
    command = [sys.executable, "-m", "analemma", "rollback", "-u", written.store.url, *objects]
    done = run([*command, "-o", "ann", "-w", "trip", "1", "--deep", "--yes"], capture_output=True, text=True)
    assert done.returncode == 6 and "cannot be rolled back to" in done.stderr, done

    async def roll_back() -> None:
        async with aio.open(written.store.url, objects=written.store.objects) as app:
            await app.kernel.rollback_to_version(version=1, deep=True, **NAME)

    with pytest.raises(Corrupt):
        asyncio.run(roll_back())
