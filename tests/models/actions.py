"""The single steps of everybody who is not the collector: what each does to rows, locks and objects, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.models.database import Outcome, Turn
from tests.models.rules import Rule

Rules = frozenset[Rule]
Blocks = tuple[str, ...]


class BlockRow(NamedTuple):
    """A block that is stored."""

    doomed: int = 0
    """The pass that doomed it; 0 stands for NULL."""
    upload: str | None = None
    """The upload whose object holds its bytes; None: they are in the row."""


class SessionRow(NamedTuple):
    """A writer that needs several transactions."""

    opened: int
    """The newest pass when it began."""
    blocks: Blocks = ()
    """What it has written. The collector does not look at this; the model does, to tell whether it is still there."""


@dataclass(frozen=True)
class Load:
    """Read something that is to be built upon: outside of any transaction, without locks, long before the commit."""

    row: str

    def take(self, turn: Turn) -> Outcome:
        if turn.read(self.row) is None:
            turn.say(f"finds no {self.row}")
            return Outcome.GIVE_UP
        turn.say(f"reads {self.row}")
        return Outcome.NEXT


@dataclass(frozen=True)
class Await:
    """Begin once something is there."""

    row: str

    def take(self, turn: Turn) -> Outcome:
        if turn.read(self.row) is None:
            return Outcome.WAIT
        turn.say(f"sees {self.row}")
        return Outcome.NEXT


@dataclass(frozen=True)
class Look:
    """Believe a block to be stored because it is now (only where rule W3 is off)."""

    block: str

    def take(self, turn: Turn) -> Outcome:
        if turn.read(f"block {self.block}") is not None:
            turn.note(**{f"known {self.block}": True})
            turn.say(f"sees that block {self.block} is stored")
        else:
            turn.say(f"sees that block {self.block} is not stored")
        return Outcome.NEXT


@dataclass(frozen=True)
class LockHead:
    """Take the branch. (A failed compare-and-set is tried again with the new head, so it always succeeds at last.)"""

    head: str

    def take(self, turn: Turn) -> Outcome:
        if not turn.lock(self.head, exclusive=True):
            return Outcome.WAIT
        turn.say(f"locks {self.head}")
        return Outcome.NEXT


@dataclass(frozen=True)
class HoldBase:
    """Take a base in share mode: nobody can end it before this transaction ends."""

    row: str
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        if not turn.begin():
            return Outcome.WAIT
        if Rule.HOLD_BASES in self.rules and not turn.lock(self.row, exclusive=False):
            return Outcome.WAIT
        if Rule.CHECK_BASES in self.rules and turn.read(self.row) is None:
            turn.say(f"finds {self.row} gone and aborts")
            return Outcome.GIVE_UP
        if Rule.CHECK_BASES not in self.rules:
            turn.say(f"takes {self.row} to be there")
        else:
            turn.say(f"holds {self.row}" if Rule.HOLD_BASES in self.rules else f"sees {self.row} again")
        return Outcome.NEXT


@dataclass(frozen=True)
class Write:
    """Write an emitted block, whether or not it is there."""

    block: str
    rules: Rules
    upload: str | None = None

    def take(self, turn: Turn) -> Outcome:
        if not turn.begin():
            return Outcome.WAIT
        row = f"block {self.block}"
        if turn.recall(f"known {self.block}"):
            turn.say(f"need not write block {self.block}")
            return Outcome.NEXT
        stored: BlockRow | None = turn.read(row)
        if stored is not None and not stored.doomed and Rule.LOCK_EMITTED not in self.rules:
            turn.say(f"finds block {self.block} there")
            return Outcome.NEXT
        if not turn.lock(row, exclusive=True):
            return Outcome.WAIT
        if stored is None:
            turn.write(row, BlockRow(upload=self.upload))
            turn.say(f"inserts block {self.block}")
        elif not stored.doomed:
            turn.say(f"finds block {self.block} there, and locks it")
        elif Rule.CLEAR_DOOM in self.rules:
            turn.write(row, stored._replace(doomed=0))
            turn.say(f"finds block {self.block} there, and clears its doom")
        else:
            turn.say(f"finds block {self.block} there, doomed")
        return Outcome.NEXT


@dataclass(frozen=True)
class OpenIntent:
    """Record that an object is about to be written."""

    upload: str
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        row = f"upload {self.upload}"
        if not turn.lock(row, exclusive=True):
            return Outcome.WAIT
        turn.write(row, "temp")
        turn.commit(durable=Rule.DURABLE_INTENT in self.rules)
        turn.say(f"commits the intent {self.upload}")
        return Outcome.NEXT


@dataclass(frozen=True)
class PutObject:
    """Write the bytes; no transaction can undo this."""

    upload: str

    def take(self, turn: Turn) -> Outcome:
        turn.put_object(self.upload)
        turn.say(f"puts object {self.upload}")
        return Outcome.NEXT


@dataclass(frozen=True)
class FinishUpload:
    """Make an upload ready, in the commit's transaction."""

    upload: str
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        row = f"upload {self.upload}"
        if not turn.lock(row, exclusive=True):
            return Outcome.WAIT
        if Rule.READY_BY_COMPARE in self.rules and turn.read(row) != "temp":
            turn.say(f"finds upload {self.upload} claimed and aborts")
            return Outcome.GIVE_UP
        turn.write(row, "ready")
        turn.say(f"makes upload {self.upload} ready")
        return Outcome.NEXT


