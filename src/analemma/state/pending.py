"""Pending deltas, which were acknowledged and are no versions yet: how they are applied, when, and by whom.

Nothing depends on the thread. Every delta is durable before anyone is told of it, and any process that comes by can
apply it; the thread only spares others the work. Any number may do so at once, here and in other processes: a delta is
settled in the transaction that makes its version, and a branch whose head moved meanwhile is built again.
"""

from __future__ import annotations

import inspect
import os
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from analemma import errors
from analemma.blocks.store import Carried
from analemma.canon.identity import BlockId
from analemma.canon.nodes import Block, node_link_ids
from analemma.canon.read import Loaded, NodeCache
from analemma.canon.trees import Edited, Trees
from analemma.catalog.kernel.pending import Delta, PendingEntry, Settlement
from analemma.catalog.port import BranchKey, Head, Idempotency
from analemma.clock import attempts
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
from analemma.state.pending_deltas import PendingDelta, unpack_delta
from analemma.state.records import Manifest, decode_manifest, encode_receipt
from analemma.state.save import apply_update

SECRET_BYTES = 16
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

_KINDS: dict[str, type[AnalemmaError]] = {
    found.kind: found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, AnalemmaError) and found.__module__ == errors.__name__
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
        self.catalog = context.catalog
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
        # As the other, it may be taken again on top of itself, by the handler of a signal.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """Only to wait and to notify. To hold the lock, `with self._lock`: entering a Condition takes several steps,
        and an interrupt between two of them would leave it locked for good."""
        self._thread: threading.Thread | None = None
        self._wanted: dict[BranchKey, None] = {}
        """Branches for the thread, in the order in which they came."""
        self._stuck: dict[BranchKey, None] = {}
        """Those that it is at, and those that something was in the way of."""
        self._closed = False
        self.problem: Exception | None = None
        """What kept the thread from applying something, the last time it tried."""

    @property
    def pending(self) -> int:
        """How many checkpoints wait to be applied, whoever made them."""
        return self.catalog.pending_count(self._tenant)

    def drain(self, timeout_s: float | None = None) -> int:
        """Apply everything that is pending now, of this process or any other; how many were applied. What is left
        after `timeout_s` stays pending. Raises what is in the way of a branch, once all others are done."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        settled = 0
        in_the_way: dict[BranchKey, AnalemmaError] = {}
        through = self.catalog.newest_pending(self._tenant)
        while through is not None and not self._is_late(deadline):
            # Those in the way are found again, hence beyond the limit.
            keys = self.catalog.pending_branches(self._tenant, through=through, limit=MOST_BRANCHES + len(in_the_way))
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
        return self.catalog.forget_tickets(
            self._tenant, before_us=self._clock.now_us() - round(older_than_s * 1_000_000)
        )

    def enter(
        self, key: BranchKey, delta: Delta, *, idempotency_key: str | None = None, fingerprint: bytes | None = None
    ) -> tuple[int, bytes]:
        """Keep a delta, durably; its place and its secret. Who applies it is not decided yet."""
        secret = self._context.entropy.random_bytes(SECRET_BYTES)
        entry = PendingEntry(key, secret, self._clock.now_us(), idempotency_key, fingerprint, delta)
        return self.catalog.enter(self._tenant, entry), secret

    def finish(self, key: BranchKey, through: int | None = None, deadline: float | None = None) -> bool:
        """Apply what is pending on a branch now, or up to a place; False if that was not done by `deadline` on the
        monotonic clock. Raises what is in the way."""
        if through is None:
            through = self.catalog.newest_pending(self._tenant, key)
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
        with self._lock:
            self._wanted[key] = None
            if self._thread is None and not self._closed:
                # A daemon: a program that ends must not wait for what the next process can do.
                thread = threading.Thread(target=self._run, name="analemma-checkpoints", daemon=True)
                try:
                    thread.start()
                except RuntimeError as exc:
                    # No thread can be had now. The delta is durable all the same, and the next one tries again.
                    self.problem = exc
                    return
                self._thread = thread
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Stop the thread, and apply what it was asked for and had not done, as far as that is possible in time. What
        is left stays pending."""
        if os.getpid() != self._process:
            return  # The thread did not come along through a fork, and what it had to do is the parent's.
        deadline = self._clock.monotonic() + timeout_s
        with self._lock:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            # It ends by itself once what it is at returns; a database that does not answer must not keep us here.
            thread.join(max(0.0, min(timeout_s, threading.TIMEOUT_MAX)))
        with self._lock:
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

    def _run(self) -> None:
        looked_around = -LEFT_BEHIND_S
        while self._wait_for_work():
            # Others enter theirs meanwhile, and share the transaction.
            self._clock.sleep(GATHER_S)
            if self._closed:
                continue  # what is left is done by who closes, or by the next process
            try:
                self._apply_wanted()
                if self._clock.monotonic() - looked_around >= (PAUSE_S if self._stuck else LEFT_BEHIND_S):
                    looked_around = self._clock.monotonic()
                    self._look_around()
            except Exception as exc:
                # Whatever it is, it must not end the thread: the database may be back in a moment.
                self.problem = exc

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; False, and the thread must end, if nothing comes for a while."""
        with self._lock:
            if not self._wanted and not self._closed:
                self._changed.wait(PAUSE_S if self._stuck else IDLE_S)
            if (self._wanted or self._stuck) and not self._closed:
                return True
            self._thread = None
            return False

    def _look_around(self) -> None:
        """Take up what other processes left behind, and what something was in the way of."""
        before_us = self._clock.now_us() - round(LEFT_BEHIND_S * 1_000_000)
        left = self.catalog.pending_branches(self._tenant, before_us=before_us, limit=MOST_BRANCHES)
        with self._lock:
            self._wanted |= dict.fromkeys(left) | self._stuck

    def _apply_wanted(self, deadline: float | None = None) -> bool:
        """Apply what is pending on the first branches that are wanted; False if it is late."""
        with self._turn(deadline) as is_ours:
            if not is_ours:
                return False
            with self._lock:
                keys = list(self._wanted)[:MOST_BRANCHES]
                # Before the entries are read: one that comes from now on is wanted again.
                for key in keys:
                    del self._wanted[key]
                    self._stuck[key] = None
            done = self._apply(keys)
        with self._lock:
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
        entries = self.catalog.pending_entries(self._tenant, keys, most_entries=MOST_ENTRIES, most_bytes=MOST_BYTES)
        fitting = _fitting(entries)
        is_full = len(entries) >= MOST_ENTRIES or sum(entry.delta.length for entry in entries) >= MOST_BYTES
        done = Applied(more=is_full or len(fitting) < len(entries))
        if not entries:
            return done
        by_key: dict[BranchKey, list[PendingEntry]] = {}
        for entry in fitting:
            by_key.setdefault(entry.key, []).append(entry)
        # After the entries: whatever was applied before they were read is in these heads.
        heads = self.catalog.heads(self._tenant, list(by_key))
        builder = _Builder(self._context, self._commits)
        builder.warm(heads.values())
        branches = []
        for key in sorted(by_key):
            try:
                branch = builder.build(key, heads.get(key), by_key[key])
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
        try:
            self.catalog.settle(self._tenant, steps)
        except AnalemmaError as exc:
            if len(branches) > 1 and not isinstance(exc, Unavailable | Timeout):
                # One of them is refused; by themselves the others are not.
                for branch in branches:
                    self._settle([branch], done)
            elif isinstance(exc, Invalid | Limit):
                self._refused(branches[0], exc, done)
            else:
                # Someone else was faster, or the answer was lost: the rows know, and are asked again.
                cause = None if isinstance(exc, Conflict | OutcomeUnknown) else exc
                done.unsettled.update(dict.fromkeys((branch.key for branch in branches), cause))
                self._give_up(steps, exc)
            return
        done.settled += len(steps)
        done.reached.update({branch.key: branch.steps[-1].seq for branch in branches})
        if len(self._reached) >= REMEMBERED:
            self._reached.clear()
        self._reached.update(done.reached)
        self._context.blocks.remember([block for branch in branches for block in branch.emitted])
        if any(step.commit is not None and step.commit.events for step in steps):
            self._commits.announcer.wake()

    def _refused(self, branch: _Branch, exc: AnalemmaError, done: Applied) -> None:
        """A version is none that the database takes: by itself each is stored, or its delta fails."""
        first, *others = branch.steps
        self._give_up(others or [first], exc)
        if others:
            done.more = True
            self._settle([_Branch(branch.key, [first], [])], done)
            return
        try:
            self.catalog.settle(self._tenant, [Settlement(first.seq, failure=write_failure(exc))])
        except Conflict:
            # Somebody else has settled it meanwhile.
            done.unsettled[branch.key] = None
            return
        done.settled += 1
        done.reached[branch.key] = first.seq

    def _give_up(self, steps: Iterable[Settlement], exc: AnalemmaError) -> None:
        """What was uploaded for them will be uploaded again."""
        requests = [step.commit for step in steps if step.commit is not None]
        self._context.blocks.give_up([upload for request in requests for upload in request.uploads], exc)


