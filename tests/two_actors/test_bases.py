"""A version that a commit builds on expires at the same moment: the commit takes all of it over, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Expired
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import connect
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
TEXT = "what only the old version has " * 200
OTHERS_HEAD = """
SET LOCAL session_replication_role = replica;
INSERT INTO head (tenant, owner, workflow, branch, manifest, version, journal_seq, journal_tip)
SELECT tenant, owner, 'copy', branch, manifest, version, journal_seq, journal_tip FROM head WHERE branch = 'main'
"""
COPY = """
INSERT INTO workflow (tenant, owner, workflow, name, status, created_at, updated_at)
SELECT tenant, owner, 'copy', 'copy', status, 0, 0 FROM workflow WHERE workflow = 'trip'
"""
PIN = """
INSERT INTO ref (tenant, manifest, owner, workflow, kind, name, branch, text, created_at)
SELECT tenant, id, owner, workflow, 'pin', encode(id, 'hex'), branch, 'kept', 0
FROM manifest WHERE branch = 'draft' AND version = 2
"""


@pytest.fixture
def server(migrated_url: str, tmp_path: Path) -> Store:
    return Store(migrated_url, str(tmp_path / "objects"))


def prepare(app: analemma.App) -> str:
    """A branch whose version before the newest has a block that nothing else has; that version."""
    first = app.kernel.save_state_delta({"n": 1}, **PLACE)
    app.kernel.fork(first.manifest_id, owner_id="ann", branch="draft")
    old = app.kernel.save_state_delta({"text": TEXT}, **PLACE, branch="draft")
    app.kernel.save_state_delta({"text": "short"}, **PLACE, branch="draft")
    app.kernel.set_retention(owner_id="ann", keep_last=1)
    return old.manifest_id


def forget(app: analemma.App) -> int:
    """Expire all but the newest version of the branch, and collect what only those had; how many."""
    gone = app.kernel.expire(**PLACE, branch="draft").expired
    for _ in range(2):
        assert app.gc.run(grace_s=0).ok
    return len(gone)


def fork(app: analemma.App, manifest: str) -> object:
    return app.kernel.fork(manifest, owner_id="ann", workflow_id="copy")


def merge(app: analemma.App, manifest: str) -> object:
    return app.kernel.merge(**PLACE, source=manifest)


Verb = Callable[[analemma.App, str], object]
VERBS = pytest.mark.parametrize("verb", [fork, merge], ids=lambda each: each.__name__)


@VERBS
def test_a_commit_on_a_version_that_expired_meanwhile_is_refused(store: Store, verb: Verb) -> None:
    """Guard: a commit looks for its bases again in its own transaction."""
    with store.open() as app, store.open() as other:
        old = prepare(app)
        with failpoints.paused("commit.before_transaction", lambda: verb(app, old)) as held:
            assert forget(other) == 2
            with pytest.raises(Expired):
                held.go_on()
        assert_whole(other)


@pytest.mark.parametrize(
    ("verb", "blocker"),
    [(fork, OTHERS_HEAD), (merge, "SELECT FROM head WHERE branch = 'main' FOR UPDATE")],
    ids=["fork", "merge"],
)
def test_a_commit_sees_that_its_base_expired_after_it_had_begun(server: Store, verb: Verb, blocker: str) -> None:
    """Guard: a commit on PostgreSQL locks its bases. It may see a version, as one statement sees one moment, that is
    gone when its turn to lock comes; here it waits for somebody who has the head meanwhile."""
    with server.open() as app, server.open() as other:
        old = prepare(app)

        def refused() -> None:
            with pytest.raises(Expired):
                verb(app, old)

        with connect(server.url) as holder:
            holder.execute(blocker.encode())
            with beside(refused) as committing:
                wait_for_waiting(server.url, committing)
                assert forget(other) == 2
                holder.rollback()
        assert_whole(other)


def test_what_a_commit_builds_on_does_not_expire_while_it_goes_on(server: Store) -> None:
    """Guard: a commit on PostgreSQL locks its bases; here it waits, behind that, for somebody who makes a workflow."""
    with server.open() as app, server.open() as other:
        old = prepare(app)
        with connect(server.url) as holder:
            holder.execute(COPY)
            with beside(lambda: fork(app, old)) as committing:
                wait_for_waiting(server.url, committing)
                with beside(lambda: forget(other)) as expiring:
                    wait_for_waiting(server.url, committing, expiring)
                    holder.rollback()
        assert app.kernel.load_latest_state(workflow_id="copy", owner_id="ann")["text"] == TEXT
        assert app.kernel.verify(workflow_id="copy", owner_id="ann").ok


def test_a_version_that_is_kept_while_it_expires_stays(server: Store) -> None:
    """Guard: expiry locks the versions, which waits for everybody who is about to name one, before it looks who keeps
    them. Whoever marks a version by a verb has the branch besides; another program may not."""
    with server.open() as app:
        prepare(app)
        with connect(server.url) as holder:
            holder.execute(PIN)
            with beside(lambda: app.kernel.expire(**PLACE, branch="draft")) as expiring:
                wait_for_waiting(server.url, expiring)
                assert expiring.is_alive()
                holder.commit()
        assert [each.version for each in app.kernel.history(**PLACE, branch="draft", forks=False)] == [4, 2]


def assert_whole(app: analemma.App) -> None:
    assert app.kernel.load_latest_state(**PLACE) == {"n": 1}
    for branch in ("main", "draft"):
        assert app.kernel.verify(**PLACE, branch=branch).ok
    assert [each.workflow_id for each in app.kernel.list_workflows(owner_id="ann").items] == ["trip"]
