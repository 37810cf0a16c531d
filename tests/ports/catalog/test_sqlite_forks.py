"""A store that was open when its process forked: refused in the child, unharmed in the parent. A child may open its
own, and nothing that it commits is lost when the parent goes."""

from __future__ import annotations

import os
import signal
import subprocess
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
PACKAGE = str(Path(analemma.__file__).parent)
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


def test_a_child_is_refused_and_its_parent_goes_on(app: App) -> None:
    def work() -> None:
        refused(lambda: add(app, "child"))
        refused(lambda: has(app, "first"))
        refused(app.stats)
        app.close()
        refused(app.stats)

    wait(fork(work))
    add(app, "parent")
    assert has(app, "first", "parent") and not has(app, "child")


def test_a_child_that_opens_its_own_writes_beside_its_parent(store: Store, app: App) -> None:
    def work() -> None:
        with store.open() as own:
            add(own, "child")
            assert has(own, "first", "child")
            refused(lambda: has(app, "first"))

    child = fork(work)
    add(app, "parent")
    wait(child)
    assert has(app, "first", "child", "parent")
    assert app.kernel.verify(**AT).ok


def test_what_a_child_commits_outlives_the_close_of_its_parent(store: Store, app: App) -> None:
    (committed, tell), (closed, go_on) = os.pipe(), os.pipe()

    def work() -> None:
        own = store.open()
        add(own, "before")
        os.write(tell, b"x")
        os.read(closed, 1)
        add(own, "after")
        assert has(own, "before", "after")

    child = fork(work)
    os.close(tell)
    os.read(committed, 1)
    app.close()
    os.write(go_on, b"x")
    wait(child)
    with store.open() as again:
        assert has(again, "before", "after")
    for fd in (committed, closed, go_on):
        os.close(fd)


def test_a_child_that_is_killed_takes_nothing_along(store: Store, app: App) -> None:
    (committed, tell) = os.pipe()

    def work() -> None:
        add(store.open(), "child")
        os.write(tell, b"x")
        time.sleep(60)

    child = fork(work)
    os.close(tell)
    os.read(committed, 1)
    app.close()
    os.kill(child, 9)
    os.waitpid(child, 0)
    with store.open() as again:
        assert has(again, "child")
    os.close(committed)


def test_a_store_that_is_open_twice_is_refused_twice(store: Store, app: App) -> None:
    other = store.open()

    def work() -> None:
        refused(lambda: add(app, "one"))
        refused(lambda: add(other, "two"))
        with store.open() as own:
            add(own, "three")

    child = fork(work)
    other.close()
    wait(child)
    assert has(app, "three")


def test_a_grandchild_is_refused_what_its_grandparent_opened_and_what_its_parent_did(store: Store, app: App) -> None:
    def work() -> None:
        own = store.open()
        wait(fork(lambda: last(own)))
        add(own, "child")

    def last(parents: App) -> None:
        refused(lambda: has(app, "first"))
        refused(lambda: has(parents, "first"))
        with store.open() as own:
            add(own, "grandchild")

    wait(fork(work))
    assert has(app, "child", "grandchild")


def test_a_closed_store_stays_closed_in_a_child(store: Store, app: App) -> None:
    app.close()

    def work() -> None:
        with pytest.raises(Unavailable, match="closed"):
            has(app, "first")
        with store.open() as own:
            assert has(own, "first")

    wait(fork(work))


IN_MEMORY = """
import os, sys
import analemma
from analemma.errors import Unavailable

AT = {"workflow_id": "w", "owner_id": "ann"}
app = analemma.open("sqlite:///:memory:")
large = os.urandom(1 << 20)
app.kernel.save_state_delta({"large": large}, **AT)
if os.fork() == 0:
    try:
        app.kernel.load_latest_state(**AT)
    except Unavailable as exc:
        print(exc, flush=True)
    app.close()
    sys.exit()
os.wait()
assert app.kernel.load_latest_state(**AT) == {"large": large}
"""


def test_a_child_that_ends_leaves_its_parent_the_store_in_memory() -> None:
    done = subprocess.run([sys.executable, "-c", IN_MEMORY], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("the store was open when this process was forked"), done


def test_a_fork_during_a_transaction_goes_ahead_and_its_child_cannot_use_the_file(store: Store, app: App) -> None:
    with failpoints.paused(INSIDE, lambda: add(app, "parent")) as writing:

        def work() -> None:
            refused(lambda: add(app, "child"))
            refused(store.open)

        wait(fork(work))
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
        wait(fork(lambda: refused(lambda: has(app, "first"))))
        add(app, f"after {number}")
    assert has(app, *(f"after {number}" for number in range(3)))


class Held:
    """A read in a thread of its own that stands still the so manieth time that it calls or returns in the package:
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
        if frame.f_code.co_filename.startswith(PACKAGE):
            self._left -= 1
            if self._left == 0:
                self.was_held = True
                self.there.set()
                self.go_on.wait(60)


def test_a_fork_at_any_moment_of_another_threads_read_is_answered_in_the_child(store: Store, app: App) -> None:
    """Whatever lock the other holds, nobody in the child gives it back."""

    def work() -> None:
        signal.alarm(20)  # ends a child that waits for a thread it does not have
        refused(lambda: has(app, "first"))
        try:
            own = store.open()
        except Unavailable:
            # The other was in the midst of a statement.
            refused(store.open)
        else:
            assert has(own, "first")

    place = 1
    while True:
        held = Held(app, place)
        assert held.there.wait(60)
        if held.was_held:
            wait(fork(work))
        held.go_on.set()
        held.thread.join()
        if not held.was_held:
            break
        place += 11
    assert place > 100, "nothing was held"


PREFORK = """
import os, sys
import analemma

url, workers = sys.argv[1], 3
store = analemma.open(url)  # what a program that is loaded before its workers are forked does
store.kernel.save_state_delta({"begun": True}, workflow_id="w", owner_id="ann")


def serve(number):
    try:
        store.kernel.load_latest_state(workflow_id="w", owner_id="ann")
        return 1
    except analemma.errors.Unavailable:
        pass
    with analemma.open(url) as own:
        for turn in range(5):
            own.kernel.save_state_delta({"turn": turn}, workflow_id=f"w{number}", owner_id="ann")
    return 0


children = []
for number in range(workers):
    child = os.fork()
    if child == 0:
        sys.exit(serve(number))
    children.append(child)
    store.kernel.save_state_delta({"workers": number}, workflow_id="w", owner_id="ann")
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
found = [store.kernel.load_latest_state(workflow_id=f"w{number}", owner_id="ann")["turn"] for number in range(workers)]
print(codes, found, store.kernel.load_latest_state(workflow_id="w", owner_id="ann")["workers"])
store.close()
"""


@pytest.mark.parametrize("where", ["directory", "server"])
def test_workers_that_are_forked_from_a_loaded_program_open_their_own(
    where: str, request: pytest.FixtureRequest
) -> None:
    """As those of gunicorn with `preload_app` and of Celery's prefork pool."""
    url = request.getfixturevalue("migrated_directory" if where == "directory" else "migrated_url")
    command = [sys.executable, "-c", PREFORK, str(url)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[0] == "[0, 0, 0] [4, 4, 4] 2", done


def test_a_store_that_is_closed_gives_its_descriptors_back(store: Store) -> None:
    store.open().close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with store.open() as app:
            add(app, "one")
            assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before
