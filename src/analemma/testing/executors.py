"""For people who write executors: the suite that each must pass.

class TestMyExecutor(ExecutorSuite):
    @pytest.fixture
    def executor(self):
        with MyCalls() as executor:
            yield executor
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Invalid, Unavailable
from analemma.executors.port import Call, CallExecutor, Next

MEETING, MEETING_S = 2, 120.0


def square(number: int) -> int:
    """Called by the suite."""
    return number * number


def meet(folder: str, number: int) -> int:
    """The process that it runs in, once all `MEETING` calls are under way."""
    Path(folder, f"{number}").touch()
    deadline = time.monotonic() + MEETING_S
    while len(os.listdir(folder)) < MEETING:
        if time.monotonic() > deadline:
            raise TimeoutError(f"call {number} runs alone")
        time.sleep(0.01)
    return os.getpid()


def refuse(number: int) -> None:
    """Raises an error with facts."""
    raise Invalid(f"{number} is refused", hint="give another", number=number, pointer="/a")


class Unpicklable(Exception):
    """Cannot be sent."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")


def refuse_badly(number: int) -> None:
    """Raises an error that cannot be sent."""
    raise Unpicklable(f"{number} cannot be said")


def die_at_first(marker: str, number: int) -> int:
    """The first to come here dies, as by kill -9."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return number
    os.kill(os.getpid(), signal.SIGKILL)
    return -1


def die(number: int) -> None:
    """Dies every time."""
    os.kill(os.getpid(), signal.SIGKILL)


class ExecutorSuite:
    """What every executor does. `survives`: whether it goes on when a worker dies."""

    survives = True

    def test_every_call_is_answered_once(self, executor: CallExecutor) -> None:
        assert executor.slots >= 1 and executor.name
        answers = list(executor.map(square, range(50)))
        assert sorted(answers) == [(number, number * number) for number in range(50)]

    def test_few_calls_are_handed_out_at_a_time(self, executor: CallExecutor) -> None:
        given: list[int] = []
        answered: list[int] = []
        most = 0

        def source() -> Call | Next:
            nonlocal most
            if len(given) == 40:
                return Next.OVER
            given.append(len(given))
            most = max(most, len(given) - len(answered))
            return Call(square, (given[-1],), given[-1])

        for outcome in executor.run(source, ahead=3):
            answered.append(outcome.get())
        # One more than are out: those that are done are told one after the other.
        assert len(answered) == 40 and most <= 3 + 3

    def test_a_source_may_wait_and_go_on_after_an_outcome(self, executor: CallExecutor) -> None:
        waiting = [2]
        asked = 0

        def source() -> Call | Next:
            nonlocal asked
            asked += 1
            if asked == 1:
                return Next.LATER
            return Call(square, (waiting.pop(),)) if waiting else Next.OVER

        seen = []
        for outcome in executor.run(source, poll_s=0.01):
            seen.append(outcome.get())
            if outcome.get() < 100:
                waiting.append(outcome.get())
        assert seen == [4, 16, 256]

    def test_an_error_comes_back_as_it_was_raised(self, executor: CallExecutor) -> None:
        calls = iter([Call(refuse, (1,)), Call(square, (2,))])
        outcomes = list(executor.run(lambda: next(calls, Next.OVER)))
        errors = [each.error for each in outcomes if each.error is not None]
        assert len(outcomes) == 2 and len(errors) == 1
        assert type(errors[0]) is Invalid and errors[0].facts == {"number": 1, "pointer": "/a"}
        assert errors[0].hint == "give another"

    def test_an_error_that_cannot_travel_is_told_all_the_same(self, executor: CallExecutor) -> None:
        with pytest.raises(Exception, match="1 cannot be said"):
            list(executor.map(refuse_badly, [1]))

    def test_calls_run_side_by_side(self, executor: CallExecutor, tmp_path: Path) -> None:
        if executor.slots < MEETING:
            pytest.skip("one at a time")
        calls = iter([Call(meet, (str(tmp_path), number)) for number in range(MEETING)])
        processes = {each.get() for each in executor.run(lambda: next(calls, Next.OVER))}
        assert (os.getpid() in processes) == (not executor.apart)

    def test_a_call_whose_worker_died_is_made_again(self, executor: CallExecutor, tmp_path: Path) -> None:
        if not executor.apart or not self.survives:
            pytest.skip("its calls run in this process, or it is the caller's")
        marker = str(tmp_path / "marker")
        calls = iter([Call(die_at_first, (marker, number)) for number in range(6)])
        outcomes = list(executor.run(lambda: next(calls, Next.OVER)))
        assert sorted(each.get() for each in outcomes) == list(range(6))

    def test_a_call_that_kills_every_worker_is_given_up(self, executor: CallExecutor) -> None:
        if not executor.apart or not self.survives:
            pytest.skip("its calls run in this process, or it is the caller's")
        calls = iter([Call(die, (1,))])
        (outcome,) = executor.run(lambda: next(calls, Next.OVER), attempts=2)
        assert isinstance(outcome.error, Unavailable) and "died" in outcome.error.message
        assert sorted(executor.map(square, [3])) == [(3, 9)]

    def test_a_run_that_is_left_ends(self, executor: CallExecutor) -> None:
        running = executor.map(square, range(1000))
        assert next(running)[1] >= 0
        running.close()  # type: ignore[attr-defined]
        assert sorted(executor.map(square, [5])) == [(5, 25)]
