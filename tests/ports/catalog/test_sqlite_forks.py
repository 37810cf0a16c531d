"""What a forked child may do with a store in a file, and that nothing it commits is lost when its parent goes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import analemma
from analemma import App
from analemma.errors import Timeout, Unavailable
from analemma.testing import failpoints
from tests.stores import Store

# A test runner has threads of its own; the child touches nothing of theirs.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
BLOCKS = str(Path(analemma.__file__).parent / "blocks")
INSIDE = "commit.before_commit"
"""A save has its transaction open, and has written everything."""


def add(app: App, name: str) -> None:
    app.kernel.save_state_delta({name: True}, **AT)


def has(app: App, *names: str) -> bool:
    return set(names) <= set(app.kernel.load_latest_state(**AT))


def fork(work: Callable[[], object]) -> int:
    """Run it in a child; the child's process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def wait(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refused(work: Callable[[], object]) -> None:
    """The work must be Unavailable, and say how to do better."""
    with pytest.raises(Unavailable, match=r"forked.*spawn"):
        work()


@pytest.fixture
def store(migrated_directory: Path) -> Store:
    return Store(str(migrated_directory))


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        add(app, "first")
        assert has(app, "first")  # so that a reading connection is idle
        yield app


def test_a_child_opens_its_own_connections_and_both_write(app: App) -> None:
    def work() -> None:
        add(app, "child")
        assert has(app, "first", "child")

    child = fork(work)
    add(app, "parent")
    wait(child)
    assert has(app, "first", "child", "parent")
    assert app.kernel.verify(**AT).ok


def test_what_a_child_commits_outlives_the_close_of_its_parent(store: Store, app: App) -> None:
    (committed, tell), (closed, go_on) = os.pipe(), os.pipe()

    def work() -> None:
        add(app, "before")
        os.write(tell, b"x")
        os.read(closed, 1)
        add(app, "after")
        assert has(app, "before", "after")

    child = fork(work)
    os.read(committed, 1)
    app.close()
    os.write(go_on, b"x")
    wait(child)
    with store.open() as again:
        assert has(again, "before", "after")
    for fd in (committed, tell, closed, go_on):
        os.close(fd)


def test_a_child_that_is_killed_takes_nothing_along(store: Store, app: App) -> None:
    (committed, tell) = os.pipe()

    def work() -> None:
        add(app, "child")
        os.write(tell, b"x")
        time.sleep(60)

    child = fork(work)
    os.read(committed, 1)
    app.close()
    os.kill(child, 9)
    os.waitpid(child, 0)
    with store.open() as again:
        assert has(again, "child")
    os.close(committed)
    os.close(tell)


def test_a_store_that_is_open_twice_crosses_a_fork_twice(store: Store, app: App) -> None:
    other = store.open()

    def work() -> None:
        add(app, "one")
        add(other, "two")
        app.close()
        add(other, "three")

    child = fork(work)
    other.close()
    wait(child)
    assert has(app, "one", "two", "three")


def test_a_grandchild_opens_its_own_connections(app: App) -> None:
    wait(fork(lambda: wait(fork(lambda: add(app, "grandchild")))))
    assert has(app, "grandchild")


def test_a_closed_store_stays_closed_in_a_child(app: App) -> None:
    app.close()

    def work() -> None:
        with pytest.raises(Unavailable, match="closed"):
            has(app, "first")

    wait(fork(work))


def test_a_store_in_memory_refuses_to_work_in_a_child() -> None:
    with analemma.open("sqlite:///:memory:") as app:
        add(app, "parent")

        def work() -> None:
            with pytest.raises(Unavailable):
                has(app, "parent")

        wait(fork(work))
        assert has(app, "parent")


def test_a_fork_waits_for_the_transactions_of_other_threads(app: App) -> None:
    with failpoints.paused(INSIDE, lambda: add(app, "parent")) as writing:
        ending = threading.Timer(0.2, writing.go_on)
        ending.start()

        def work() -> None:
            assert has(app, "parent")
            add(app, "child")

        wait(fork(work))
        ending.join()
    assert has(app, "parent", "child")
    add(app, "later")


def test_a_fork_that_cannot_wait_longer_goes_ahead_and_its_child_cannot_use_the_file(app: App) -> None:
    with failpoints.paused(INSIDE, lambda: add(app, "parent")) as writing:
        wait(fork(lambda: refused(lambda: add(app, "child"))))
        writing.go_on()
    assert has(app, "parent") and not has(app, "child")


def test_a_child_forked_inside_a_transaction_cannot_use_the_file(store: Store, app: App, tmp_path: Path) -> None:
    def work() -> None:
        refused(lambda: add(app, "child"))
        refused(lambda: has(app, "first"))
        refused(store.open)
        wait(fork(lambda: refused(store.open)))
        # Another file is no concern of that.
        analemma.open(tmp_path / "other").close()

    with failpoints.call(INSIDE, lambda: wait(fork(work))):
        add(app, "parent")
    add(app, "later")
    assert has(app, "parent", "later") and not has(app, "child")


def test_leaving_an_inherited_transaction_neither_commits_nor_unlocks_it(store: Store, app: App) -> None:
    parent = os.getpid()
    rival = store.open(sqlite_lock_timeout_s=0.1)

    def split() -> None:
        child = os.fork()
        if child:
            wait(child)
            with pytest.raises(Timeout):
                add(rival, "rival")

    with failpoints.call(INSIDE, split):
        try:
            add(app, "parent")
        except BaseException as exc:
            if os.getpid() != parent:
                os._exit(0 if isinstance(exc, Unavailable) else 2)
            raise
        finally:
            if os.getpid() != parent:
                os._exit(1)
    rival.close()
    assert has(app, "parent") and not has(app, "rival")
    assert [each.version for each in app.kernel.history(**AT)] == [2, 1]


def test_a_parent_can_fork_and_write_again_and_again(app: App) -> None:
    for number in range(3):
        wait(fork(lambda: has(app, "first")))
        add(app, f"after {number}")
    assert has(app, *(f"after {number}" for number in range(3)))


class Held:
    """A read in a thread of its own that stands still the so manieth time that it calls or returns among the blocks:
    between two lines, perhaps with a lock in its hand."""

    def __init__(self, app: App, place: int) -> None:
        self._left = place
        self.there, self.go_on = threading.Event(), threading.Event()
        self.was_held = False
        self.thread = threading.Thread(target=self._read, args=(app,))
        self.thread.start()

    def _read(self, app: App) -> None:
        sys.setprofile(self._profile)
        try:
            assert has(app, "first")
        finally:
            sys.setprofile(None)
            self.there.set()

    def _profile(self, frame: FrameType, what: str, argument: object) -> None:
        if frame.f_code.co_filename.startswith(BLOCKS):
            self._left -= 1
            if self._left == 0:
                self.was_held = True
                self.there.set()
                self.go_on.wait(60)


def test_a_fork_at_any_moment_of_another_threads_read_leaves_the_child_a_store_that_reads(app: App) -> None:
    """Whatever lock the other holds, of the cache of blocks, say, nobody in the child gives it back."""

    def work() -> None:
        signal.alarm(20)  # ends a child that waits for a thread it does not have
        assert has(app, "first")

    place = 0
    while True:
        place += 1
        held = Held(app, place)
        assert held.there.wait(60)
        if held.was_held:
            wait(fork(work))
        held.go_on.set()
        held.thread.join()
        if not held.was_held:
            break
    assert place > 5, "nothing was held"


def test_a_store_that_is_closed_gives_its_descriptors_back(store: Store) -> None:
    store.open().close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with store.open() as app:
            add(app, "one")
            assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before
