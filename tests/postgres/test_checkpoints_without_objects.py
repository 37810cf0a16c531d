"""A database whose objects are elsewhere can be opened without them while there are none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Unavailable
from tests.api.state.pending import left_behind
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


def test_a_program_without_the_objects_gives_no_delta_up(migrated_url: str, tmp_path: Path) -> None:
    store = Store(migrated_url, str(tmp_path / "objects"))
    with Store(migrated_url).open(cache_bytes=0) as without, store.open(pack_threshold_bytes=10_000) as app:
        app.kernel.save_state_delta({"data": [random.Random(1).randbytes(50_000)]}, **NAME)
        ticket = left_behind(app, store, {"/data/-": 1}, **NAME)
        for _ in range(2):
            with pytest.raises(Unavailable, match="was opened without an object store"):
                without.kernel.wait_for(ticket)
        assert app.kernel.ticket(ticket).status == "pending"
        assert app.kernel.wait_for(ticket).version == 2
