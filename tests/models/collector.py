"""The collector: passes over all blocks and uploads, by the rules that are on."""

from __future__ import annotations

from dataclasses import dataclass

from tests.models.actions import BlockRow, Finish, Rules, SessionRow
from tests.models.database import Action, Outcome, Process, Turn
from tests.models.rules import Rule

Links = dict[str, tuple[str, ...]]

ROOTS = ("manifest", "lease", "pending")
"""The tables whose rows name blocks. A head, a tag or a pin names a manifest, which is a root by itself."""

NO_SESSION = 1_000_000
"""Later than any pass."""


def below(links: Links, block: str) -> frozenset[str]:
    """A block and everything it leads to."""
    found: set[str] = set()
    waiting = [block]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += links.get(each, ())
    return frozenset(found)


@dataclass(frozen=True)
class TakeLease:
    """Begin a pass: the lease is free, or its holder has been silent for too long. Its fence is the pass's number."""

    def take(self, turn: Turn) -> Outcome:
        if not turn.lock("gc", exclusive=True):
            return Outcome.WAIT
        number = turn.read("gc") + 1
        turn.write("gc", number)
        turn.commit(durable=False)
        turn.note(number=number)
        turn.say(f"takes the lease for pass {number}")
        return Outcome.NEXT


@dataclass(frozen=True)
class Snapshot:
    """Read the roots of some tables at one moment."""

    called: str
    tables: tuple[str, ...]
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        roots: set[str] = set(turn.recall("roots") or ())
        seen: list[str] = []
        oldest: int = NO_SESSION if turn.recall("oldest") is None else turn.recall("oldest")
        for name, value in turn.table(*self.tables):
            if value is None:
                continue
            seen.append(name)
            if isinstance(value, SessionRow):
                oldest = min(oldest, value.opened)
            else:
                roots.update(value)
        turn.note(roots=tuple(sorted(roots)), oldest=oldest)
        turn.say(f"reads {self.called}: {', '.join(seen) or 'none'}")
        if Rule.DURABLE_SNAPSHOT in self.rules:
            # Its own write, durably committed: then all that it saw is durable too.
            if turn.recall("number") not in (None, turn.read("gc")):
                turn.say("finds that the lease is gone")
                return Outcome.GIVE_UP
            turn.commit()
        return Outcome.NEXT


@dataclass(frozen=True)
class Mark:
    """Walk from the roots to everything below them, in transactions of its own, after the snapshot."""

    links: Links
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        marked: set[str] = set()
        waiting: list[str] = list(turn.recall("roots"))
        while waiting:
            block = waiting.pop()
            if block in marked:
                continue
            marked.add(block)
            links = self.links.get(block, ())
            gone = turn.read(f"block {block}") is None
            if links and (gone or turn.read(f"damage {block}")):
                if gone and turn.read("gc") == turn.recall("number"):
                    turn.report(f"a pass that holds its lease misses block {block}, which its snapshot leads to")
                if Rule.STOP_AT_UNREADABLE in self.rules:
                    turn.say(f"cannot read block {block} and ends the pass")
                    return Outcome.GIVE_UP
                continue
            if Rule.FOLLOW_LINKS in self.rules:
                waiting += links
        turn.note(roots=None, marked=tuple(sorted(marked)))
        turn.say(f"marks {', '.join(sorted(marked)) or 'nothing'}")
        return Outcome.NEXT


@dataclass(frozen=True)
class CheckFence:
    """Begin a transaction of the pass: is the lease still ours?"""

    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        if not turn.begin() or (Rule.HOLD_FENCE in self.rules and not turn.lock("gc", exclusive=False)):
            return Outcome.WAIT
        if turn.read("gc") != turn.recall("number"):
            turn.say("finds that the lease is gone")
            return Outcome.GIVE_UP
        turn.say("finds that it has the lease")
        return Outcome.NEXT


@dataclass(frozen=True)
class Choose:
    """Decide about a block before the transaction that acts on it (only where rule C10 is off)."""

    block: str

    def take(self, turn: Turn) -> Outcome:
        row: BlockRow | None = turn.read(f"block {self.block}")
        doomed = None if row is None else row.doomed
        turn.note(chosen=doomed)
        turn.say(f"reads that block {self.block} {_described(row)}")
        return Outcome.NEXT


@dataclass(frozen=True)
class Treat:
    """Spare, doom or delete one block, by its row as it is when its lock is free, and commit."""

    block: str
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        name = f"block {self.block}"
        if not turn.lock(name, exclusive=True):
            return Outcome.WAIT
        row: BlockRow | None = turn.read(name)
        after = row if row is None else self._decide(turn, row)
        if after != row:
            turn.write(name, after)
        turn.note(chosen=None)
        turn.commit(durable=False)
        if row is not None and after is None:
            turn.say(f"deletes {name}")
        elif after != row and after is not None:
            turn.say(f"dooms {name}" if after.doomed else f"clears the doom of {name}")
        else:
            turn.say(f"leaves {name}, which {_described(row)}")
        return Outcome.NEXT

    def _decide(self, turn: Turn, row: BlockRow) -> BlockRow | None:
        number: int = turn.recall("number")
        marked = self.block in turn.recall("marked")
        doomed = row.doomed
        if Rule.TEST_WHILE_DELETING not in self.rules:
            doomed = turn.recall("chosen") or 0
        limit = min(number, turn.recall("oldest")) if Rule.RESPECT_SESSIONS in self.rules else number
        if 0 < doomed < limit and not (marked and Rule.OWN_MARKS in self.rules):
            return None
        if marked:
            return row._replace(doomed=0) if Rule.SPARE_MARKED in self.rules else row
        if row.doomed:
            return row
        return row._replace(doomed=number) if Rule.EARLIER_DOOM in self.rules else None


