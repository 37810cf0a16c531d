"""The outbox: how workers take lanes and give them back."""

from analemma.catalog.outbox.claims import EventFailure as EventFailure
from analemma.catalog.outbox.claims import LaneOutcome as LaneOutcome
from analemma.catalog.outbox.claims import OutboxClaims as OutboxClaims
