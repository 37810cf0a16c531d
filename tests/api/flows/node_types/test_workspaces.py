"""`archive`: workspaces of the run's owner go away and come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Run
from tests.stores import Store


@pytest.fixture
def app(store: Store, tmp_path: Path) -> Iterator[App]:
    with store.open() as app:
        volume = tmp_path / "volume"
        app.archives.create("ws1", owner_id="me", volume=volume)
        (volume / "file").write_text("hello")
        yield app


def run(app: App, *nodes: dict[str, Any], owner_id: str = "me", workflow_id: str = "t-1") -> Run:
    return app.flows.run(
        {"workflow": "w", "nodes": list(nodes)}, {"w": "ws1"}, workflow_id=workflow_id, owner_id=owner_id
    )


def node(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "archive", "workspace": "{{w}}", **more}


def test_a_workspace_is_archived_and_restored(app: App, tmp_path: Path) -> None:
    made = run(app, node("put"))
    assert made.error is None
    unit = app.archives.unit("ws1")
    assert made.state["put"] == {"workspace": "ws1", "status": "COLD", "op_id": unit.op_id, "bytes": unit.bytes}
    assert not (tmp_path / "volume").exists()
    made = run(app, node("get", operation="restore"), workflow_id="t-2")
    assert made.state["get"] == {"workspace": "ws1", "status": "WARM"}
    assert (tmp_path / "volume" / "file").read_text() == "hello"


def test_what_is_there_already_is_left_as_it_is(app: App) -> None:
    first = run(app, node("put"))
    again = run(app, node("put"), workflow_id="t-2")
    assert first.state["put"] == again.state["put"]
    nodes = [node("get", operation="restore"), node("again", operation="restore")]
    made = run(app, *nodes, workflow_id="t-3")
    assert made.state["get"] == made.state["again"]


def test_a_workspace_of_another_owner_is_not_there(app: App) -> None:
    for number, operation in enumerate(("archive", "restore")):
        made = run(app, node("put", operation=operation), owner_id="you", workflow_id=f"t-{number}")
        assert made.error is not None and made.error.kind == "not_found"
    assert app.archives.get("ws1").status == "WARM"
