"""Which failpoints are tried, and where.

`make deep` tries every one on both databases. `make test` tries, of those inside one transaction, the first and the
last on SQLite, and one before and one after the commit of each protocol on PostgreSQL, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.depth import some

COMMIT = (
    "commit.before_transaction",
    "commit.after_head",
    "commit.after_blocks",
    "commit.before_commit",
    "commit.after_commit",
)
"""Of every verb that makes a version. The three in the midst are inside one transaction."""
AROUND_COMMIT = ("commit.before_transaction", "commit.after_commit")
FIRST_AND_LAST = ("commit.before_transaction", "commit.after_head", "commit.before_commit", "commit.after_commit")


def kills(everything: Sequence[Any], *, test: Sequence[Any], postgres: Sequence[Any] = ()) -> list[Any]:
    """Parameters of a test that is killed at points, or at tuples that begin or end with one: all of them, or those
    that `make test` tries; of these, `postgres` on both databases."""
    assert all(each in test for each in postgres), "make test tries nothing on PostgreSQL that it does not on SQLite"
    both = pytest.mark.both_stores("the transaction that a kill must not tear is the database's")
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=[both] if each in postgres else [])
        for each in some(everything, test=test)
    ]
