"""Checkpoints that do not wait: a delta is acknowledged once it is durable, and becomes a version soon after. Its
ticket tells what became of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from analemma.catalog.kernel.pending import PendingEntry, TicketRow
from analemma.errors import AnalemmaError, ConsistencyError, Invalid, NotFound, Timeout
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
from analemma.state.load import read_state
from analemma.state.pending import read_failure
from analemma.state.pending_format import pack_delta
from analemma.state.records import Commit, Receipt, decode_receipt
from analemma.state.save import fingerprint_of

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

CheckpointContext = Literal["autonomous_loop", "before_hitl", "loop_completed"]
TicketStatus = Literal["pending", "committed", "failed"]

SECRET_BYTES = 16
_TOKEN = re.compile(r"ticket-([1-9][0-9]{0,18})-([0-9a-f]{32})")


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
    packed = pack_delta(
        update,
        kernel._trees.registry,
        metadata=metadata,
        execution=execution_id,
        segment=segment_id,
        message=message,
    )
    fingerprint = None
    if idempotency_key is not None:
        fingerprint = fingerprint_of(kernel, key, update, CURRENT_HEAD, execution_id, segment_id, message, metadata)
        kernel._commits.known(key, idempotency_key, fingerprint)
        pending = kernel._catalog.pending_request(kernel._tenant, key, idempotency_key)
        if pending not in (None, fingerprint):
            raise other_request(idempotency_key)
    secret = kernel._context.entropy.random_bytes(SECRET_BYTES)
    entry = PendingEntry(key, secret, kernel._clock.now_us(), idempotency_key, fingerprint, packed)
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
