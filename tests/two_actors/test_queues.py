"""Two workers at one queue: never more at a time, nor more beginnings within a period, than it may have; a run is one
worker's; nobody waits for ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, connect, is_sqlite, select
from tests.stores import Store

LONGEST_S = 60
LATE: dict[str, Any] = {"sqlite_lock_timeout_s": LONGEST_S}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


class Mail:
    """A step at which the first who comes stays until it may go on; others are counted and pass."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.inside = threading.Event()
        self.most = 0
        self.times = 0
        self._now = 0
        self._lock = threading.Lock()
        self.flow = analemma.Flow("mail")
        self.flow.step(self._send_step())

    def _send_step(self) -> Callable[[Any, Any], None]:
        def send(state: Any, ctx: Any) -> None:
            with self._lock:
                self._now += 1
                self.times += 1
                is_first, self.most = self.times == 1, max(self.most, self._now)
            self.inside.set()
            if is_first:
                assert self.may_go_on.wait(LONGEST_S)
            with self._lock:
                self._now -= 1

        return send

    def start(self, app: analemma.App, name: str, queue: str = "mail", **more: Any) -> str:
        return app.flows.start(self.flow, workflow_id=name, owner_id="ann", queue=queue, **more).execution_id


@contextmanager
def two_workers(store: Store, mail: Mail) -> Iterator[tuple[analemma.App, analemma.App]]:
    with store.open(**LATE) as app, store.open(**LATE) as other, ExitStack() as stack:
        stack.callback(mail.may_go_on.set)
        for each in (app, other):
            each.flows.register(mail.flow)
        yield app, other


def drain(app: analemma.App) -> Callable[[], object]:
    return lambda: app.run_worker(1).drain()


def meet_at_the_queue(store: Store, app: analemma.App, other: analemma.App, mail: Mail) -> None:
    """Two workers look at the same moment; the first has counted, and not taken its run, when the second comes. The
    second is done while the first is at its run."""
    with failpoints.paused("queue.before_claim", drain(app)) as first:
        with beside(drain(other)) as second:
            if not is_sqlite(store):
                wait_for_waiting(store.url, second)
            going_on = threading.Thread(target=first.go_on, daemon=True)
            going_on.start()
            assert mail.inside.wait(LONGEST_S)
        mail.may_go_on.set()
        going_on.join(LONGEST_S)
        assert not going_on.is_alive()


def test_two_who_come_for_the_last_place_do_not_both_have_it(store: Store) -> None:
    """Guard: who counts the runs of a queue has the queue to itself until it has taken one."""
    mail = Mail()
    with two_workers(store, mail) as (app, other):
        app.flows.queues.set("mail", concurrency=1)
        for name in ("a", "b"):
            mail.start(app, name)
        meet_at_the_queue(store, app, other, mail)
        assert mail.most == 1
        # Whoever had no place is not forgotten.
        app.run_worker(1).drain()
        assert [run.status for run in app.flows.runs()] == ["COMPLETED"] * 2
        assert (mail.most, mail.times) == (1, 2)


def test_two_who_come_for_the_last_beginning_of_a_period_do_not_both_have_it(store: Store) -> None:
    """Guard: who counts what began within a period has the queue to itself until it has begun one."""
    mail = Mail()
    with two_workers(store, mail) as (app, other):
        app.flows.queues.set("mail", rate=1, per_s=1000)
        for name in ("a", "b"):
            mail.start(app, name)
        meet_at_the_queue(store, app, other, mail)
        assert [run.status for run in app.flows.runs()] == ["PENDING", "COMPLETED"]
        # A period later the other may begin.
        assert change(store, "UPDATE run_start SET at = at - 1000000000") == 1
        app.run_worker(1).drain()
        assert [run.status for run in app.flows.runs()] == ["COMPLETED"] * 2


def test_what_died_with_its_place_is_gone_on_with_by_one(store: Store) -> None:
    """Guard: a place is a lease, which ends; who takes it next counts those of the others."""
    mail = Mail()
    with two_workers(store, mail) as (app, other):
        app.flows.queues.set("mail", concurrency=1)
        for name in ("a", "b"):
            mail.start(app, name)
        with failpoints.call("run.after_claim", die):
            app.run_worker(1).drain()
        assert app.flows.queues.get("mail").working == 1
        other.run_worker(1).drain()
        assert mail.times == 0
        assert change(store, "UPDATE run SET due_at = 1 WHERE holder IS NOT NULL") == 1
        meet_at_the_queue(store, app, other, mail)
        assert mail.most == 1
        # What has begun goes on before anything else begins.
        assert [run.status for run in app.flows.runs(workflow_id="a")] == ["COMPLETED"]


class Died(Exception):
    """Stands for the end of a worker: nothing that it would do afterwards is done."""


def die() -> None:
    raise Died


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
@pytest.mark.parametrize("queue", ["", "mail"], ids=["no queue", "queue"])
def test_a_run_that_two_take_at_once_is_one_workers(migrated_url: str, tmp_path: Path, queue: str, begun: bool) -> None:
    """Guard: on PostgreSQL a worker locks what it takes while it looks, and passes over what another has locked."""
    mail, store = Mail(), Store(migrated_url, str(tmp_path / "objects"))
    mail.may_go_on.set()
    with two_workers(store, mail) as (app, other), connect(store.url) as between:
        run = mail.start(app, "a", queue)
        if begun:
            with failpoints.call("run.after_claim", die):
                app.run_worker(1).drain()
            change(store, "UPDATE run SET due_at = 1")
        between.execute("SELECT FROM run FOR UPDATE")
        with beside(drain(app)) as one, beside(drain(other)) as two:
            wait_for_waiting(store.url, one, two)
            between.rollback()
        app.run_worker(1).drain()
        assert app.flows.get(run).status == "COMPLETED"
        assert mail.times == 1
        assert select(store, "SELECT fence FROM run") == [(3 if begun else 2,)]


def test_a_queue_is_not_forgotten_while_a_run_is_started_in_it(migrated_url: str, tmp_path: Path) -> None:
    """Guard: on PostgreSQL whoever forgets queues that have no runs waits for those who are starting one."""
    mail, store = Mail(), Store(migrated_url, str(tmp_path / "objects"))
    mail.may_go_on.set()
    with two_workers(store, mail) as (app, other), connect(store.url) as between:
        mail.start(app, "a")
        mail.start(app, "w", queue="other")
        change(store, "DELETE FROM run WHERE workflow = 'a'")
        # What a start changes last: it has the queue behind it, and its run is not there for others yet.
        between.execute("SELECT FROM workflow WHERE workflow = 'w' FOR UPDATE")
        with beside(lambda: mail.start(other, "w")) as starting:
            wait_for_waiting(store.url, starting)
            with beside(lambda: app.flows.forget(3600)) as forgetting:
                wait_for_waiting(store.url, starting, forgetting)
                between.rollback()
        app.run_worker(1).drain()
        assert [run.status for run in app.flows.runs()] == ["COMPLETED"] * 2
