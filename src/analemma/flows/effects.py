"""Effects of nodes: begun, done and found again. What `ctx.once` promises, and how its keys are made.

An effect is written down before it happens and again when it has. Between the two nobody knows: whoever finds it there
later calls it again under the same key, gives up, or asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from analemma.blocks.store import BlockStore
from analemma.canon.canonical_json import canonical_json
from analemma.canon.nodes import BlockId, block_id
from analemma.canon.trees import Trees
from analemma.catalog.engine.db import Transaction
from analemma.catalog.port import BranchKey, OutboxEvent, PreparedBlocks
from analemma.catalog.runs.effects import EffectRow, RunRecords
from analemma.catalog.runs.runs import FencedOut
from analemma.clock import Clock, Entropy
from analemma.errors import Corrupt, Invalid, OutcomeUnknown
from analemma.flows.context import Chance, Facts, OnUnknown, Settle
from analemma.flows.runs import EFFECT, FIND_OUT, Waiting
from analemma.flows.store_errors import StoreErrors
from analemma.tracing import current_trace

INLINE_BYTES: Final = 8192
"""A result whose tree is one block of at most so many bytes stands in the row of its effect."""
HASH_BYTES: Final = 32
"""Before the block itself: its hash."""
LONGEST_KEY: Final = 400
RUN: Final = "RUN"
"""The lanes of runs, for events that name no aggregate."""
PAYLOAD_VERSION: Final = "1.0"

HAPPENED: Final = "happened"
DID_NOT: Final = "did not"


class AskHuman(BaseException):
    """A node cannot go on before somebody has said whether an effect happened. No Exception: a node that catches those
    must not catch this."""

    def __init__(self, key: str, name: str, node: str) -> None:
        super().__init__(f"did {name} happen?")
        self.key = key
        self.name = name
        self.node = node

    def question(self, segment: str) -> Waiting:
        """What the run waits for then."""
        prompt = f"did {self.name} happen?"
        return Waiting(EFFECT, segment, self.node, (HAPPENED, DID_NOT), prompt=prompt, effect=self.key)


class NobodyKnows(OutcomeUnknown):
    """An effect was begun, and its node is not to call it again: trying again would end the same."""


NOT_KNOWN: Final = (OutcomeUnknown, TimeoutError, ConnectionError)
"""Errors after which what was to happen may have happened: whoever asked did not hear."""


def key_prefix(path: str, iterations: tuple[int, ...], item: int | None) -> str:
    """The beginning of the keys of one execution of a segment."""
    counted = ".".join(map(str, iterations)) or "-"
    return f"{path}:{counted}:{'-' if item is None else item}:"


class SegmentEffects:
    """The effects of one execution of one segment, or of one task in it."""

    def __init__(
        self,
        rows: RunRecords,
        facts: Facts,
        *,
        path: str,
        tenant: str,
        trees: Trees,
        blocks: BlockStore,
        clock: Clock,
        entropy: Entropy,
        fresh: bool,
    ) -> None:
        """`path` is the segment's id, or inside of tasks SEGMENT/ARM/INNER SEGMENT. `fresh`: it has never begun before,
        so that nothing can be known of its effects."""
        self._rows = rows
        self._facts = facts
        self._prefix = key_prefix(path, facts.iterations, facts.item_index)
        self._tenant = tenant
        self._trees = trees
        self._blocks = blocks
        self._clock = clock
        self._entropy = entropy
        self._known: dict[str, EffectRow] | None = {} if fresh else None

    def attempt(self, node: str, part: str = "", store: StoreErrors | None = None) -> AttemptEffects:
        """For one attempt of one node; or of a `part` of it, whose effects are others. `store` notes what the store
        does not answer."""
        return AttemptEffects(self, node, part, store)

    def known(self, key: str) -> EffectRow | None:
        """What is known of an effect."""
        if self._known is None:
            self._known = self._rows.effects(self._prefix)
        return self._known.get(key)

    def key(self, node: str, name: str, count: int) -> str:
        """Tells this effect from all others of the run's incarnation."""
        made = f"{self._prefix}{node}:{quote(name, safe='-_.~')}:{count}"
        if len(made) <= LONGEST_KEY:
            return made
        # Still by its beginning, so that it is found with the others.
        return self._prefix + sha256(made.encode()).hexdigest()

    def text(self, key: str) -> str:
        """The key as the outside gets it: never the same for two effects, and the same for one however often it is
        tried."""
        facts = self._facts
        made = f"{facts.execution_id}:{facts.incarnation}:{key}"
        return made if len(made) <= 255 and made.isascii() else sha256(made.encode()).hexdigest()

    def begin(self, key: str) -> EffectRow:
        """It is about to happen; or it has, and an attempt that was late has just said so."""
        row = self._rows.begin(key)
        self.note(row)
        return row

    def done(self, key: str, value: Any, *, begun: bool = True) -> Any:
        """It has happened, and this is what came of it: what counts from now on. Where an attempt that was late has
        recorded another answer before, that is it."""
        facts = self._facts
        where = BranchKey(facts.owner_id, facts.workflow_id)
        row, blocks = result_row(self._trees, self._blocks, where, facts.execution_id, key, value)
        standing = self._rows.end(row, blocks) if begun else self._rows.put(row, blocks)
        self.note(standing)
        return value if standing is row else self.value(standing)

    def standing(self, key: str) -> EffectRow:
        """What is known of an effect in the store; FencedOut if the run is somebody else's."""
        row = self._rows.standing(key)
        self.note(row)
        return row

    def done_within(self, tx: Transaction, key: str, value: Any) -> EffectRow:
        """The same, in the transaction in which it happens; to be noted when that is committed."""
        facts = self._facts
        where = BranchKey(facts.owner_id, facts.workflow_id)
        row, blocks = result_row(self._trees, self._blocks, where, facts.execution_id, key, value)
        if blocks.rows:
            raise Invalid("what came of an effect in the store is too large for its record", hint="answer less")
        self._rows.put_within(tx, row)
        return row

    def note(self, row: EffectRow) -> None:
        """What is known of an effect from here on."""
        if self._known is not None:
            self._known[row.key] = row

    def forget(self) -> None:
        """Nobody knows what was committed: ask again."""
        self._known = None

    def failed(self, begun: EffectRow) -> None:
        """An attempt said that it has not happened. That counts if no other was begun since."""
        self.note(self._rows.end(begun._replace(state="failed"), PreparedBlocks()))

    def value(self, row: EffectRow) -> Any:
        """What came of an effect that happened."""
        return read_result(self._trees, row)

    def new_chance(self) -> Chance:
        """Chance that nobody has seen yet."""
        return Chance(int.from_bytes(self._entropy.random_bytes(8), "big") >> 1, self._clock.now_us())

    def event(self, node: str, count: int, given: Mapping[str, Any]) -> OutboxEvent:
        """An event in the form of the outbox; Invalid if it cannot be one."""
        if not isinstance(given, Mapping):
            raise Invalid(f"an event is a mapping, not a {type(given).__name__}", hint="emit({'type': ...})")
        known = {"type", "payload", "aggregate_type", "aggregate_id", "priority", "idempotency_key"}
        strange = set(given) - known
        if strange or not isinstance(given.get("type"), str) or not given["type"]:
            named = ", ".join(sorted(map(str, strange))) or "no type"
            raise Invalid(f"an event with {named}", hint=f"it has type, and perhaps {', '.join(sorted(known))}")
        payload = given.get("payload", {})
        if not isinstance(payload, Mapping):
            raise Invalid(f"the payload of {given['type']} is no mapping", hint="payloads are JSON objects")
        priority = given.get("priority", 0)
        if type(priority) is not int:
            raise Invalid(f"the priority of {given['type']} is no integer", hint="give a whole number, or leave it out")
        key = self.text(self.key(node, "emit", count))
        return OutboxEvent(
            id=sha256(f"{self._tenant}/{key}".encode()).hexdigest()[:32],
            aggregate_type=given.get("aggregate_type", RUN),
            aggregate_id=given.get("aggregate_id", f"{self._tenant}:{self._facts.execution_id}"),
            type=given["type"],
            payload=canonical_json({"payloadVersion": PAYLOAD_VERSION, **payload}),
            idempotency_key=given.get("idempotency_key", key),
            priority=priority,
            trace=current_trace(),
        )


