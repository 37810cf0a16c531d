"""Checkpoints that do not wait: a delta is acknowledged once it is durable, and becomes a version soon after. Its
ticket tells what became of it.

Until then it is pending: the DAG-CBOR array `["delta", format, fields]`. Values are in stored form, and the blocks of
large ones are in it too, so nothing but the entry itself is needed to apply it, whichever process does; not even the
classes of its values. Any process that comes by can apply it, and any number may do so at once: a delta is settled in
the transaction that makes its version, and a branch whose head moved meanwhile is built again. Nothing depends on the
thread, which only spares others the work.
"""

from __future__ import annotations

import os
import random
import re
import threading
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, get_args

from analemma.blocks.packs import MAX_BLOCK_BYTES
from analemma.blocks.store import RAW, compress, decompress
from analemma.canon.build import Packer, check_new_key, check_path
from analemma.canon.nodes import Block, BlockId, Wire, block_id, wire_flags
from analemma.canon.pointer import OPERATIONS, Operation
from analemma.canon.trees import Edited, Trees
from analemma.canon.types import TypeRegistry
from analemma.catalog.kernel.pending import PendingEntry, Settlement, TicketRow
from analemma.catalog.port import BranchKey, Head, Idempotency
from analemma.clock import Ticker, attempts
from analemma.context import Context
from analemma.errors import (
    AnalemmaError,
    Conflict,
    ConsistencyError,
    Corrupt,
    Invalid,
    Limit,
    NotFound,
    OutcomeUnknown,
    Timeout,
    Unavailable,
)
from analemma.state.arguments import (
    CURRENT_HEAD,
    MAIN,
    DeltaUpdate,
    branch_key,
    check_new_branch,
    check_said,
    explained,
    is_other_revision,
    other_request,
    read_delta,
)
from analemma.state.commits import Commits, Draft, Proposal, receipt_for
from analemma.state.contents import apply_update, fingerprint_of, read_state
from analemma.state.records import (
    Commit,
    Manifest,
    Receipt,
    decode_receipt,
    decode_record,
    encode_receipt,
    encode_record,
    marked,
    read_failure,
    unmarked,
    write_failure,
)

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

Unpacked = tuple[DeltaUpdate, tuple[Block, ...], dict[str, Any]]
"""A delta, the blocks of its metadata, and what is said of its version."""
CheckpointContext = Literal["autonomous_loop", "before_hitl", "loop_completed"]
TicketStatus = Literal["pending", "committed", "failed"]

SECRET_BYTES = 16
LARGEST_BYTES = MAX_BLOCK_BYTES
"""Of one delta, before compression: it is read as a whole when it is applied."""
WORTH_COMPRESSING = 4096
"""A smaller delta is kept as it is: its row will be gone in a moment, and each way takes as long as packing does."""

_TOKEN = re.compile(r"ticket-([1-9][0-9]{0,18})-([0-9a-f]{32})")
_NO_TYPES = TypeRegistry()
"""Whatever is not plain stays tagged."""
_REMOVING = ("remove", "discard")
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


@dataclass(frozen=True, slots=True)
class Ticket:
    """A checkpoint, as far as it was known when the ticket was made; `k.ticket(ticket)` looks again.

    Its text is the version token, from which `Ticket.parse` makes a ticket in any process. Two tickets of the same
    checkpoint are equal, whatever each knows."""

    seq: int
    secret: bytes = field(repr=False)
    status: TicketStatus = field(default="pending", compare=False)
    manifest_id: str | None = field(default=None, compare=False)
    version: int | None = field(default=None, compare=False)
    reason: str | None = field(default=None, compare=False)
    """Why it failed."""

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """The ticket of a token. Nothing is looked up: it counts as pending until `k.ticket` says otherwise.

        >>> str(Ticket.parse("ticket-7-00112233445566778899aabbccddeeff"))
        'ticket-7-00112233445566778899aabbccddeeff'
        """
        found = _TOKEN.fullmatch(text) if isinstance(text, str) else None
        if found is None or int(found[1]) >= 2**63:
            raise Invalid("not a ticket", hint="pass a ticket, or its text as it was given")
        return cls(int(found[1]), bytes.fromhex(found[2]))

    def __str__(self) -> str:
        return f"ticket-{self.seq}-{self.secret.hex()}"


