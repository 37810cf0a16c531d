"""What tests of payloads share."""

from __future__ import annotations

import json
from typing import Any

from analemma import App, HydratedState

NAMES: dict[str, Any] = {"owner_id": "ann", "workflow_id": "report", "execution_id": "run-1"}
LARGE = [{"n": number, "text": "word " * 20} for number in range(400)]
"""About 50 KB."""


def through_json(payload: Any) -> Any:
    """What arrives when the payload is sent."""
    return json.loads(json.dumps(payload))


def send(app: App, state: Any, **options: Any) -> dict[str, Any]:
    """A payload as it arrives somewhere else."""
    sent: dict[str, Any] = through_json(app.payloads.dehydrate(state, **{**NAMES, **options}))
    return sent


def receive(app: App, event: Any, **options: Any) -> HydratedState:
    return app.payloads.hydrate(event, **options)
