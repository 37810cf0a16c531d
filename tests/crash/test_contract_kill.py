"""kill -9 while contracts are loaded: all of them are there, or none, and loading again works."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from analemma.testing import failpoints
from tests import programs
from tests.core.contracts.bookshop import EXAMPLE, bookshop
from tests.stores import Store

ROOT = Path(__file__).parents[2]


@pytest.mark.both_stores("the transaction that a kill must not tear is the database's")
@pytest.mark.parametrize(("point", "loaded"), [("contracts.before_commit", False), ("contracts.after_commit", True)])
def test_a_kill_leaves_all_contracts_or_none(point: str, loaded: bool, store: Store) -> None:
    store.open().close()
    done = programs.run(
        [sys.executable, "-m", "tests.crash.contract_worker", store.url, store.objects or ""],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
    everything = len(bookshop().contracts)
    with store.open() as app:
        assert len(app.contracts.list()) == (everything if loaded else 0)
        app.contracts.load(EXAMPLE)
        assert len(app.contracts.list()) == everything
