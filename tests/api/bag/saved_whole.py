"""What a state's root is when nobody has edited it: the same state has the same root, however it came about."""

from __future__ import annotations

from itertools import count
from typing import Any

from analemma import App

NUMBERS = count(1)


def root_of(app: App, state: dict[str, Any]) -> str:
    """The root of this state, saved as the first version of a workflow of its own."""
    return app.kernel.save_state_delta(state, workflow_id=f"whole {next(NUMBERS)}", owner_id="ann").root_hash
