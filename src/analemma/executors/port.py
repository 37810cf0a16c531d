"""The port for "run these calls somewhere": a few at a time, results as they come, again when a worker died."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from analemma.errors import AnalemmaError, Invalid, Unavailable
from analemma.executors.guarding import Raised, guarded

ATTEMPTS: Final = 5
"""So often a call may end with its worker before it is given up: it may be what kills them."""
AHEAD: Final = 2
"""Calls that are handed out, for each that can run at a time: nobody waits for the next, and few are lost with one."""
POLL_S: Final = 0.1
LEAVE_S: Final = 60.0
"""So long a run that is left waits for what is running."""
ASK_S: Final = 5.0
"""So often a run asks whether there are workers, while nothing ends."""
WORKERLESS_S: Final = 120.0
"""So long it waits for workers that are not there. A busy machine takes half a minute to start one."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Call:
    """A function and what it is called with. Where calls run in other processes, all of it is pickled: the function by
    its name, and plain data."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    tag: Any = None
    """What the caller knows it by; stays here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended."""

    call: Call
    result: Any = None
    error: BaseException | None = None
    """What the function raised; Unavailable if its workers died too often."""
    attempts: int = 1

    def get(self) -> Any:
        """The result, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.result


class Next(Enum):
    """What a source answers that has no call."""

    LATER = "later"
    """None now: to be asked again soon."""
    OVER = "over"
    """None, unless an outcome brings about more."""


Source = Callable[[], Call | Next]
"""Asked for one call at a time, whenever there is room, and by one thread."""


class CallExecutor(ABC):
    """Runs calls. An adapter says how one is handed over, and how to tell that a worker died."""

    name: str
    slots: int
    """How many calls run at a time."""
    apart: bool
    """Whether calls run in other processes, which have nothing of this one's."""

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Hand a call over."""

    def lost(self, error: BaseException) -> bool:
        """Whether an error says that a worker died, and nothing of the call itself."""
        return False

    def revive(self) -> None:  # noqa: B027
        """After a loss and before the next call: make whole what can be made whole, or raise Unavailable."""

    def missing(self) -> str | None:
        """Why no call can run now, as a sentence that can be followed by "for 120 s"; None if calls can. Asked now and
        then while nothing ends. Does not wait long for an answer, and mends what it can."""
        return None

    def abandon(self, future: Future[Any]) -> None:
        """Nobody wants the answer any more: a call that has not begun need not begin."""
        future.cancel()

    def close(self) -> None:  # noqa: B027
        """Give back what was started here; safe to call twice."""

    def __enter__(self) -> CallExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(self, function: Callable[..., Any], items: Iterable[Item], **options: Any) -> Iterator[tuple[Item, Any]]:
        """Each item with the function's answer for it, as they come; the first error is raised."""
        rest = iter(items)

        def source() -> Call | Next:
            for item in rest:
                return Call(function, (item,), item)
            return Next.OVER

        for outcome in self.run(source, **options):
            yield outcome.call.tag, outcome.get()

    def run(
        self,
        source: Source,
        *,
        ahead: int | None = None,
        attempts: int = ATTEMPTS,
        poll_s: float = POLL_S,
        ask_s: float = ASK_S,
        workerless_s: float = WORKERLESS_S,
    ) -> Iterator[Outcome]:
        """Run what a source gives, until it has no more, and tell how each call ended, as they end. At most `ahead`
        calls are handed out at a time, and those that a worker died with are handed out again. A call may take as long
        as it likes; with nobody there to run it, it is waited for `workerless_s`, then Unavailable is raised. Left
        early, it waits for what is running."""
        most = self.slots * AHEAD if ahead is None else ahead
        if most < 1 or attempts < 1:
            raise Invalid(f"{most} calls at a time, {attempts} attempts", hint="give 1 or more of each")
        return _Running(self, source, most, attempts, poll_s, ask_s, workerless_s).outcomes()


