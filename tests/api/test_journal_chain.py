"""A branch's journal is a chain: whoever rewrites, drops or adds a record, with everything that the record itself says
being right, is found by verify."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
RECORDS = 5


@pytest.fixture
def journal(store: Store) -> Store:
    with store.open() as app:
        for number in range(RECORDS):
            app.kernel.save_state_delta({"n": number}, **PLACE)
        assert app.kernel.verify(**PLACE).ok
    return store


def write(store: Store, seq: int, body: bytes, at: int) -> bytes:
    """Have a record say something else, with its right hash and its right columns; the hash."""
    made = sha256(body).digest()
    count = change(store, "UPDATE journal SET body = ?, hash = ?, created_at = ? WHERE seq = ?", (body, made, at, seq))
    assert count == 1
    return made


def rewritten(store: Store, seq: int) -> None:
    """It took place a moment later."""
    [(body, at)] = select(store, "SELECT body, created_at FROM journal WHERE seq = ?", (seq,))
    before, after = [time.to_bytes(8, "big") for time in (at, at + 1)]
    assert bytes(body).count(before) == 1
    write(store, seq, bytes(body).replace(before, after), at + 1)


def rewritten_with_all_behind_it(store: Store, seq: int) -> None:
    """The same, and every record behind it follows the one before it; only the head knows better."""
    rows = select(store, "SELECT seq, hash FROM journal WHERE seq >= ? ORDER BY seq", (seq,))
    rewritten(store, seq)
    [(hash_before,)] = select(store, "SELECT hash FROM journal WHERE seq = ?", (seq,))
    told = bytes(rows[0][1])
    for number, old in rows[1:]:
        [(body, at)] = select(store, "SELECT body, created_at FROM journal WHERE seq = ?", (number,))
        assert bytes(body).count(told) == 1
        hash_before = write(store, number, bytes(body).replace(told, bytes(hash_before)), at)
        told = bytes(old)


def dropped(store: Store, seq: int) -> None:
    assert change(store, "DELETE FROM journal WHERE seq = ?", (seq,)) == 1


def renumbered(store: Store, seq: int) -> None:
    """From here on every number is one higher, as the head says, too: a record is missing that there never was."""
    for number in range(RECORDS, seq - 1, -1):
        assert change(store, "UPDATE journal SET seq = ? WHERE seq = ?", (number + 1, number)) == 1
    assert change(store, "UPDATE head SET journal_seq = journal_seq + 1") == 1


@pytest.mark.parametrize("seq", [1, 3, RECORDS])
@pytest.mark.parametrize(
    "damage", [rewritten, rewritten_with_all_behind_it, dropped, renumbered], ids=lambda each: each.__name__
)
def test_a_record_that_does_not_fit_its_neighbours_is_found(
    journal: Store, damage: Callable[[Store, int], None], seq: int
) -> None:
    """Guard: every record names the hash of the one before it, and the head that of the last; none is left out."""
    damage(journal, seq)
    with journal.open() as app:
        assert not app.kernel.verify(**PLACE).ok