def checkpoint_async(
    kernel: Kernel,
    delta: Mapping[str, Any] | DeltaUpdate,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    execution_id: str | None = None,
    segment_id: int | None = None,
    deleted: Iterable[str] = (),
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    why: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    wait_for_commit: bool = False,
    timeout: float = 30.0,
    context: CheckpointContext | None = None,
) -> Ticket:
    """Accept a delta, durably, and apply it soon: to whatever is newest then, after those accepted before it, each
    as a version of its own, once.

    `wait_for_commit` waits until it is a version, at most `timeout` seconds: then Timeout, whose `ticket` is that
    of the delta, which stays pending; any other error that comes meanwhile has it too. A `context` decides that
    instead: `autonomous_loop` and `before_hitl` wait, `loop_completed` does not. What can be checked is checked
    now; a delta that turns out not to fit the state it meets fails, and whoever waits or asks for its ticket is
    told why. A save on the branch comes after everything that was accepted before it. `why` is that of a save."""
    key = branch_key(owner_id, workflow_id, branch)
    metadata = explained(metadata, why)
    if context not in (None, *get_args(CheckpointContext)):
        raise Invalid(
            f"there is no checkpoint context {context!r}", hint=f"use {', '.join(get_args(CheckpointContext))}"
        )
    waits = wait_for_commit if context is None else context != "loop_completed"
    _check_timeout(timeout)
    update = read_delta(delta, deleted)
    check_said(execution_id, segment_id, message, idempotency_key)
    if is_other_revision(key.branch) and kernel._catalog.head(kernel._tenant, key) is None:
        check_new_branch(key.branch)
    said = {"execution": execution_id, "segment": segment_id, "message": message}
    packed = pack_delta(update, kernel._trees.registry, metadata, said)
    fingerprint = None
    if idempotency_key is not None:
        fingerprint = fingerprint_of(kernel, key, update, CURRENT_HEAD, execution_id, segment_id, message, metadata)
        kernel._commits.known(key, idempotency_key, fingerprint)
        pending = kernel._catalog.pending_request(kernel._tenant, key, idempotency_key)
        if pending not in (None, fingerprint):
            raise other_request(idempotency_key)
    secret = kernel._context.entropy.random_bytes(SECRET_BYTES)
    entry = PendingEntry(key, secret, kernel._clock.now_us(), idempotency_key, fingerprint, *packed)
    ticket = Ticket(kernel._catalog.enter(kernel._tenant, entry), secret)
    if not waits:
        kernel._commits.pending.hand_over(key)
        return ticket
    try:
        row = _await(kernel, ticket, timeout)
    except AnalemmaError as exc:
        # Whatever came between, the delta is durable: made again, it would be applied twice.
        exc.facts.setdefault("ticket", str(ticket))
        kernel._commits.pending.hand_over(key)
        raise
    _receipt(row)
    return _described(ticket, row)


def ticket(kernel: Kernel, ticket: Ticket | str) -> Ticket:
    """What has become of a checkpoint, by its ticket or the text of it; NotFound for a ticket that this tenant
    never gave, or of a checkpoint that was forgotten."""
    known = _parsed(ticket)
    return _described(known, _ticket_row(kernel, known))


def wait_for(kernel: Kernel, ticket: Ticket | str, timeout: float = 30.0) -> Commit:
    """The commit of a checkpoint, once there is one; Timeout if there is none after `timeout` seconds. Raises the
    reason of one that failed."""
    return Commit.of(_receipt(_await(kernel, _parsed(ticket), timeout)))


def load_state_with_consistency(kernel: Kernel, ticket: Ticket | str, timeout: float = 10.0) -> dict[str, Any]:
    """Exactly the state that a checkpoint made: read what you wrote. Timeout if it is still pending after `timeout`
    seconds, ConsistencyError if it failed and there is no such state."""
    known = _parsed(ticket)
    row = _await(kernel, known, timeout)
    if row.failure is not None:
        reason = read_failure(row.failure)
        raise ConsistencyError(
            f"the checkpoint failed: {reason.message}",
            hint="load the newest state and decide again",
            ticket=str(known),
            reason=reason.kind,
        ) from reason
    return read_state(kernel, kernel._row(_receipt(row).manifest.hex(), None).id)


def _described(ticket: Ticket, row: TicketRow) -> Ticket:
    """The ticket with what is known of it by now."""
    if row.failure is not None:
        return Ticket(ticket.seq, ticket.secret, "failed", reason=str(read_failure(row.failure)))
    if row.receipt is None:
        return Ticket(ticket.seq, ticket.secret)
    receipt = decode_receipt(row.receipt)
    return Ticket(ticket.seq, ticket.secret, "committed", receipt.manifest.hex(), receipt.version)


