"""The world of the model: rows with locks and transactions, an object store, and processes that take turns.

Rows behave as in PostgreSQL's READ COMMITTED. A statement sees what is committed when it runs; what a transaction wrote
is seen by others once it commits, all at once; whoever needs a row that another transaction has locked waits, and then
sees the row as that transaction left it. A serial world is SQLite: one transaction writes at a time.

A process is a list of steps. Between any two of them it may stop for as long as it likes, or for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from tests.models.checker import Step

Value = Any
"""What a row holds; None: there is no such row."""

WHOLE_DATABASE = -1
"""What SQLite locks instead of rows."""


class Actor(NamedTuple):
    """Where a process is, and what it has in hand."""

    at: int = 0
    notes: tuple[tuple[str, Any], ...] = ()
    """What it read and remembers."""
    written: tuple[tuple[int, Value], ...] = ()
    """Its transaction's changes, which nobody else sees yet."""
    held: tuple[tuple[int, bool], ...] = ()
    """Its transaction's locks: the row, and whether others may share it (False) or not (True)."""


class State(NamedTuple):
    """Everything there is at one moment."""

    rows: tuple[Value, ...]
    objects: frozenset[str]
    actors: tuple[Actor, ...]
    durable: tuple[Value, ...] | None = None
    """The rows as they will be after a power loss; None: every commit is durable."""
    fault: str | None = None
    """What a process saw that it must never see."""


class Outcome(Enum):
    """How a process's turn ends."""

    NEXT = auto()
    WAIT = auto()
    """It cannot take its step now; nothing happened."""
    GIVE_UP = auto()
    """Its transaction is rolled back, and it goes to its next beginning, or ends."""


class Action(Protocol):
    """One step of a process. Everything it does, it does at once."""

    def take(self, turn: Turn) -> Outcome:
        """Act, or say that it has to wait."""


@dataclass(frozen=True)
class Process:
    """A program, and how it may fail."""

    name: str
    program: tuple[Action, ...]
    beginnings: tuple[int, ...] = ()
    """Where it starts again when it gave up or crashed; behind the last one, it ends."""
    patient: bool = False
    """It is tried again and again, and may wait for ever for something that never comes."""

    def after_failure(self, at: int) -> int:
        if self.patient:
            return 0
        return next((beginning for beginning in self.beginnings if beginning > at), len(self.program))


class World:
    """Which rows there are, and who is at work. Implements `checker.Model`, but for what counts as a violation."""

    def __init__(
        self,
        rows: Mapping[str, Value],
        processes: tuple[Process, ...],
        *,
        objects: frozenset[str] = frozenset(),
        serial: bool = False,
        lossy: bool = False,
    ) -> None:
        self.names = tuple(rows)
        self.index = {name: place for place, name in enumerate(self.names)}
        self.processes = processes
        self.serial = serial
        values = tuple(rows.values())
        self._initial = State(values, objects, (Actor(),) * len(processes), values if lossy else None)

    def initial(self) -> State:
        return self._initial

    def table(self, *tables: str) -> Iterator[tuple[str, int]]:
        """The rows of some tables, and where they are."""
        return ((name, place) for name, place in self.index.items() if name.partition(" ")[0] in tables)

    def steps(self, state: State) -> Iterator[Step[State]]:
        moved = impatient = False
        for number, process in enumerate(self.processes):
            actor = state.actors[number]
            if actor.at == len(process.program):
                continue
            turn = Turn(self, state, number)
            outcome = process.program[actor.at].take(turn)
            if outcome is not Outcome.WAIT:
                moved = True
                yield turn.end(outcome)
            impatient |= not process.patient
            if actor.at and actor.at not in process.beginnings:
                yield Turn(self, state, number).crash()
        if impatient and not moved:
            yield Step("nobody can go on", state._replace(fault="everybody waits for somebody else"))


