"""The rules of garbage collection, each with the number it has in docs/design/garbage-collection.md.

Each can be switched off in the model. What then goes wrong is why the rule is there."""

from __future__ import annotations

from enum import Enum


class Rule(Enum):
    """One rule. The value is its number and what it says, in short."""

    CHECK_BASES = (
        "W1",
        "whoever links blocks without emitting them finds the root above them still there, when committing",
    )
    HOLD_BASES = "W2", "and locks that root, in a mode that whoever ends the root has to wait for"
    WRITE_EMITTED = "W3", "every emitted block is written, whatever is believed to be stored"
    CLEAR_DOOM = "W4", "writing a block that is there clears its doom"
    LOCK_EMITTED = "W5", "writing a block that is there locks its row, even if there is nothing to clear"
    ROOT_WITH_BLOCKS = "W6", "a root comes in the transaction of its blocks, or in one before"
    SAME_ORDER = "W7", "rows of one kind are locked in the order of their ids"

    RECHECK_EXPIRY = "E1", "expiry looks for heads, tags and pins again, with the head locked"

    CHECK_FENCE = "C1", "every transaction of a pass checks that the pass still has the lease"
    HOLD_FENCE = "C2", "the check locks the lease's row, so that nobody takes the lease before the transaction ends"
    LEASE_THEN_SNAPSHOT = (
        "C3",
        "a pass takes its snapshot after its lease is committed, and so after all earlier dooming",
    )
    ONE_SNAPSHOT = "C4", "all roots are read in one snapshot"
    EVERY_PROVIDER = "C5", "every table that holds roots is read"
    FOLLOW_LINKS = "C6", "marking follows the links of every block that has any"
    STOP_AT_UNREADABLE = "C7", "a block that cannot be read ends the pass"
    OWN_MARKS = "C8", "a pass deletes only what its own snapshot leaves unmarked"
    EARLIER_DOOM = "C9", "a pass deletes only what an earlier pass doomed"
    TEST_WHILE_DELETING = "C10", "the statement that deletes a row tests its doom"
    RESPECT_SESSIONS = "C11", "nothing is deleted that was doomed since the oldest open session began"
    SPARE_MARKED = "C12", "marked blocks lose their doom"

    INTENT_FIRST = "U1", "an upload's intent is committed before its first byte"
    READY_BY_COMPARE = "U2", "a commit makes its uploads ready only if they are temp, or fails"
    CLAIM_BY_COMPARE = "U3", "an upload is claimed only in exactly the state that the claim was decided for"
    UNNAMED_ONLY = (
        "U4",
        "an upload is claimed, and a claimed one's object deleted, only if its row names its own object and no block's "
        "row of any tenant names it",
    )
    CLAIM_THEN_DELETE = "U5", "an object is deleted after its claim committed"
    KEEP_INTENT = "U6", "the intent of an upload that was never committed stays after its object was deleted"
    FORGET_OWN = "U7", "the row of a claimed upload is removed only by whoever has deleted its object"

    DURABLE_INTENT = "D1", "an intent is durable before the first byte"
    DURABLE_CLAIM = "D2", "a claim is durable before the object is deleted"
    DURABLE_SNAPSHOT = "D3", "what a snapshot saw is durable before the pass acts on it"

    @property
    def number(self) -> str:
        return self.value[0]

    @property
    def says(self) -> str:
        return self.value[1]

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


ALL = frozenset(Rule)

COURTESY = frozenset({Rule.SPARE_MARKED})
"""Without these nothing goes wrong in the model; the page says what they are good for."""
