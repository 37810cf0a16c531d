"""Commits of runs that wait for what somebody else has locked, perhaps somebody who is frozen."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import Flow
from analemma.errors import Timeout
from tests.api.flows.test_running import PLACE
from tests.stores import Store


def test_a_commit_that_waits_too_long_lets_the_run_go(
    migrated_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")
    store = Store(migrated_url, str(tmp_path / "objects"))
    with psycopg.connect(migrated_url) as frozen, store.open(statement_timeout_s=0.3, run_lease_s=0.1) as app:
        calls: list[str] = []
        flow = Flow("locked")

        @flow.step(writes=["n"])
        def step(state: Any, ctx: Any) -> dict[str, int]:
            def lock(key: str) -> None:
                calls.append(key)
                frozen.execute("SELECT FROM head FOR UPDATE")

            ctx.once("lock", lock)
            return {"n": 1}

        with pytest.raises(Timeout):
            app.flows.run(flow, **PLACE)
        (run,) = app.flows.runs()
        assert (run.status, run.holder, run.error, run.segments) == ("RUNNING", None, None, ())
        frozen.rollback()
        done = app.flows.resume(run.execution_id)
        assert (done.status, done.state, len(calls)) == ("COMPLETED", {"n": 1}, 1)
        assert len(app.kernel.history(**PLACE)) == 2