class Turn:
    """One process's view of the world while it takes one step."""

    __slots__ = ("_actor", "_durable", "_fault", "_me", "_objects", "_rows", "_said", "_state", "_world")

    def __init__(self, world: World, state: State, me: int) -> None:
        self._world = world
        self._state = state
        self._me = me
        self._actor = state.actors[me]
        self._rows = state.rows
        self._objects = state.objects
        self._durable = state.durable
        self._fault = state.fault
        self._said: list[str] = []

    # What it can see.

    @property
    def objects(self) -> frozenset[str]:
        return self._objects

    def read(self, row: str) -> Value:
        """The row as committed, or as this transaction has changed it."""
        place = self._world.index[row]
        for written, value in self._actor.written:
            if written == place:
                return value
        return self._rows[place]

    def table(self, *tables: str) -> Iterator[tuple[str, Value]]:
        """Every row of some tables, in one snapshot."""
        return ((name, self._rows[place]) for name, place in self._world.table(*tables))

    def recall(self, note: str) -> Any:
        return next((value for name, value in self._actor.notes if name == note), None)

    # What it can do.

    def say(self, text: str) -> None:
        self._said.append(text)

    def note(self, **notes: Any) -> None:
        """Remember something; None: forget it."""
        kept = {**dict(self._actor.notes), **notes}
        self._actor = self._actor._replace(
            notes=tuple(sorted((name, value) for name, value in kept.items() if value is not None))
        )

    def begin(self) -> bool:
        """Be in a transaction that will write. On SQLite that is a lock by itself; False: somebody has it."""
        return not self._world.serial or self._take(WHOLE_DATABASE, exclusive=True)

    def lock(self, row: str, *, exclusive: bool) -> bool:
        """Take a row until the transaction ends; False: somebody has it, and this process must wait."""
        return self.begin() and self._take(self._world.index[row], exclusive=exclusive)

    def _take(self, place: int, *, exclusive: bool) -> bool:
        for number, other in enumerate(self._state.actors):
            if number != self._me:
                for held, exclusively in other.held:
                    if held == place and (exclusive or exclusively):
                        return False
        if (place, True) not in self._actor.held and (place, exclusive) not in self._actor.held:
            mine = {**dict(self._actor.held), place: exclusive}
            self._actor = self._actor._replace(held=tuple(sorted(mine.items())))
        return True

    def write(self, row: str, value: Value) -> None:
        """Change a row that is locked."""
        place = self._world.index[row]
        assert (place, True) in self._actor.held, f"{row} is written without a lock"
        written = {**dict(self._actor.written), place: value}
        # By place: values of one row do not compare with those of another.
        self._actor = self._actor._replace(written=tuple(sorted(written.items(), key=lambda each: each[0])))

    def commit(self, *, durable: bool = True) -> None:
        """Make the changes visible and let go of the locks. Making a commit durable makes all before it durable."""
        if self._actor.written:
            rows = list(self._rows)
            for place, value in self._actor.written:
                rows[place] = value
            self._rows = tuple(rows)
        self._actor = self._actor._replace(written=(), held=())
        if durable and self._durable is not None:
            self._durable = self._rows

    def put_object(self, name: str) -> None:
        self._objects |= {name}

    def delete_object(self, name: str) -> None:
        self._objects -= {name}

    def report(self, fault: str) -> None:
        """What was just seen must never be seen."""
        self._fault = fault

    # How it ends.

    def end(self, outcome: Outcome) -> Step[State]:
        process = self._world.processes[self._me]
        if outcome is Outcome.GIVE_UP:
            self._actor = Actor(process.after_failure(self._actor.at))
        else:
            at = self._actor.at + 1
            # Whoever starts again or ends has no use for notes, and states that differ only in them are the same.
            fresh = at == len(process.program) or at in process.beginnings
            self._actor = Actor(at) if fresh else self._actor._replace(at=at)
        return self._step()

    def crash(self) -> Step[State]:
        """The process dies here; the database rolls its transaction back."""
        self._actor = Actor(self._world.processes[self._me].after_failure(self._actor.at))
        self._said = ["crashes"]
        return self._step()

    def lose_power(self) -> None:
        """The database comes back without what was not durable. Open transactions are lost. Where the database is a
        server, processes elsewhere survive; where it is a file, they die with it."""
        assert self._durable is not None
        self._rows = self._durable
        actors = list(self._state.actors)
        for number, actor in enumerate(actors):
            begun = actor.at and actor.at not in self._world.processes[number].beginnings
            if actor.held or (self._world.serial and begun):
                actors[number] = Actor(self._world.processes[number].after_failure(actor.at))
        self._state = self._state._replace(actors=tuple(actors))

    def _step(self) -> Step[State]:
        actors = list(self._state.actors)
        actors[self._me] = self._actor
        name = self._world.processes[self._me].name
        return Step(
            f"{name}: {'; '.join(self._said) or 'goes on'}",
            State(self._rows, self._objects, tuple(actors), self._durable, self._fault),
        )
