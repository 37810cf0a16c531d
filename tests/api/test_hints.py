"""Errors that callers can cause say what to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import App, read_snapshot
from analemma.errors import AnalemmaError, Expired, NotFound
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import local

NO_TENANT = "saving or ingesting something begins a tenant"
CASES: dict[str, tuple[Callable[[App], Any], type[AnalemmaError], str]] = {
    "workspace": (lambda app: app.archives.archive("ws9"), NotFound, "archives.list() lists them"),
    "outbox": (lambda app: app.outbox.status(tenant="shpo"), NotFound, NO_TENANT),
    "gc": (lambda app: app.gc.run(tenant="shpo"), NotFound, NO_TENANT),
    "fanouts": (
        lambda app: app.fanouts.status(tenant="shpo"),
        NotFound,
        NO_TENANT,
    ),
    "sinks": (lambda app: app.sinks.list(tenant="shpo"), NotFound, NO_TENANT),
    "entity": (
        lambda app: app.tenant("shop").views.execute("view.book.detail.v1", "9"),
        NotFound,
        "check its type and id, or ingest it",
    ),
    "file": (lambda app: list(read_snapshot("nowhere.jsonl")), NotFound, "a sink makes it with its first document"),
}


def test_what_there_is_not_is_told_where_to_look(tmp_path: Path) -> None:
    said = {}
    with local(tmp_path).open() as app:
        app.contracts.load(EXAMPLE)
        for case, (call, kind, _) in CASES.items():
            with pytest.raises(kind) as raised:
                call(app)
            said[case] = raised.value.hint
    assert said == {case: hint for case, (_, _, hint) in CASES.items()}


def test_what_was_never_archived_does_not_come_back(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    with local(tmp_path).open() as app:
        app.archives.create("ws1", owner_id="ann", volume=tmp_path / "volume")
        app.archives.delete("ws1", discard=True)
        with pytest.raises(Expired) as raised:
            app.archives.undelete("ws1")
    assert "without discard, delete archives first" in (raised.value.hint or "")
