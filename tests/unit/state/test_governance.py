"""Decisions: records that add up, and the way back to the newest approved version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from analemma.app import App
from analemma.catalog.port import BranchKey
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.state.versions import Commit
from tests.stores import Store
from tests.unit.state.test_store import run_sql

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def save(app: App, value: int) -> Commit:
    return app.kernel.save_state_delta({"n": value}, **PLACE)


def approve(app: App, commit: Commit) -> None:
    app.kernel.decide(commit.manifest_id, "approved", actor="eve")


def test_decisions_add_up(app: App) -> None:
    first = save(app, 1)
    made = app.kernel.decide(first.manifest_id, "escalated", actor="bot", score=0.25, reason="odd", owner_id="ann")
    app.kernel.decide(first.manifest_id, "approved", actor="eve", score=1)
    found = app.kernel.decisions(first.manifest_id)
    assert found[0] == made
    assert [(item.decision, item.score, item.reason, item.actor) for item in found] == [
        ("escalated", 0.25, "odd", "bot"),
        ("approved", 1.0, None, "eve"),
    ]
    assert [item.seq for item in found] == [2, 3]
    assert app.default.verify(BranchKey("ann", "trip")).ok


def test_the_newest_approved_version_is_the_last_safe_one(app: App) -> None:
    versions = [save(app, number) for number in range(6)]
    with pytest.raises(NotFound, match="approved"):
        app.kernel.last_safe_manifest(**PLACE)
    approve(app, versions[4])
    approve(app, versions[1])
    assert app.kernel.last_safe_manifest(**PLACE).version == 5
    app.kernel.decide(versions[4].manifest_id, "rejected", actor="eve")
    assert app.kernel.last_safe_manifest(**PLACE).manifest_id == versions[1].manifest_id
    approve(app, versions[4])
    assert app.kernel.last_safe_manifest(**PLACE).version == 5


def test_many_decisions_on_one_version_do_not_hide_an_older_approval(app: App) -> None:
    first, second = save(app, 1), save(app, 2)
    approve(app, first)
    for _ in range(120):
        app.kernel.decide(second.manifest_id, "pending", actor="bot")
    assert app.kernel.last_safe_manifest(**PLACE).version == 1


def test_finding_the_last_safe_version_does_not_read_the_journal(app: App) -> None:
    approve(app, save(app, 0))
    for number in range(20):
        save(app, number)
    before = app.catalog.engine.statements.copy()
    assert app.kernel.last_safe_manifest(**PLACE).version == 1
    spent = app.catalog.engine.statements - before
    assert dict(spent) == {"head": 1, "decided_versions": 1}


def test_rolling_back_to_the_last_safe_version(app: App) -> None:
    approve(app, save(app, 1))
    save(app, 2)
    preview = app.kernel.rollback_to_last_safe(**PLACE, preview=True)
    assert preview.version == 1 and preview.changes == [{"op": "replace", "path": "/n", "value": 1}]
    assert app.kernel.rollback_to_last_safe(**PLACE).version == 3
    assert app.kernel.load_latest_state(**PLACE) == {"n": 1}


def test_branches_are_decided_on_apart(app: App) -> None:
    first = save(app, 1)
    approve(app, first)
    app.kernel.fork(first.manifest_id, owner_id="ann", branch="idea")
    with pytest.raises(NotFound):
        app.kernel.last_safe_manifest(**PLACE, branch="idea")


def test_what_cannot_be_decided_is_refused(app: App) -> None:
    first = save(app, 1)
    with pytest.raises(Invalid):
        app.kernel.decide(first.manifest_id, "maybe", actor="eve")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        app.kernel.decide(first.manifest_id, "approved", actor="")
    with pytest.raises(Invalid):
        app.kernel.decide(first.manifest_id, "approved", actor="eve", score=float("nan"))
    with pytest.raises(NotFound):
        app.kernel.decide(first.manifest_id, "approved", actor="eve", owner_id="bob")
    with pytest.raises(NotFound):
        app.kernel.decisions("00" * 32)
    assert app.kernel.decisions(first.manifest_id) == []


def test_a_changed_decision_is_found(app: App, store: Store) -> None:
    first = save(app, 1)
    app.kernel.decide(first.manifest_id, "rejected", actor="eve")
    (body,) = run_sql(store, "SELECT body FROM journal WHERE kind = 'decided'")[0]
    forged = bytes(body).replace(b"hrejected", b"happroved")
    assert forged != bytes(body)
    run_sql(store, "UPDATE journal SET body = ? WHERE kind = 'decided'", forged)
    with pytest.raises(Corrupt):
        app.kernel.last_safe_manifest(**PLACE)