@dataclass(frozen=True)
class ChooseUpload:
    """What the claiming statement's snapshot shows: the upload's state, and whether a block's row names it."""

    upload: str
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        state = turn.read(f"upload {self.upload}")
        named = any(row is not None and row.upload == self.upload for _, row in turn.table("block"))
        wanted = state == "temp" or (state == "ready" and not (named and Rule.UNNAMED_ONLY in self.rules))
        if not wanted:
            turn.say(f"need not claim upload {self.upload}")
            turn.note(chosen=None)
            turn.commit(durable=False)
            return Outcome.NEXT
        turn.note(chosen=state)
        turn.say(f"sees that upload {self.upload} is {state}" + ("" if named else " and that no block names it"))
        return Outcome.NEXT


@dataclass(frozen=True)
class ClaimUpload:
    """Compare and set, on the row as it is when its lock is free."""

    upload: str
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        name, chosen = f"upload {self.upload}", turn.recall("chosen")
        if chosen is None:
            turn.say("has no upload to claim")
            return Outcome.NEXT
        if not turn.lock(name, exclusive=True):
            return Outcome.WAIT
        state = turn.read(name)
        # One statement for both states would compare with either; its look for block rows is older than this row.
        if state == chosen or (Rule.CLAIM_BY_COMPARE not in self.rules and state in ("temp", "ready")):
            turn.write(name, "abandoned" if chosen == "temp" else "deleting")
            turn.say(f"claims upload {self.upload}, which is {state}")
        else:
            turn.say(f"leaves upload {self.upload}, which is {state}")
        turn.note(chosen=None)
        if Rule.CLAIM_THEN_DELETE in self.rules:
            turn.commit(durable=Rule.DURABLE_CLAIM in self.rules)
        return Outcome.NEXT


@dataclass(frozen=True)
class DeleteObject:
    """Delete the object of a claimed upload. Nothing undoes a claim, so this needs no lease."""

    upload: str

    def take(self, turn: Turn) -> Outcome:
        if turn.read(f"upload {self.upload}") in CLAIMED:
            # Whether or not it is there: deleting what is gone succeeds too.
            turn.delete_object(self.upload)
            turn.note(deleted=True)
            turn.say(f"deletes object {self.upload}")
        else:
            turn.say("has no object to delete")
        return Outcome.NEXT


@dataclass(frozen=True)
class ForgetUpload:
    """Remove the row of an upload whose object is gone, if nobody can put it again."""

    upload: str
    rules: Rules

    def take(self, turn: Turn) -> Outcome:
        name = f"upload {self.upload}"
        if not turn.lock(name, exclusive=True):
            return Outcome.WAIT
        state = turn.read(name)
        final = state == "deleting" or (state == "abandoned" and Rule.KEEP_INTENT not in self.rules)
        if final and (turn.recall("deleted") or Rule.FORGET_OWN not in self.rules):
            turn.write(name, None)
            turn.say(f"forgets upload {self.upload}")
        else:
            turn.say("has no upload to forget")
        turn.note(deleted=None)
        turn.commit(durable=False)
        return Outcome.NEXT


CLAIMED = ("deleting", "abandoned")


def collector(
    name: str,
    rules: Rules,
    links: Links,
    *,
    passes: int,
    blocks: tuple[str, ...],
    uploads: tuple[str, ...] = (),
) -> Process:
    """A process that runs passes, one after the other. A pass that fails is not resumed: the next one begins anew."""
    steps: list[Action] = []
    tables = ROOTS if Rule.EVERY_PROVIDER in rules else ("manifest",)
    if Rule.ONE_SNAPSHOT in rules:
        snapshot: list[Action] = [Snapshot("the roots", (*tables, "session"), rules)]
    else:
        snapshot = [
            Snapshot("the manifests", ("manifest",), rules),
            Snapshot("the other roots", (*tables[1:], "session"), rules),
        ]
    steps += [TakeLease(), *snapshot] if Rule.LEASE_THEN_SNAPSHOT in rules else [*snapshot, TakeLease()]
    steps.append(Mark(links, rules))
    check: list[Action] = [CheckFence(rules)] if Rule.CHECK_FENCE in rules else []
    for block in blocks:
        choose: list[Action] = [] if Rule.TEST_WHILE_DELETING in rules else [Choose(block)]
        steps += [*choose, *check, Treat(block, rules)]
    for upload in uploads:
        steps += [*check, ChooseUpload(upload, rules), ClaimUpload(upload, rules), DeleteObject(upload)]
        if Rule.CLAIM_THEN_DELETE not in rules:
            steps.append(Finish())
        steps.append(ForgetUpload(upload, rules))
    return Process(name, tuple(steps) * passes, tuple(range(0, len(steps) * passes, len(steps))))


def _described(row: BlockRow | None) -> str:
    if row is None:
        return "is not there"
    return f"was doomed by pass {row.doomed}" if row.doomed else "is not doomed"