def _receipt(row: TicketRow) -> Receipt:
    """The receipt of a checkpoint that was settled; raises the reason of one that failed."""
    if row.failure is not None:
        raise read_failure(row.failure)
    assert row.receipt is not None
    return decode_receipt(row.receipt)


def _await(kernel: Kernel, ticket: Ticket, timeout: float) -> TicketRow:
    """Where a checkpoint ended. Whoever waits does the work, unless someone is at it."""
    _check_timeout(timeout)
    deadline, is_late = kernel._clock.monotonic() + timeout, False
    while (row := _ticket_row(kernel, ticket)).receipt is None and row.failure is None:
        if is_late:
            raise Timeout(
                f"the checkpoint is still pending after {timeout:g} s",
                hint="it is durable and will be applied; ask for its ticket again",
                ticket=str(ticket),
            )
        is_late = not kernel._commits.pending.finish(row.key, ticket.seq, deadline)
    return row


def _ticket_row(kernel: Kernel, ticket: Ticket) -> TicketRow:
    row = kernel._catalog.ticket(kernel._tenant, ticket.seq, ticket.secret)
    if row is None:
        raise NotFound("there is no such ticket", hint="it may be another tenant's, or forgotten")
    return row


def _check_timeout(timeout: float) -> None:
    if type(timeout) not in (int, float) or not timeout >= 0:
        raise Invalid(f"cannot wait {timeout!r} s", hint="a time is a number and not negative")


def _parsed(ticket: Ticket | str) -> Ticket:
    return ticket if isinstance(ticket, Ticket) else Ticket.parse(ticket)


def pack_delta(
    update: DeltaUpdate, registry: TypeRegistry, metadata: Mapping[str, Any] | None, said: Mapping[str, Any]
) -> tuple[int, int, bytes, bytes]:
    """The delta as an entry keeps it: codec, size, digest and body; Invalid, with the pointer, for what can never be
    stored."""
    packer = Packer(registry)
    operations = [_pack_operation(operation, packer) for operation in update.operations]
    described = None if metadata is None else packer.pack(metadata).wire
    blocks = [marked(block.data) for block in packer.made.values()]
    data = encode_record("delta", {"operations": operations, "metadata": described, "blocks": blocks, **said})
    if len(data) > LARGEST_BYTES:
        raise Limit(
            f"the delta has {len(data)} bytes, and a pending one may have {LARGEST_BYTES}",
            hint="save it with save_state_delta, which waits for the commit",
        )
    codec, body = compress(data) if len(data) >= WORTH_COMPRESSING else (RAW, data)
    return codec, len(data), sha256(data).digest(), body


def unpack_delta(entry: PendingEntry) -> Unpacked:
    """What an entry asks for; Corrupt unless its bytes are those that were acknowledged. Values of types beyond JSON
    and bytes are `Tagged`: they are stored again exactly as they were packed."""
    data = decompress(entry.codec, entry.body, entry.size)
    if sha256(data).digest() != entry.digest:
        raise Corrupt("a pending delta does not match its hash", hint="restore the catalog from a backup")
    return decode_record("delta", data, _unpacked, "a pending delta cannot be read")


def _unpacked(fields: Any) -> Unpacked:
    blocks = {block_id(raw): raw for raw in map(unmarked, fields["blocks"])}
    trees = Trees(lambda wanted: {block: blocks[block] for block in wanted}, _NO_TYPES, "keep")
    metadata: Wire = None
    described: tuple[Block, ...] = ()
    if fields["metadata"] is not None:
        # Packed again, which gives the same bytes: that tells which of the blocks are the metadata's.
        metadata, described = trees.pack(_value(trees, fields["metadata"]))
    operations = [Operation(op, tuple(path), _value(trees, wire)) for op, path, wire in fields["operations"]]
    said = {name: fields[name] for name in ("execution", "segment", "message")}
    return DeltaUpdate(tuple(operations)), described, {"metadata": metadata, **said}


def _pack_operation(operation: Operation, packer: Packer) -> list[Any]:
    op, path, value = operation
    if op not in OPERATIONS:
        raise Invalid(f"there is no operation {op!r}", hint=f"use one of {', '.join(OPERATIONS)}")
    check_path(path)
    if op in _REMOVING:
        if not path:
            raise Invalid("the whole value cannot be removed", hint="replace it instead", pointer="")
        return [op, list(path), None]
    for token in path[-1:]:
        check_new_key(token, path)
    return [op, list(path), packer.pack(value, at=path).wire]


