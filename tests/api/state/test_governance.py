"""Decisions: records that add up, and the way back to the newest approved version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from analemma import App, Commit
from analemma.errors import Corrupt, Invalid, NotFound
from tests.raw_rows import change, select
from tests.stores import Store

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
    assert app.kernel.verify(**PLACE).ok


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
    [(body,)] = select(store, "SELECT body FROM journal WHERE kind = 'decided'")
    forged = bytes(body).replace(b"hrejected", b"happroved")
    assert forged != bytes(body)
    change(store, "UPDATE journal SET body = ? WHERE kind = 'decided'", (forged,))
    with pytest.raises(Corrupt):
        app.kernel.decisions(first.manifest_id)
    with pytest.raises(NotFound):
        app.kernel.last_safe_manifest(**PLACE)
    assert not app.kernel.verify(**PLACE).ok


def test_a_version_is_not_safe_because_a_row_says_so(app: App, store: Store) -> None:
    first = save(app, 1)
    app.kernel.decide(first.manifest_id, "rejected", actor="eve")
    change(store, "UPDATE decision SET decision = 'approved'")
    with pytest.raises(Corrupt, match="journal says otherwise"):
        app.kernel.last_safe_manifest(**PLACE)
    assert app.kernel.verify(**PLACE).problems == ["version 1 is shown as approved, the journal says rejected"]


def test_a_decision_in_the_journal_of_another_branch_counts_for_nothing(app: App, store: Store) -> None:
    first = save(app, 1)
    app.kernel.decide(first.manifest_id, "approved", actor="eve")
    change(store, "UPDATE journal SET owner = 'mallory' WHERE kind = 'decided'")
    assert app.kernel.decisions(first.manifest_id) == []
    with pytest.raises(Corrupt):
        app.kernel.last_safe_manifest(**PLACE)


def test_history_by_decision_meets_each_version_once(app: App) -> None:
    commits = [save(app, number) for number in range(12)]
    verdicts: list[Literal["approved", "rejected", "escalated", "pending"]] = [
        "approved",
        "rejected",
        "escalated",
        "pending",
    ]
    for number, commit in enumerate(commits[:-2]):
        # An earlier decision counts for nothing.
        app.kernel.decide(commit.manifest_id, verdicts[(number + 1) % 4], actor="bot")
        app.kernel.decide(commit.manifest_id, verdicts[number % 4], actor="eve")
    for number, verdict in enumerate(verdicts):
        expected = [place + 1 for place in range(10) if place % 4 == number][::-1]
        for size in (1, 2, 100):
            seen: list[int] = []
            while page := app.kernel.history(**PLACE, decision=verdict, limit=size, after=seen[-1] if seen else None):
                seen += [version.version for version in page]
                # What is decided while someone reads moves no version to another place.
                app.kernel.decide(commits[0].manifest_id, "approved", actor="bot")
            assert seen == expected
    with pytest.raises(Invalid, match="not a decision"):
        app.kernel.history(**PLACE, decision="perhaps")  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        app.kernel.history(workflow_id="nothing", owner_id="ann", decision="approved")
    assert app.kernel.history(**PLACE, branch="main", decision="approved", execution_id="e") == []


def test_expiry_takes_decisions_along(app: App) -> None:
    first, _ = save(app, 1), save(app, 2)
    approve(app, first)
    app.kernel.set_retention(**PLACE, keep_last=1)
    app.kernel.expire(**PLACE)
    assert app.kernel.history(**PLACE, decision="approved") == []
    assert [each.decision for each in app.kernel.decisions(first.manifest_id)] == ["approved"]
    assert app.kernel.verify(**PLACE).problems == []
