"""Tickets: what a caller holds of a delta that is on its way to becoming a version."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from analemma import errors
from analemma.catalog.kernel.ledger_port import TicketRow
from analemma.errors import AnalemmaError, Corrupt, Invalid
from analemma.state.records import decode_receipt

TicketStatus = Literal["pending", "committed", "failed"]

_TOKEN = re.compile(r"ticket-([1-9][0-9]{0,18})-([0-9a-f]{32})")
_KINDS: dict[str, type[AnalemmaError]] = {
    found.kind: found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, AnalemmaError) and found.__module__ == errors.__name__
}


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


def described(ticket: Ticket, row: TicketRow) -> Ticket:
    """The ticket with what is known of it by now."""
    if row.failure is not None:
        return Ticket(ticket.seq, ticket.secret, "failed", reason=str(read_failure(row.failure)))
    if row.receipt is None:
        return Ticket(ticket.seq, ticket.secret)
    receipt = decode_receipt(row.receipt)
    return Ticket(ticket.seq, ticket.secret, "committed", receipt.manifest.hex(), receipt.version)


def write_failure(error: AnalemmaError) -> str:
    """An error as the ledger keeps it."""
    facts = {name: fact for name, fact in error.facts.items() if fact is None or type(fact) in (str, int, bool)}
    return orjson.dumps({"kind": error.kind, "message": error.message, "hint": error.hint, "facts": facts}).decode()


def read_failure(text: str) -> AnalemmaError:
    """The error that the ledger keeps."""
    try:
        fields: dict[str, Any] = orjson.loads(text)
        return _KINDS.get(fields["kind"], AnalemmaError)(fields["message"], hint=fields["hint"], **fields["facts"])
    except (ValueError, TypeError, KeyError) as exc:
        raise Corrupt(f"the reason of a failed checkpoint cannot be read: {exc}") from exc