def _value(trees: Trees, wire: Wire) -> Any:
    # Plain JSON stands for itself.
    return trees.unpack(wire) if wire_flags(wire) else wire


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
        self._reached: dict[BranchKey, int] = {}
        """The last place that was settled from here, of some branches: what was before it on the branch is settled,
        too."""
        self._wanted: dict[BranchKey, None] = {}
        """Branches for the thread, and those for which somebody waits, in the order in which they came: whoever applies
        something takes these along. Each use is one step of the interpreter, so threads need no lock, nor do handlers
        of signals."""
        self._stuck: dict[BranchKey, None] = {}
        """Those that somebody is at, and those that something was in the way of: these are wanted again by the thread
        after a pause."""
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
            self._wanted[key] = None
            with self._turn(deadline) as is_ours:
                if self._reached.get(key, 0) >= through:
                    return True
                if not is_ours:
                    return False
                done = self._apply_wanted(key)
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
            while self._wanted and not self._is_late(deadline):
                with self._turn(deadline) as is_ours:
                    if is_ours:
                        self._apply_wanted()

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
            if self._wanted:
                with self._turn(None):
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
        # Whoever applies moves a branch from one to the other, and perhaps back.
        if self._wanted:
            return 0.0
        if self._stuck:
            return PAUSE_S
        return 0.0 if self._wanted else None

    def _apply_wanted(self, *first: BranchKey) -> Applied:
        """Apply what is pending on these branches and on the first that are wanted. Those with which it is not done
        are wanted again."""
        keys = list({**dict.fromkeys(first), **self._wanted})[:MOST_BRANCHES]
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
            # In this order: whoever looks into both finds it in one.
            if done.more or key in done.unsettled:
                self._wanted[key] = None
            self._stuck.pop(key, None)
        return done

    def _is_late(self, deadline: float | None) -> bool:
        return deadline is not None and self._clock.monotonic() >= deadline

    def _apply(self, keys: Sequence[BranchKey]) -> Applied:
        """Apply the next entries of these branches in one transaction. What is in the way of one branch is in the way
        of no other."""
        entries = self._catalog.pending_entries(self._tenant, keys, most_entries=MOST_ENTRIES, most_bytes=MOST_BYTES)
        is_full = len(entries) >= MOST_ENTRIES or sum(len(entry.body) for entry in entries) >= MOST_BYTES
        # The first of them, by place, that fit into memory together; one at least.
        sizes = list(accumulate(entry.size for entry in entries))
        fitting = entries[: max(1, bisect(sizes, MOST_UNPACKED_BYTES))]  # guard: checkpoint.memory
        done = Applied(more=is_full or len(fitting) < len(entries))
        by_key: dict[BranchKey, list[PendingEntry]] = {}
        for entry in fitting:
            by_key.setdefault(entry.key, []).append(entry)
        if not by_key:
            return done
        # After the entries: whatever was applied before they were read is in these heads.
        builder = _Builder(self._context, self._commits, self._catalog.heads(self._tenant, list(by_key)))
        branches: dict[BranchKey, list[Settlement]] = {}
        for key in sorted(by_key):
            try:
                steps = builder.build(key, by_key[key])
            except AnalemmaError as exc:
                done.unsettled[key] = exc
                continue
            done.more = done.more or len(steps) < len(by_key[key])
            if steps:
                branches[key] = steps
        if branches:
            self._settle(branches, builder.made, done)
        return done

    def _settle(
        self, branches: Mapping[BranchKey, list[Settlement]], made: Mapping[BlockId, Block], done: Applied
    ) -> None:
        steps = [step for each in branches.values() for step in each]
        requests = [step.commit for step in steps if step.commit is not None]
        try:
            self._catalog.settle(self._tenant, steps)
        except AnalemmaError as exc:
            first, *others = steps
            if len(branches) > 1 and not isinstance(exc, Unavailable | Timeout):
                # One of them is refused; by themselves the others are not.
                for key, alone in branches.items():
                    self._settle({key: alone}, made, done)
                return
            is_refused = isinstance(exc, Invalid | Limit) and bool(requests)
            # What was uploaded for those that are not tried again at once will be uploaded again.
            left = [step.commit for step in (others if is_refused and others else steps) if step.commit is not None]
            self._context.blocks.give_up([upload for request in left for upload in request.uploads], exc)
            if is_refused:
                # One of these versions is none that the database takes: by itself each is stored, or its delta fails.
                done.more = done.more or bool(others)
                failed = Settlement(first.seq, failure=write_failure(exc))
                (key,) = branches
                self._settle({key: [first if others else failed]}, made, done)
                return
            # Someone else was faster, or the answer was lost: the rows know, and are asked again.
            cause = None if isinstance(exc, Conflict | OutcomeUnknown) else exc
            done.unsettled.update(dict.fromkeys(branches, cause))
            return
        done.settled += len(steps)
        done.reached.update({key: each[-1].seq for key, each in branches.items()})
        if len(self._reached) >= REMEMBERED:
            self._reached.clear()
        self._reached.update(done.reached)
        self._context.blocks.remember([made[row.id] for request in requests for row in request.blocks])
        if any(request.events for request in requests):
            self._commits.announcer.wake()


