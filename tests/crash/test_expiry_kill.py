"""kill -9 around expiry: every version is still there, or all that were to go are gone and the journal says so."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Expired
from analemma.testing import failpoints
from tests import programs
from tests.raw_rows import select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.mark.both_stores("the transaction that a kill must not tear is the database's")
@pytest.mark.parametrize("point", ["expire.before_commit", "expire.after_commit"])
def test_a_kill_expires_everything_or_nothing(point: str, store: Store) -> None:
    with store.open() as app:
        first, *_ = [app.kernel.save_state_delta({"n": number}, **PLACE) for number in range(5)]
        app.kernel.set_retention(**PLACE, keep_last=2)

    done = programs.run(
        [sys.executable, "-m", "tests.crash.expiry_worker", store.url, store.objects or ""],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr

    with store.open() as app:
        kernel = app.kernel
        left = [version.version for version in kernel.history(**PLACE)]
        kinds = [kind for (kind,) in select(store, "SELECT kind FROM journal ORDER BY seq")]
        if point == "expire.before_commit":
            assert left == [5, 4, 3, 2, 1] and "expired" not in kinds
            assert kernel.load_state(first.manifest_id) == {"n": 0}
        else:
            assert left == [5, 4] and kinds[-1] == "expired"
            with pytest.raises(Expired):
                kernel.load_state(first.manifest_id)
        kernel.save_state_delta({"n": 5}, **PLACE)
        kernel.expire(**PLACE)
        assert [version.version for version in kernel.history(**PLACE)] == [6, 5]
        assert kernel.verify(**PLACE).problems == []
