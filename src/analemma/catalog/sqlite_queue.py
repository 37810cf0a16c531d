"""The queue of threads that want to write, and the batches that its first one takes along.

Any thread may be interrupted anywhere (Ctrl-C raises between two instructions). So a request never changes places by
being taken out of one and put into another, but is put into the next before it leaves the last; and leaving and
answering may be repeated when an interrupt cut them short.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from analemma.catalog.engine import Transaction
from analemma.errors import Internal, OutcomeUnknown, Timeout, Unavailable


class Request:
    """One thread's wish to write, and the answer to it."""

    __slots__ = ("deadline", "done", "error", "lazy", "left", "move", "result", "thread", "woken")

    def __init__(
        self, move: Callable[[Transaction], Any] | None, timeout_s: float | None, *, lazy: bool = False
    ) -> None:
        self.move = move
        """None: a block that wants the transaction to itself and runs on its own thread."""
        self.lazy = lazy
        """It need not be durable when it is answered."""
        self.thread = threading.get_ident()
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        """Another thread ran it, and the answer is here."""
        self.left = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Have it look again; only with the queue's gate held."""
        if self.woken.locked():
            self.woken.release()


class Batch:
    """The requests of one transaction, the leader's first."""

    __slots__ = ("answered", "failure", "phase", "requests")

    def __init__(self, own: Request) -> None:
        self.requests = [own]
        self.phase: Literal["running", "committing", "committed"] = "running"
        self.failure: Exception | None = None
        self.answered = False

    def outcome(self) -> Exception | None:
        """What became of all of them; None if they are stored."""
        if self.phase == "committed":
            return None
        if self.failure is not None:
            return self.failure
        if self.phase == "committing":
            return OutcomeUnknown("the commit was interrupted", hint="read back before trying again")
        return Unavailable("the transaction was interrupted", hint="nothing was changed; try again")


class WriteQueue:
    """One leader at a time, the others in the order in which they came."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._leading: Request | None = None

    @property
    def is_busy(self) -> bool:
        """Whether somebody leads."""
        return self._leading is not None

    def await_turn(self, request: Request) -> None:
        """Return when the request leads or, `done`, was answered by a leader. Whatever happens, `leave` must follow."""
        leading = self._leading
        if leading is not None and leading.thread == request.thread:
            raise Internal("a write was started inside another write", hint="use the transaction it was given")
        with self._gate:
            if self._leading is None and not self._waiting:
                self._leading = request
                return
            self._waiting.append(request)
        deadline = request.deadline
        while True:
            in_time = request.woken.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic()))
            with self._gate:
                if request.done:
                    return
                if self._leading is None and self._waiting and self._waiting[0] is request:
                    self._leading = request
                    self._waiting.popleft()
                    return
                # guard: turn.timeout
                if not in_time and request in self._waiting:
                    raise Timeout(
                        "other threads of this process kept the catalog busy", hint="make their transactions shorter"
                    )
            if not in_time:
                # A leader is at it, and the answer will come: to leave now would be to leave its outcome unknown.
                deadline = None

    def leave(self, request: Request) -> None:
        """Give up the turn, or the place in the queue. May be repeated."""
        if request.left:
            return
        with self._gate:
            if self._leading is request:
                self._leading = None
            if request in self._waiting:
                self._waiting.remove(request)
            if self._leading is None and self._waiting:
                self._waiting[0].wake()
        request.left = True

    def join(self, batch: Batch) -> bool:
        """Take the first in the queue into the batch, if it may share a transaction."""
        with self._gate:
            if not self._waiting or self._waiting[0].move is None:
                return False
            batch.requests.append(self._waiting[0])
            self._waiting.popleft()
            return True

    def answer(self, batch: Batch) -> None:
        """Tell everyone in the batch what became of it. May be repeated."""
        if batch.answered:
            return
        outcome = batch.outcome()
        with self._gate:
            if self._waiting and self._waiting[0] is batch.requests[-1]:
                self._waiting.popleft()
            for request in batch.requests:
                if request.error is None:  # its own failure says more than the batch's
                    request.error = outcome
                request.done = True
                request.wake()
        batch.answered = True