class AttemptEffects:
    """Implements `NodeEffects`. A retry is another of these: its names count from the beginning again, and so come to
    the same keys."""

    def __init__(self, segment: SegmentEffects, node: str, part: str = "", store: StoreErrors | None = None) -> None:
        self._segment = segment
        self._node = node
        self._place = f"{node}.{part}" if part else node
        """In keys. No id of a node has a dot."""
        self._counts: dict[str, int] = {}
        self.events: list[OutboxEvent] = []
        self.asked: AskHuman | None = None
        self.unknown: str | None = None
        """The key of an effect that was begun, that nobody knows of, and that is not to be called again."""
        self.store = StoreErrors() if store is None else store
        """What the store itself did not answer with: no fault of the node's."""

    def once(self, name: str, function: Callable[[str], Any], on_unknown: OnUnknown) -> Any:
        key, row = self._find(name, on_unknown)
        if row is not None:
            return self._value(row)
        with self._asking():
            begun = self._segment.begin(key)
        if begun.state == "done":
            return self._value(begun)
        try:
            value = function(self._segment.text(key))
        except NOT_KNOWN:
            # The intent stands: the next attempt does what on_unknown says.
            self._note_unknown(key, on_unknown)
            raise
        except Exception:
            with self._asking():
                self._segment.failed(begun)
            raise
        with self._asking():
            return self._segment.done(key, value)

    async def once_async(self, name: str, function: Callable[[str], Awaitable[Any]], on_unknown: OnUnknown) -> Any:
        key, row = self._find(name, on_unknown)
        if row is not None:
            return self._value(row)
        with self._asking():
            begun = self._segment.begin(key)
        if begun.state == "done":
            return self._value(begun)
        try:
            value = await function(self._segment.text(key))
        except NOT_KNOWN:
            # The intent stands: the next attempt does what on_unknown says.
            self._note_unknown(key, on_unknown)
            raise
        except Exception:
            with self._asking():
                self._segment.failed(begun)
            raise
        with self._asking():
            return self._segment.done(key, value)

    def once_here(self, name: str, function: Callable[[Settle], Any]) -> Any:
        key, row = self._find(name, "retry")
        if row is not None:
            return self._value(row)
        settled: list[EffectRow] = []

        def settle(tx: Transaction, value: Any) -> None:
            settled[:] = [self._segment.done_within(tx, key, value)]

        try:
            # No intent: what it does and what says so are there together, or neither is.
            with self._asking(at_once=False):
                answer = function(settle)
        except FencedOut:
            self._segment.forget()
            # Not a second time: an attempt that was late may have done it, and then its answer is the answer.
            with self._asking():
                found = self._segment.standing(key)
            if found.state != "done":
                raise
            return self._value(found)
        except Exception:
            self._segment.forget()
            raise
        for row in settled:
            self._segment.note(row)
        return answer

    def reading(self, name: str, function: Callable[[], Any], *, here: bool = False) -> Any:
        key, row = self._find(name, "retry")
        if row is not None:
            return self._value(row)
        with self._asking(at_once=False) if here else nullcontext():
            answer = function()
        with self._asking():
            return self._segment.done(key, answer, begun=False)

    def chance(self) -> Chance:
        key = self._segment.key(self._place, "", 0)
        with self._asking():
            row = self._segment.known(key)
        if row is not None and row.state == "done":
            seed, at_us = self._value(row)
            return Chance(seed, at_us)
        made = self._segment.new_chance()
        with self._asking():
            seed, at_us = self._segment.done(key, [made.seed, made.at_us], begun=False)
        return Chance(seed, at_us)

    def emit(self, event: Mapping[str, Any]) -> None:
        self.events.append(self._segment.event(self._place, len(self.events), event))

    def _asking(self, *, at_once: bool = True) -> AbstractContextManager[None]:
        """Whoever asks the store may get no answer. Not `at_once`: perhaps it was somebody else who was asked."""
        return self.store.asking(at_once=at_once)

    def _value(self, row: EffectRow) -> Any:
        with self._asking():
            return self._segment.value(row)

    def _note_unknown(self, key: str, on_unknown: OnUnknown) -> None:
        if on_unknown == "fail" and self.unknown is None:
            self.unknown = key

    def _find(self, name: str, on_unknown: OnUnknown) -> tuple[str, EffectRow | None]:
        """The effect's key, and its row if it was done."""
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        key = self._segment.key(self._place, name, count)
        with self._asking():
            row = self._segment.known(key)
        if row is None or row.state == "failed":
            return key, None
        if row.state == "done":
            return key, row
        if on_unknown == "fail":
            self._note_unknown(key, on_unknown)
            raise NobodyKnows(
                f"{name} was begun, and nobody knows whether it happened",
                hint=FIND_OUT,
                effect=name,
                key=self._segment.text(key),
                effect_key=key,
            )
        if on_unknown == "ask":
            self.asked = AskHuman(key, name, self._node)
            raise self.asked
        return key, None


def result_row(
    trees: Trees, blocks: BlockStore, where: BranchKey, execution: str, key: str, value: Any
) -> tuple[EffectRow, PreparedBlocks]:
    """An effect that happened with this result, and the blocks of one that is too large for its row."""
    made = trees.build(value)
    if len(made.blocks) == 1 and len(made.blocks[0].data) <= INLINE_BYTES:
        return EffectRow(key, "done", None, made.root.id + made.blocks[0].data), PreparedBlocks()
    prepared = blocks.prepare(made.blocks, where, execution)
    return EffectRow(key, "done", made.root.id), prepared


def read_result(trees: Trees, row: EffectRow) -> Any:
    """What came of an effect, verified like everything that is read."""
    if row.body is None:
        assert row.result is not None
        return trees.read(row.result)
    root, body = BlockId(row.body[:HASH_BYTES]), row.body[HASH_BYTES:]
    if block_id(body) != root:
        raise Corrupt(f"the result of effect {row.key} is damaged", block=root.hex(), key=row.key)
    return Trees(lambda blocks: dict.fromkeys(blocks, body), trees.registry, trees.unknown).read(root)