class _Builder:
    """Builds the versions of one transaction. They can be read before they are stored: each is built on the one
    before."""

    def __init__(self, context: Context, commits: Commits, heads: Mapping[BranchKey, Head]) -> None:
        self._context = context
        self._commits = commits
        self._heads = heads
        self.made: dict[BlockId, Block] = {}
        self._trees = replace(context.trees, fetch=self._fetch).over(self.made)
        self._asked: dict[tuple[str, str, str], BranchKey] = {}
        """Which branch has an entry under each idempotency key of a workflow."""
        # The manifests and roots of all branches are read in two rounds. Damage is met again, and reported, where it is
        # in the way.
        with suppress(AnalemmaError):
            context.blocks.fetch([head.manifest for head in heads.values()])
            context.blocks.fetch([commits.manifest(head.manifest).root.id for head in heads.values()])

    def build(self, key: BranchKey, entries: Sequence[PendingEntry]) -> list[Settlement]:
        """The next versions of one branch. Deltas that can never be applied become failures; anything else that goes
        wrong with the first is raised and leaves the branch as it is, with a later one it ends the list."""
        head = self._heads.get(key)
        behind = self._commits.left_off(key) if head is None else None
        with _in_the_way(*_READING):
            base = None if head is None else self._commits.manifest(head.manifest)
        steps: list[Settlement] = []
        answered: dict[str, Idempotency] = {}
        for entry in entries:
            asked = entry.idempotency_key
            if asked is not None:
                if self._asked.setdefault((key.owner, key.workflow, asked), key) != key:
                    # Only one of two branches can have it, and which one is known after this transaction.
                    break
                known = answered.get(asked) or self._context.catalog.receipt(self._context.tenant, key, asked)
                if known is not None:
                    steps.append(_replayed(entry, known))
                    continue
            delta: Unpacked | None = None
            try:
                delta = unpack_delta(entry)
                draft = self._draft(entry, delta, head, base, behind)
            except AnalemmaError as exc:
                if delta is None or isinstance(exc, Invalid | Limit):
                    steps.append(Settlement(entry.seq, failure=write_failure(exc)))
                    continue
                if not steps:
                    raise
                # Those before it need not wait for what is in its way, nor be uploaded again each time it is tried.
                break
            steps.append(Settlement(entry.seq, draft.request, encode_receipt(draft.receipt)))
            self.made.update({block.id: block for block in draft.emitted})
            head, base = draft.request.head, draft.manifest
            if draft.request.idempotency is not None:
                answered[draft.request.idempotency.key] = draft.request.idempotency
        return steps

    def _draft(
        self, entry: PendingEntry, delta: Unpacked, head: Head | None, base: Manifest | None, behind: Head | None
    ) -> Draft:
        update, described, said = delta
        tree = apply_update(self._trees, None if base is None else base.root.id, update)
        proposal = Proposal.on(
            base,
            entry.key,
            Edited(tree.root, (*tree.blocks, *described)),
            head,
            behind=behind,
            idempotency_key=entry.idempotency_key,
            fingerprint=entry.fingerprint or b"",
            **said,
        )
        with _in_the_way(Invalid):  # guard: checkpoint.kept.writing
            return self._commits.draft(proposal)

    def _fetch(self, blocks: Sequence[BlockId]) -> Mapping[BlockId, bytes]:
        with _in_the_way(*_READING):
            return self._context.blocks.fetch(blocks)


@contextmanager
def _in_the_way(*told: type[AnalemmaError]) -> Iterator[None]:
    """What this program's store says is no fault of a delta's: it may be applied later, or by another program."""
    try:
        yield
    except told as exc:
        raise Unavailable(exc.message, hint=exc.hint, **exc.facts) from exc


def _replayed(entry: PendingEntry, known: Idempotency) -> Settlement:
    try:
        return Settlement(entry.seq, receipt=receipt_for(known, entry.fingerprint))
    except Conflict as exc:
        return Settlement(entry.seq, failure=write_failure(exc))
