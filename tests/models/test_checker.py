"""The checker finds what is there to be found, and the world it is used on behaves as a database does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.models.checker import Step, TooManyStates, explore
from tests.models.database import Action, Outcome, Process, State, Turn, World


@dataclass(frozen=True)
class Counters:
    """Two processes add one to a number: each reads it, and then writes what it read plus one."""

    atomic: bool
    wanted: int = 2

    def initial(self) -> tuple[int, tuple[int | None, ...]]:
        return 0, (None, None)

    def steps(self, state: tuple[int, tuple[int | None, ...]]) -> Iterator[Step[tuple[int, tuple[int | None, ...]]]]:
        number, read = state
        for process, value in enumerate(read):
            if value == -1:
                continue
            if value is None and not self.atomic:
                yield Step(f"{process} reads {number}", (number, _with(read, process, number)))
            else:
                after = (number if value is None else value) + 1
                yield Step(f"{process} writes {after}", (after, _with(read, process, -1)))

    def violation(self, state: tuple[int, tuple[int | None, ...]]) -> str | None:
        number, read = state
        return f"two additions make {number}" if read == (-1, -1) and number != self.wanted else None


def _with(values: tuple[int | None, ...], place: int, value: int) -> tuple[int | None, ...]:
    return tuple(value if each == place else other for each, other in enumerate(values))


def test_a_lost_update_is_found_and_told() -> None:
    found = explore(Counters(atomic=False))
    assert str(found.trace).splitlines() == [
        "  1. 0 reads 0",
        "  2. 1 reads 0",
        "  3. 0 writes 1",
        "  4. 1 writes 1",
        "  => two additions make 1",
    ]


def test_all_states_are_seen_where_nothing_is_wrong() -> None:
    found = explore(Counters(atomic=True))
    assert found.trace is None
    assert (found.states, found.transitions, found.depth, found.at_rest) == (4, 4, 2, 1)
    assert found.said == {"0 writes 1", "1 writes 1", "0 writes 2", "1 writes 2"}


def test_states_at_rest_are_judged_too() -> None:
    found = explore(Counters(atomic=True), check_rest=lambda state: f"ends with {state[0]}")
    assert found.trace is not None and found.trace.violation == "ends with 2"


def test_a_search_that_was_cut_short_says_so() -> None:
    with pytest.raises(TooManyStates):
        explore(Counters(atomic=True), most_states=2)


@dataclass(frozen=True)
class Lock:
    row: str
    exclusive: bool

    def take(self, turn: Turn) -> Outcome:
        return Outcome.NEXT if turn.lock(self.row, exclusive=self.exclusive) else Outcome.WAIT


@dataclass(frozen=True)
class Set:
    row: str
    value: int

    def take(self, turn: Turn) -> Outcome:
        turn.write(self.row, self.value)
        return Outcome.NEXT


@dataclass(frozen=True)
class Read:
    row: str

    def take(self, turn: Turn) -> Outcome:
        turn.say(f"reads {turn.read(self.row)}")
        return Outcome.NEXT


@dataclass(frozen=True)
class Commit:
    durable: bool = True

    def take(self, turn: Turn) -> Outcome:
        turn.commit(durable=self.durable)
        turn.say("commits")
        return Outcome.NEXT


@dataclass(frozen=True)
class LosePower:
    def take(self, turn: Turn) -> Outcome:
        turn.lose_power()
        return Outcome.NEXT


class Harmless(World):
    def violation(self, state: State) -> str | None:
        return state.fault


def world(*programs: tuple[Action, ...], serial: bool = False, lossy: bool = False) -> Harmless:
    processes = tuple(Process(chr(ord("A") + number), program) for number, program in enumerate(programs))
    return Harmless({"x": 0, "y": 0}, processes, serial=serial, lossy=lossy)


def test_others_see_what_is_written_once_it_is_committed() -> None:
    found = explore(world((Lock("x", True), Set("x", 1), Read("x"), Commit()), (Read("x"),)))
    assert {"A: reads 1", "B: reads 0", "B: reads 1"} <= found.said
    assert "A: reads 0" not in found.said
    stopped = explore(world((Lock("x", True), Set("x", 1)), (Read("x"),)))
    assert "B: reads 1" not in stopped.said


def test_a_crash_undoes_the_transaction() -> None:
    found = explore(world((Lock("x", True), Set("x", 1), Lock("y", True), Commit()), (Lock("x", True), Read("x"))))
    assert "A: crashes" in found.said
    assert {"B: reads 0", "B: reads 1"} <= found.said


def test_locks_conflict_unless_both_share() -> None:
    for first, second in [(False, False), (False, True), (True, False), (True, True)]:
        state = world((Lock("x", first), Commit()), (Lock("x", second), Commit()))
        a = next(iter(state.steps(state.initial()))).state
        b_can = any(step.says.startswith("B") for step in state.steps(a))
        assert b_can == (not first and not second), (first, second)


def test_with_a_single_writer_locks_on_different_rows_conflict() -> None:
    for serial in (False, True):
        state = world((Lock("x", True), Commit()), (Lock("y", True), Commit()), serial=serial)
        a = next(iter(state.steps(state.initial()))).state
        assert any(step.says.startswith("B") for step in state.steps(a)) != serial


def test_processes_that_wait_for_each_other_are_a_violation() -> None:
    x, y = Lock("x", True), Lock("y", True)
    found = explore(world((x, y, Commit()), (y, x, Commit())))
    assert found.trace is not None and found.trace.violation == "everybody waits for somebody else"
    assert explore(world((x, y, Commit()), (x, y, Commit()))).trace is None


def test_power_loss_takes_what_was_not_durable() -> None:
    def write(durable: bool) -> tuple[Action, ...]:
        return (Lock("x", True), Set("x", 1), Commit(durable))

    for durable in (True, False):
        store = world((*write(durable), LosePower(), Read("x")), lossy=True)
        assert ("A: reads 1" in explore(store).said) == durable


def test_a_durable_commit_makes_those_before_it_durable() -> None:
    program = (Lock("x", True), Set("x", 1), Commit(False), Lock("y", True), Commit(True), LosePower(), Read("x"))
    assert "A: reads 1" in explore(world(program, lossy=True)).said
