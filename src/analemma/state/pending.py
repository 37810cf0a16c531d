"""Pending deltas, which were acknowledged and are no versions yet: how they are applied, when, and by whom.

Nothing depends on the thread. Every delta is durable before anyone is told of it, and any process that comes by can
apply it; the thread only spares others the work. Any number may do so at once, here and in other processes: a delta is
settled in the transaction that makes its version, and a branch whose head moved meanwhile is built again.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from analemma import errors
from analemma.canon.identity import BlockId
from analemma.canon.nodes import Block
from analemma.canon.trees import Edited
from analemma.catalog.kernel.pending import PendingEntry, Settlement
from analemma.catalog.port import BranchKey, Head, Idempotency
from analemma.clock import Ticker, attempts
from analemma.context import Context
from analemma.errors import (
    AnalemmaError,
    Conflict,
    Corrupt,
    Invalid,
    Limit,
    OutcomeUnknown,
    Timeout,
    Unavailable,
)
from analemma.state.arguments import other_request
from analemma.state.commits import Commits, Draft, Proposal
from analemma.state.pending_format import PendingDelta, unpack_delta
from analemma.state.records import Manifest, encode_receipt
from analemma.state.save import apply_update

MOST_ENTRIES = 128
"""Versions per transaction: more gain little and make everyone else wait."""
MOST_BYTES = 8 << 20
"""Stored bytes of deltas per transaction, unless one alone is larger."""
MOST_UNPACKED_BYTES = 64 << 20
"""The same as they were before compression: all of it is in memory until the transaction ends."""
MOST_BRANCHES = 64
"""Branches that one transaction takes up."""
REMEMBERED = 1024
"""Branches of which it is remembered how far they are."""
PATIENCE_S = 1.0
"""Whoever has waited so long for others of this process goes ahead: they may have to wait for something else."""
GATHER_S = 0.002
"""The thread waits so long after it was woken: what others enter meanwhile shares the transaction."""
IDLE_S = 2.0
"""A thread with nothing to do ends after this; the next checkpoint starts another."""
LEFT_BEHIND_S = 5.0
"""Entries this old were left by a process that died, or is slow: the thread applies those of any branch."""
PAUSE_S = 0.5
"""Before the thread tries again what something was in the way of."""
LONGEST_AGE_S = 1e10
"""Some 300 years, of which the database can still be told the beginning."""

_READING = (Invalid, Limit)  # guard: checkpoint.kept.reading
"""What reading raises where this program cannot read what others can."""
_KINDS: dict[str, type[AnalemmaError]] = {
    found.kind: found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, AnalemmaError)
}


@dataclass(slots=True)
class Applied:
    """What one transaction did, or found in its way."""

    settled: int = 0
    reached: dict[BranchKey, int] = field(default_factory=dict)
    """The last place that was settled of each branch."""
    unsettled: dict[BranchKey, AnalemmaError | None] = field(default_factory=dict)
    """Branches of which nothing was settled: someone else was faster (None), or this is in the way."""
    more: bool = False
    """There may be further entries: as many were taken up as one transaction should hold."""


class Pending:
    """What is pending in one tenant, and the thread that applies it."""

    def __init__(self, context: Context, commits: Commits) -> None:
        self._catalog = context.catalog
        self._context = context
        self._tenant = context.tenant
        self._clock = context.clock
        self._commits = commits
        self._process = os.getpid()
        self._applying = threading.RLock()
        """Two threads of a process that apply the same would only be in each other's way."""
        self._awaited: dict[BranchKey, None] = {}
        """Branches for which somebody waits: whoever applies the next one takes these along."""
        self._reached: dict[BranchKey, int] = {}
        """The last place that was settled from here, of some branches: what was before it on the branch is settled,
        too."""
        self._wanted: dict[BranchKey, None] = {}
        """Branches for the thread, in the order in which they came. Each use is one step of the interpreter, so threads
        need no lock, nor do handlers of signals."""
        self._stuck: dict[BranchKey, None] = {}
        """Those that it is at, and those that something was in the way of: these are wanted again after a pause."""
        self._thread = Ticker("analemma-checkpoints", self._apply_in_thread, idle_s=IDLE_S)
        self._looked_around_s = -LEFT_BEHIND_S
        self._closed = False
        self.problem: Exception | None = None
        """What kept the thread from applying something, the last time it tried."""

    @property
    def pending(self) -> int:
        """How many checkpoints wait to be applied, whoever made them."""
        return self._catalog.pending_count(self._tenant)

    def drain(self, timeout_s: float | None = None) -> int:
        """Apply everything that is pending now, of this process or any other; how many were applied. What is left
        after `timeout_s` stays pending. Raises what is in the way of a branch, once all others are done."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        settled = 0
        in_the_way: dict[BranchKey, AnalemmaError] = {}
        through = self._catalog.newest_pending(self._tenant)
        while through is not None and not self._is_late(deadline):
            # Those in the way are found again, hence beyond the limit.
            keys = self._catalog.pending_branches(self._tenant, through=through, limit=MOST_BRANCHES + len(in_the_way))
            keys = [key for key in keys if key not in in_the_way][:MOST_BRANCHES]
            if not keys:
                break
            with self._turn(deadline) as is_ours:
                done = self._apply(keys) if is_ours else Applied()
            settled += done.settled
            in_the_way.update({key: exc for key, exc in done.unsettled.items() if exc is not None})
            if done.settled == 0:
                self._clock.sleep(random.uniform(0, 0.005))
        for exc in in_the_way.values():
            raise exc
        return settled

    def forget(self, older_than_s: float) -> int:
        """Remove what is known of checkpoints that were committed or failed so long ago, with the deltas of those that
        failed; how many. Their tickets are NotFound from then on; their versions stay."""
        if not 0 <= older_than_s <= LONGEST_AGE_S:
            raise Invalid(
                f"cannot forget what is older than {older_than_s} s", hint=f"an age is from 0 to {LONGEST_AGE_S:.0f} s"
            )
        return self._catalog.forget_tickets(
            self._tenant, before_us=self._clock.now_us() - round(older_than_s * 1_000_000)
        )

    def finish(self, key: BranchKey, through: int | None = None, deadline: float | None = None) -> bool:
        """Apply what is pending on a branch now, or up to a place; False if that was not done by `deadline` on the
        monotonic clock. Raises what is in the way."""
        if through is None:
            through = self._catalog.newest_pending(self._tenant, key)
            if through is None:
                return True
        for _ in attempts(
            self._clock, "a branch changes too fast to apply what is pending", hint="save from fewer places"
        ):
            if self._is_late(deadline):
                return False
            self._awaited[key] = None
            with self._turn(deadline) as is_ours:
                if self._reached.get(key, 0) >= through:
                    return True
                if not is_ours:
                    return False
                keys = [key, *(other for other in list(self._awaited) if other != key)][:MOST_BRANCHES]
                # Before the entries are read: whoever waits for one that comes from now on says so again.
                for each in keys:
                    self._awaited.pop(each, None)
                done = self._apply(keys)
            if key not in done.unsettled:
                if done.reached.get(key, 0 if done.more else through) >= through:
                    return True
            elif (exc := done.unsettled[key]) is not None:
                raise exc
        raise AssertionError("unreachable")

    def hand_over(self, key: BranchKey) -> None:
        """Have the thread apply what is pending on a branch; start it if there is none."""
        self._wanted[key] = None
        try:
            self._thread.wake()
        except RuntimeError as exc:
            # No thread can be had now. The delta is durable all the same, and the next one tries again.
            self.problem = exc

    def close(self, timeout_s: float) -> None:
        """Stop the thread, and apply what it was asked for and had not done, as far as that is possible in time. What
        is left stays pending."""
        if os.getpid() != self._process:
            return  # The thread did not come along through a fork, and what it had to do is the parent's.
        deadline = self._clock.monotonic() + timeout_s
        self._closed = True
        # It ends by itself once what it is at returns; a database that does not answer must not keep us here.
        self._thread.stop(max(0.0, min(timeout_s, threading.TIMEOUT_MAX)))
        self._wanted |= self._stuck
        with suppress(AnalemmaError):  # whoever opens the store next meets it again
            while self._wanted and not self._is_late(deadline) and self._apply_wanted(deadline):
                pass

    @contextmanager
    def _turn(self, deadline: float | None) -> Iterator[bool]:
        """Be the only one of this process who applies anything, or go ahead after a while; False if it is late."""
        left = PATIENCE_S if deadline is None else min(PATIENCE_S, deadline - self._clock.monotonic())
        # From here on: an interrupt may come at any moment.
        try:
            yield self._applying.acquire(timeout=max(0.0, left)) or left >= PATIENCE_S
        finally:
            with suppress(RuntimeError):  # it is another's, or nobody's
                self._applying.release()

    def _apply_in_thread(self) -> float | None:
        # Others enter theirs meanwhile, and share the transaction.
        self._clock.sleep(GATHER_S)
        if self._closed:
            return None  # What is left is done by who closes, or by the next process.
        try:
            self._apply_wanted()
            now_s = self._clock.monotonic()
            if now_s - self._looked_around_s >= (PAUSE_S if self._stuck else LEFT_BEHIND_S):
                self._looked_around_s = now_s
                before_us = self._clock.now_us() - round(LEFT_BEHIND_S * 1_000_000)
                left = self._catalog.pending_branches(self._tenant, before_us=before_us, limit=MOST_BRANCHES)
                self._wanted |= dict.fromkeys(left) | self._stuck
        except Exception as exc:
            # Whatever it is, it must not end the thread: the database may be back in a moment.
            self.problem = exc
        if self._wanted:
            return 0.0
        return PAUSE_S if self._stuck else None

    def _apply_wanted(self, deadline: float | None = None) -> bool:
        """Apply what is pending on the first branches that are wanted; False if it is late. Those with which it is not
        done are wanted again."""
        if not self._wanted:
            return True
        with self._turn(deadline) as is_ours:
            if not is_ours:
                return False
            keys = list(self._wanted)[:MOST_BRANCHES]
            self._stuck |= dict.fromkeys(keys)
            # Before the entries are read: one that comes from now on is wanted again.
            for key in keys:
                self._wanted.pop(key, None)
            done = self._apply(keys)
        for key in keys:
            exc = done.unsettled.get(key)
            if exc is not None:
                self.problem = exc
                continue
            self._stuck.pop(key, None)
            if done.more or key in done.unsettled:
                self._wanted[key] = None
        return True

    def _is_late(self, deadline: float | None) -> bool:
        return deadline is not None and self._clock.monotonic() >= deadline

    def _apply(self, keys: Sequence[BranchKey]) -> Applied:
        """Apply the next entries of these branches in one transaction. What is in the way of one branch is in the way
        of no other."""
        entries = self._catalog.pending_entries(self._tenant, keys, most_entries=MOST_ENTRIES, most_bytes=MOST_BYTES)
        is_full = len(entries) >= MOST_ENTRIES or sum(entry.delta.length for entry in entries) >= MOST_BYTES
        fitting = _fitting(entries)
        done = Applied(more=is_full or len(fitting) < len(entries))
        by_key: dict[BranchKey, list[PendingEntry]] = {}
        for entry in fitting:
            by_key.setdefault(entry.key, []).append(entry)
        if not by_key:
            return done
        # After the entries: whatever was applied before they were read is in these heads.
        builder = _Builder(self._context, self._commits, self._catalog.heads(self._tenant, list(by_key)))
        branches = []
        for key in sorted(by_key):
            try:
                branch = builder.build(key, by_key[key])
            except AnalemmaError as exc:
                done.unsettled[key] = exc
                continue
            done.more = done.more or len(branch.steps) < len(by_key[key])
            if branch.steps:
                branches.append(branch)
        if branches:
            self._settle(branches, done)
        return done

    def _settle(self, branches: Sequence[_Branch], done: Applied) -> None:
        steps = [step for branch in branches for step in branch.steps]
        requests = [step.commit for step in steps if step.commit is not None]
        try:
            self._catalog.settle(self._tenant, steps)
        except AnalemmaError as exc:
            first, *others = steps
            if len(branches) > 1 and not isinstance(exc, Unavailable | Timeout):
                # One of them is refused; by themselves the others are not.
                for branch in branches:
                    self._settle([branch], done)
                return
            is_refused = isinstance(exc, Invalid | Limit) and bool(requests)
            # What was uploaded for those that are not tried again at once will be uploaded again.
            left = [step.commit for step in (others if is_refused and others else steps) if step.commit is not None]
            self._context.blocks.give_up([upload for request in left for upload in request.uploads], exc)
            if is_refused:
                # One of these versions is none that the database takes: by itself each is stored, or its delta fails.
                done.more = done.more or bool(others)
                alone = first if others else Settlement(first.seq, failure=write_failure(exc))
                self._settle([_Branch(branches[0].key, [alone], [])], done)
                return
            # Someone else was faster, or the answer was lost: the rows know, and are asked again.
            cause = None if isinstance(exc, Conflict | OutcomeUnknown) else exc
            done.unsettled.update(dict.fromkeys((branch.key for branch in branches), cause))
            return
        done.settled += len(steps)
        done.reached.update({branch.key: branch.steps[-1].seq for branch in branches})
        if len(self._reached) >= REMEMBERED:
            self._reached.clear()
        self._reached.update(done.reached)
        self._context.blocks.remember([block for branch in branches for block in branch.emitted])
        if any(request.events for request in requests):
            self._commits.announcer.wake()


class _Branch(NamedTuple):
    """The next versions of one branch, on their way into one transaction."""

    key: BranchKey
    steps: list[Settlement]
    emitted: list[Block]


class _Builder:
    """Builds the versions of one transaction. They can be read before they are stored: each is built on the one
    before."""

    def __init__(self, context: Context, commits: Commits, heads: Mapping[BranchKey, Head]) -> None:
        self._tenant = context.tenant
        self._blocks = context.blocks
        self._catalog = context.catalog
        self._commits = commits
        self._heads = heads
        self._made: dict[BlockId, Block] = {}
        self._trees = replace(context.trees, fetch=self._fetch).over(self._made)
        self._asked: dict[tuple[str, str, str], BranchKey] = {}
        """Which branch has an entry under each idempotency key of a workflow."""
        # The manifests and roots of all branches are read in two rounds. Damage is met again, and reported, where it is
        # in the way.
        with suppress(AnalemmaError):
            self._blocks.fetch([head.manifest for head in heads.values()])
            self._blocks.fetch([self._commits.manifest(head.manifest).root.id for head in heads.values()])

    def build(self, key: BranchKey, entries: Sequence[PendingEntry]) -> _Branch:
        """The next versions of one branch. Deltas that can never be applied become failures; anything else that goes
        wrong with the first is raised and leaves the branch as it is, with a later one it ends the list."""
        head = self._heads.get(key)
        behind = self._commits.left_off(key) if head is None else None
        with _in_the_way(*_READING):
            base = None if head is None else self._commits.manifest(head.manifest)
        branch = _Branch(key, [], [])
        answered: dict[str, Idempotency] = {}
        for entry in entries:
            asked = entry.idempotency_key
            if asked is not None:
                if self._asked.setdefault((key.owner, key.workflow, asked), key) != key:
                    # Only one of two branches can have it, and which one is known after this transaction.
                    break
                before = answered.get(asked) or self._catalog.receipt(self._tenant, key, asked)
                if before is not None:
                    branch.steps.append(_replayed(entry, before))
                    continue
            delta: PendingDelta | None = None
            try:
                delta = unpack_delta(entry.delta)
                draft = self._draft(entry, delta, head, base, behind)
            except AnalemmaError as exc:
                if delta is None or isinstance(exc, Invalid | Limit):
                    branch.steps.append(Settlement(entry.seq, failure=write_failure(exc)))
                    continue
                if not branch.steps:
                    raise
                # Those before it need not wait for what is in its way, nor be uploaded again each time it is tried.
                break
            branch.steps.append(Settlement(entry.seq, draft.request, encode_receipt(draft.receipt)))
            branch.emitted.extend(draft.emitted)
            self._made.update({block.id: block for block in draft.emitted})
            head, base = draft.request.head, draft.manifest
            if draft.request.idempotency is not None:
                answered[draft.request.idempotency.key] = draft.request.idempotency
        return branch

    def _draft(
        self, entry: PendingEntry, delta: PendingDelta, head: Head | None, base: Manifest | None, behind: Head | None
    ) -> Draft:
        tree = apply_update(self._trees, None if base is None else base.root.id, delta.update)
        proposal = Proposal(
            entry.key,
            Edited(tree.root, (*tree.blocks, *delta.blocks)),
            head,
            execution=delta.execution,
            segment=delta.segment,
            message=delta.message,
            metadata=delta.metadata,
            config=None if base is None else base.config,
            segments=None if base is None else base.segments,
            idempotency_key=entry.idempotency_key,
            fingerprint=entry.fingerprint or b"",
        )
        with _in_the_way(Invalid):  # guard: checkpoint.kept.writing
            return self._commits.draft(proposal, behind=behind)

    def _fetch(self, blocks: Sequence[BlockId]) -> Mapping[BlockId, bytes]:
        with _in_the_way(*_READING):
            return self._blocks.fetch(blocks)


@contextmanager
def _in_the_way(*told: type[AnalemmaError]) -> Iterator[None]:
    """What this program's store says is no fault of a delta's: it may be applied later, or by another program."""
    try:
        yield
    except told as exc:
        raise Unavailable(exc.message, hint=exc.hint, **exc.facts) from exc


def _replayed(entry: PendingEntry, before: Idempotency) -> Settlement:
    if before.fingerprint == entry.fingerprint:
        return Settlement(entry.seq, receipt=before.receipt)
    return Settlement(entry.seq, failure=write_failure(other_request(before.key)))


def _fitting(entries: Sequence[PendingEntry]) -> list[PendingEntry]:
    """The first of them, by place, that fit into memory together; one at least."""
    fitting: list[PendingEntry] = []
    total = 0
    for entry in entries:
        total += entry.delta.size
        # guard: checkpoint.memory
        if fitting and total > MOST_UNPACKED_BYTES:
            break
        fitting.append(entry)
    return fitting


def write_failure(error: AnalemmaError) -> str:
    """An error as it is kept with the delta."""
    facts = {name: fact for name, fact in error.facts.items() if fact is None or type(fact) in (str, int, bool)}
    return orjson.dumps({"kind": error.kind, "message": error.message, "hint": error.hint, "facts": facts}).decode()


def read_failure(text: str) -> AnalemmaError:
    """The error that was kept."""
    try:
        fields: dict[str, Any] = orjson.loads(text)
        return _KINDS.get(fields["kind"], AnalemmaError)(fields["message"], hint=fields["hint"], **fields["facts"])
    except (ValueError, TypeError, KeyError) as exc:
        raise Corrupt(f"the reason of a failed checkpoint cannot be read: {exc}") from exc
