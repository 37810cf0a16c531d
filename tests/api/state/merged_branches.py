"""A workflow with a branch beside its main one, and the two put together."""

from __future__ import annotations

from typing import Any

from analemma import App

OWNER: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


def save(app: App, delta: dict[str, Any], branch: str = "main", deleted: tuple[str, ...] = ()) -> str:
    return app.kernel.save_state_delta(delta, **OWNER, branch=branch, deleted=deleted).manifest_id


def start(app: App, state: dict[str, Any], branch: str = "idea") -> str:
    """A workflow with a branch that begins at its first version."""
    first = save(app, state)
    app.kernel.fork(first, owner_id="ann", branch=branch)
    return first


def merge(app: App, source: str = "idea", **options: Any) -> Any:
    return app.kernel.merge(**OWNER, source=source, **options)


def latest(app: App, branch: str = "main") -> dict[str, Any]:
    state: dict[str, Any] = app.kernel.load_latest_state(**OWNER, branch=branch)
    return state