class _Branch(NamedTuple):
    """The next versions of one branch, on their way into one transaction."""

    key: BranchKey
    steps: list[Settlement]
    emitted: list[Block]


class _Builder:
    """Builds the versions of one transaction. They can be read before they are stored: each is built on the one
    before."""

    def __init__(self, context: Context, commits: Commits) -> None:
        self._tenant = context.tenant
        self._blocks = context.blocks
        self._trees = context.trees
        self._catalog = context.catalog
        self._commits = commits
        self._made: dict[BlockId, bytes] = {}
        self._manifests: dict[BlockId, Manifest] = {}
        self._asked: dict[tuple[str, str, str], BranchKey] = {}
        """Which branch has an entry under each idempotency key of a workflow."""

    def warm(self, heads: Iterable[Head]) -> None:
        """Read the manifests and roots of all branches in two rounds. Damage is met again, and reported, where it is
        in the way."""
        with suppress(AnalemmaError):
            data = self._blocks.fetch([head.manifest for head in heads])
            self._manifests = {each: decode_manifest(each, data[each]) for each in data}
            self._blocks.fetch([manifest.root.id for manifest in self._manifests.values()])

    def build(self, key: BranchKey, head: Head | None, entries: Sequence[PendingEntry]) -> _Branch:
        """The next versions of one branch. Deltas that can never be applied become failures; anything else that goes
        wrong with the first is raised and leaves the branch as it is, with a later one it ends the list."""
        manifest = None if head is None else self._manifest(head.manifest)
        behind = self._commits.left_off(key) if head is None else None
        branch = _Branch(key, [], [])
        answered: dict[str, Idempotency] = {}
        nodes = _BranchNodes(self._trees.nodes)
        trees = Trees(self._fetch, self._trees.registry, self._trees.unknown, nodes)
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
            try:
                delta = unpack_delta(entry.delta)
            except Corrupt as exc:
                branch.steps.append(Settlement(entry.seq, failure=write_failure(exc)))
                continue
            try:
                tree = apply_update(trees, None if manifest is None else manifest.root.id, delta.update)
                draft = self._draft(_proposal(entry, delta, tree, head, manifest), behind)
            except (Invalid, Limit) as exc:
                branch.steps.append(Settlement(entry.seq, failure=write_failure(exc)))
                continue
            except AnalemmaError:
                if not branch.steps:
                    raise
                # Those before it need not wait for what is in its way, nor be uploaded again each time it is tried.
                break
            branch.steps.append(Settlement(entry.seq, draft.request, encode_receipt(draft.receipt)))
            branch.emitted.extend(draft.emitted)
            self._made.update({block.id: block.data for block in draft.emitted})
            head, manifest = draft.request.head, draft.manifest
            if draft.request.idempotency is not None:
                answered[draft.request.idempotency.key] = draft.request.idempotency
        if manifest is not None:
            nodes.hand_on(manifest.root.id)
        return branch

    def _draft(self, proposal: Proposal, behind: Head | None) -> Draft:
        try:
            return self._commits.draft(proposal, Carried(), behind=behind)
        except Invalid as exc:
            # guard: checkpoint.kept.writing
            raise _in_the_way(exc) from exc

    def _manifest(self, manifest: BlockId) -> Manifest:
        known = self._manifests.get(manifest)
        return known or decode_manifest(manifest, self._fetch([manifest])[manifest])

    def _fetch(self, blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
        found = {block: self._made[block] for block in blocks if block in self._made}
        missing = [block for block in blocks if block not in found]
        try:
            return found | self._blocks.fetch(missing) if missing else found
        except (Invalid, Limit) as exc:
            # guard: checkpoint.kept.reading
            raise _in_the_way(exc) from exc


class _BranchNodes(NodeCache):
    """The nodes that the versions of one branch are made of. Most are gone with the next version: in the cache that all
    branches share they would only take the place of what other branches begin with."""

    def __init__(self, shared: NodeCache | None) -> None:
        super().__init__()
        self._shared = shared

    def get(self, block: BlockId) -> Loaded | None:
        found = super().get(block)
        return found if found is not None or self._shared is None else self._shared.get(block)

    def hand_on(self, root: BlockId) -> None:
        """Leave those that the tree at `root` has to the next batch."""
        waiting = [root] if self._shared is not None else []
        while waiting:
            block = waiting.pop()
            found = self._loaded.pop(block, None)
            if found is not None and self._shared is not None:
                self._shared.put(block, found)
                waiting += node_link_ids(found.node)


def _proposal(
    entry: PendingEntry, delta: PendingDelta, tree: Edited, head: Head | None, base: Manifest | None
) -> Proposal:
    blocks: tuple[Block, ...] = (*tree.blocks, *delta.blocks)
    return Proposal(
        entry.key,
        Edited(tree.root, blocks),
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


def _in_the_way(exc: AnalemmaError) -> Unavailable:
    """What this program's store says that is no fault of a delta's: it may be applied later, or by another program."""
    return Unavailable(exc.message, hint=exc.hint, **exc.facts)


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