@dataclass(frozen=True)
class MoveBlock:
    """Change where a block lies, if it is still where its bytes were read from."""

    block: str
    source: str | None
    target: str | None

    def take(self, turn: Turn) -> Outcome:
        row = f"block {self.block}"
        if not turn.lock(row, exclusive=True):
            return Outcome.WAIT
        stored: BlockRow | None = turn.read(row)
        if stored is None or stored.upload != self.source:
            turn.say(f"finds block {self.block} elsewhere and aborts")
            return Outcome.GIVE_UP
        turn.write(row, stored._replace(upload=self.target))
        turn.say(f"moves block {self.block} to {self.target}")
        return Outcome.NEXT


@dataclass(frozen=True)
class Finish:
    """Write what is new, remove what it replaces, and commit."""

    makes: tuple[tuple[str, object], ...] = ()
    drops: tuple[str, ...] = ()
    durable: bool = False

    def take(self, turn: Turn) -> Outcome:
        for row in (*self.drops, *[row for row, _ in self.makes]):
            if not turn.lock(row, exclusive=True):
                return Outcome.WAIT
        for row in self.drops:
            turn.write(row, None)
        for row, value in self.makes:
            turn.write(row, value)
        turn.commit(durable=self.durable)
        made = [row for row, _ in self.makes if not row.startswith("head")]
        parts = [f"with {', '.join(made)}"] if made else []
        parts += [f"without {', '.join(self.drops)}"] if self.drops else []
        turn.say(" ".join(["commits", *parts]))
        return Outcome.NEXT


@dataclass(frozen=True)
class PlanExpiry:
    """Choose a version to expire: one that nothing keeps, now."""

    manifest: str
    kept_by: tuple[str, ...]

    def take(self, turn: Turn) -> Outcome:
        if turn.read(self.manifest) is None or any(turn.read(row) == self.manifest for row in self.kept_by):
            return Outcome.WAIT
        turn.say(f"decides that {self.manifest} can expire")
        return Outcome.NEXT


@dataclass(frozen=True)
class CheckExpiry:
    """Look again, with the head locked: whoever sets a head, a tag or a pin locks it too."""

    manifest: str
    kept_by: tuple[str, ...]

    def take(self, turn: Turn) -> Outcome:
        if any(turn.read(row) == self.manifest for row in self.kept_by):
            turn.say(f"finds {self.manifest} kept and aborts")
            return Outcome.GIVE_UP
        turn.say(f"finds that nothing keeps {self.manifest}")
        return Outcome.NEXT


@dataclass(frozen=True)
class Drop:
    """End a root: waits for whoever holds it."""

    row: str

    def take(self, turn: Turn) -> Outcome:
        if not turn.lock(self.row, exclusive=True):
            return Outcome.WAIT
        if turn.read(self.row) is None:
            turn.say(f"finds {self.row} gone")
            return Outcome.GIVE_UP
        turn.write(self.row, None)
        turn.commit(durable=False)
        turn.say(f"removes {self.row}")
        return Outcome.NEXT


@dataclass(frozen=True)
class OpenSession:
    """Begin a session, in a transaction of its own."""

    session: str
    blocks: Blocks = ()

    def take(self, turn: Turn) -> Outcome:
        if not turn.lock(self.session, exclusive=True):
            return Outcome.WAIT
        turn.write(self.session, SessionRow(turn.read("gc"), self.blocks))
        turn.commit()
        turn.say(f"opens {self.session} in pass {turn.read('gc')}")
        return Outcome.NEXT


@dataclass(frozen=True)
class HoldSession:
    """Hold the session's row, as any other base; a session that was given up must not go on."""

    session: str
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        if not turn.lock(self.session, exclusive=True):
            return Outcome.WAIT
        if turn.read(self.session) is None and Rule.CHECK_BASES in self.rules:
            turn.say(f"finds {self.session} gone and aborts")
            return Outcome.GIVE_UP
        turn.say(f"holds {self.session}")
        return Outcome.NEXT


@dataclass(frozen=True)
class EndPart:
    """Commit one of a session's transactions."""

    session: str
    block: str

    def take(self, turn: Turn) -> Outcome:
        row: SessionRow | None = turn.read(self.session)
        if row is not None:
            turn.write(self.session, row._replace(blocks=(*row.blocks, self.block)))
        turn.commit()
        turn.say(f"commits block {self.block}")
        return Outcome.NEXT


@dataclass(frozen=True)
class Flush:
    """The database makes durable what it has, as it does every now and then."""

    def take(self, turn: Turn) -> Outcome:
        turn.commit()
        turn.say("everything so far is durable")
        return Outcome.NEXT


@dataclass(frozen=True)
class PowerLoss:
    """The database's machine goes down and comes back."""

    def take(self, turn: Turn) -> Outcome:
        turn.lose_power()
        turn.say("whatever was not durable is gone")
        return Outcome.NEXT


@dataclass(frozen=True)
class SetDamage:
    """A block becomes unreadable, or is restored from a second copy."""

    block: str
    damaged: bool

    def take(self, turn: Turn) -> Outcome:
        if not turn.lock(f"damage {self.block}", exclusive=True):
            return Outcome.WAIT
        turn.write(f"damage {self.block}", True if self.damaged else None)
        turn.commit()
        turn.say(f"block {self.block} {'cannot be read' if self.damaged else 'is repaired'}")
        return Outcome.NEXT