class _Running:
    """One run."""

    def __init__(
        self,
        executor: CallExecutor,
        source: Source,
        most: int,
        attempts: int,
        poll_s: float,
        ask_s: float,
        workerless_s: float,
    ) -> None:
        self._executor = executor
        self._source = source
        self._most = most
        self._attempts = attempts
        self._poll_s = poll_s
        self._ask_s = min(ask_s, workerless_s)
        self._workerless_s = workerless_s
        self._asked = time.monotonic()
        self._workerless_since: float | None = None
        self._running: dict[Future[Any], tuple[Call, int]] = {}
        self._again: deque[tuple[Call, int]] = deque()

    def outcomes(self) -> Iterator[Outcome]:
        try:
            while True:
                answer = self._fill()
                if self._running:
                    yield from self._collect()
                elif self._again:
                    continue
                elif answer is Next.OVER:
                    return
                else:
                    time.sleep(self._poll_s)
        finally:
            for future in self._running:
                self._executor.abandon(future)
            wait([future for future in self._running if not future.cancelled()], timeout=LEAVE_S)

    def _fill(self) -> Next:
        """Hand out as much as there is room for; what the source said last."""
        while len(self._running) < self._most:
            if self._again:
                call, attempt = self._again.popleft()
            else:
                found = self._source()
                if isinstance(found, Next):
                    return found
                call, attempt = found, 1
            try:
                self._running[self._submit(call)] = call, attempt
            except Exception as exc:
                if not self._executor.lost(exc):
                    raise
                # Nobody has it: it did not cost an attempt, and reviving either helps or raises.
                self._again.appendleft((call, attempt))
                self._executor.revive()
        return Next.LATER

    def _submit(self, call: Call) -> Future[Any]:
        if self._executor.apart:
            return self._executor.submit(guarded, call.function, *call.arguments)
        return self._executor.submit(call.function, *call.arguments)

    def _collect(self) -> Iterator[Outcome]:
        done, _ = wait(self._running, timeout=self._poll_s, return_when=FIRST_COMPLETED)
        if done:
            self._workerless_since = None
        else:
            self._ask_for_workers()
        lost = False
        for future in done:
            call, attempt = self._running.pop(future)
            result, error, died = self._settled(future)
            if not died:
                yield Outcome(call, result, error, attempt)
                continue
            lost = True
            if attempt < self._attempts:
                self._again.append((call, attempt + 1))
                continue
            gone = Unavailable(
                f"its worker died {attempt} times: {type(error).__name__}: {error}",
                hint='see what the workers said: memory, or a program without `if __name__ == "__main__":`',
            )
            yield Outcome(call, None, gone, attempt)
        if lost:
            self._executor.revive()

    def _ask_for_workers(self) -> None:
        """A call that takes long and one that nobody runs look alike, until one asks."""
        now = time.monotonic()
        if now - self._asked < self._ask_s:
            return
        missing = self._executor.missing()
        self._asked = time.monotonic()
        if missing is None:
            self._workerless_since = None
            return
        if self._workerless_since is None:
            self._workerless_since = now
        if self._asked - self._workerless_since >= self._workerless_s:
            raise Unavailable(
                f"{missing} for {self._workerless_s:g} s",
                hint="see why its workers end, or start others; then go on: what has ended is not done again",
            )

    def _settled(self, future: Future[Any]) -> tuple[Any, BaseException | None, bool]:
        """The result, the error, and whether it was the worker's death."""
        if future.cancelled():
            # By somebody else: it is as lost as one whose worker died.
            return None, CancelledError("the call was cancelled where it was to run"), True
        error = future.exception()
        if error is not None:
            return None, error, self._executor.lost(error)
        result = future.result()
        return (None, result.error, False) if isinstance(result, Raised) else (result, None, False)


def missing_package(extra: str, exc: ImportError) -> AnalemmaError:
    """What to say when an extra is not installed."""
    return Unavailable(f"{extra} is not installed: {exc}", hint=f"pip install 'analemma[{extra}]'", extra=extra)
