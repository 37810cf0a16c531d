"""Items of namespaces: what the LangGraph store keeps. Rows and their transactions; what a value or a filter means is
decided above."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from analemma.catalog.engine.db import Engine, Row, Statements, Transaction
from analemma.catalog.leases import DatabaseClock
from analemma.catalog.port import TenantId
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("items.before_transaction", "a batch of items is checked and nothing is written")
BEFORE_COMMIT = declare("items.before_commit", "the batch is written inside the transaction")
AFTER_COMMIT = declare("items.after_commit", "the batch is there, but the caller does not know")
AFTER_SWEEP = declare("items.after_sweep", "some of the expired items are deleted")

Result = TypeVar("Result")

PAGE_ITEMS = 500
FIRST_PAGE = 50
PAGE_BYTES = 4 << 20
"""What a page should hold at most, as far as the page before it tells."""
SPACE_PAGE = 1000
SWEEP_SPACES = 100
SWEEP_ITEMS = 1000

_NEVER = -1
"""As the time to judge expiry by: nothing has expired yet."""
_AFTER_EVERYTHING = b"\xff"
"""No UTF-8 begins with it."""


class StoredItem(NamedTuple):
    """One item as its row has it."""

    space: int
    place: int
    namespace: bytes
    key: str
    value: bytes
    created_at_us: int
    updated_at_us: int
    expires_at_us: int | None
    dimensions: int | None = None
    vectors: bytes | None = None
    """What was indexed of it, where that is asked for."""


class ItemChange(NamedTuple):
    """What becomes of one item."""

    namespace: bytes
    key: str
    value: bytes | None
    """None: it is deleted."""
    ttl_us: int | None = None
    dimensions: int | None = None
    vectors: bytes | None = None


@dataclass(slots=True)
class ItemReader:
    """The items of one tenant as one snapshot has them. Namespaces are labels with a zero byte between them."""

    _source: Statements
    _tenant: TenantId
    _clock: DatabaseClock
    _omit_expired: bool
    _now: int | None = None
    _refreshed: dict[tuple[int, str], StoredItem] = field(default_factory=dict)

    def now_us(self) -> int:
        """The time that all of this reading goes by."""
        if self._now is None:
            self._now = self._clock(self._source)
        return self._now

    def get(self, namespace: bytes, key: str) -> StoredItem | None:
        """One item, unless it has expired."""
        item = self._source.row(StoredItem, "item", tenant=self._tenant, namespace=namespace, key=key)
        # Most items never expire: only those that do ask for the time.
        if item is None or (item.expires_at_us is not None and item.expires_at_us <= self._floor()):
            return None
        return item

    def below(self, prefix: bytes, wanted: int | None = None, *, scored: bool = False) -> Iterator[list[StoredItem]]:
        """Pages of the items of a namespace and of those below it: namespace after namespace, in the order in which
        they came to be, and so the items in each; `scored`: with their vectors. The first page is no larger than what
        is wanted, if that is known."""
        size = FIRST_PAGE if wanted is None else min(max(wanted, 1), PAGE_ITEMS)
        small: dict[int, bytes] = {}
        count = 0
        for space, namespace, newest in self._ranged("spaces_below", {"after": 0}, prefix):
            if small and count + newest > size:
                page = self._page("items_of_spaces", small, scored, spaces=list(small))
                small, count, size = {}, 0, _size_after(page)
                yield page
            if newest > size:
                after = 0
                which = {space: namespace}
                while page := self._page("items_of_space", which, scored, space=space, after=after, limit=size):
                    after, size = page[-1].place, _size_after(page)
                    yield page
            else:
                small[space] = namespace
                count += newest
        if small:
            yield self._page("items_of_spaces", small, scored, spaces=list(small))

    def namespaces(self, prefix: bytes) -> Iterator[bytes]:
        """The namespace and those below it that have items, in their order."""
        for row in self._ranged("item_namespaces", {"after": b""}, prefix, now=self._floor()):
            yield row[0]

    def refresh(self, items: Sequence[StoredItem]) -> None:
        """Say that these were read, and that this gives them more time."""
        self._refreshed |= {(item.space, item.key): item for item in items if item.expires_at_us is not None}

    def refreshing(self) -> list[tuple[Any, ...]]:
        """What is written to give it to them."""
        if not self._refreshed:
            return []
        now, floor = self.now_us(), self._floor()
        return [(now, self._tenant, space, key, floor) for space, key in sorted(self._refreshed)]

    def _floor(self) -> int:
        return self.now_us() if self._omit_expired else _NEVER

    def _ranged(self, name: str, behind: dict[str, Any], prefix: bytes, **asked: Any) -> Iterator[Row]:
        """Rows of namespaces, from a namespace to the end of all that begin with its labels."""
        high = prefix + b"\x01" if prefix else _AFTER_EVERYTHING
        asked |= {"tenant": self._tenant, "low": prefix, "high": high}
        for page in self._source.pages(name, behind, limit=SPACE_PAGE, **asked):
            yield from page

    def _page(self, name: str, namespaces: dict[int, bytes], scored: bool, **asked: Any) -> list[StoredItem]:
        rows = self._source.all(name, tenant=self._tenant, now=self._floor(), scored=int(scored), **asked)
        return [StoredItem(space, place, namespaces[space], *rest) for space, place, *rest in rows]


@dataclass(frozen=True, slots=True)
class SqlItems:
    """One tenant's items. A reading sees one snapshot, a batch of changes is one transaction."""

    engine: Engine
    tenant: TenantId
    clock: DatabaseClock
    omit_expired: bool

    def read(self, work: Callable[[ItemReader], Result], *, single: bool = False) -> Result:
        """What `work` finds; `single`: it asks for one item, which needs no transaction."""
        with nullcontext(self.engine) if single else self.engine.snapshot() as source:
            reader = self._reader(source)
            found, rows = work(reader), reader.refreshing()
        if rows:
            # Apart from the reading, which then waits for nobody. What was changed meanwhile has more time anyway.
            self.engine.write(lambda tx: tx.execute_many("refresh_item", rows))
        return found

    def change(self, changes: Sequence[ItemChange], work: Callable[[ItemReader], Result]) -> Result:
        """Make the changes, at most one for an item; what `work` found before them."""
        hit(BEFORE_TRANSACTION)

        def move(tx: Transaction) -> Result:
            # First, in an order that all writers keep: whoever holds a namespace's row changes its items alone.
            held = self._hold(tx, changes)
            reader = self._reader(tx)
            found = work(reader)
            if rows := reader.refreshing():
                tx.execute_many("refresh_item", rows)
            self._change(tx, changes, held, reader.now_us())
            hit(BEFORE_COMMIT)
            return found

        found = self.engine.write(move)
        hit(AFTER_COMMIT)
        return found

    def sweep(self) -> int:
        """Delete what has expired, some of it at a time; how many items."""
        total = 0
        while count := self.engine.write(self._sweep_some):
            total += count
            hit(AFTER_SWEEP)
        return total

    def _reader(self, source: Statements) -> ItemReader:
        return ItemReader(source, self.tenant, self.clock, self.omit_expired)

    def _hold(self, tx: Transaction, changes: Sequence[ItemChange]) -> dict[bytes, tuple[int, int]]:
        """Of each namespace that exists now: its number, and the last place taken before the new ones."""
        counts = dict.fromkeys((change.namespace for change in changes), 0)
        for change in changes:
            counts[change.namespace] += change.value is not None
        entered = [namespace for namespace, count in counts.items() if count]
        # Which locks come first is not which namespaces do, so the numbers of several are taken before.
        taken = tx.all("space_numbers", count=len(entered)) if len(entered) > 1 else [(None,)]
        numbers = {namespace: row[0] for namespace, row in zip(entered, taken, strict=False)}
        held: dict[bytes, tuple[int, int]] = {}
        for namespace, count in sorted(counts.items()):
            which = {"tenant": self.tenant, "namespace": namespace}
            more = {"count": count, "id": numbers[namespace]} if count else {}
            row = tx.one("enter_space" if count else "hold_space", **which, **more)
            if row is not None:
                held[namespace] = (row[0], row[1] - count)
        return held

    def _change(
        self, tx: Transaction, changes: Sequence[ItemChange], held: dict[bytes, tuple[int, int]], now: int
    ) -> None:
        rows: list[tuple[Any, ...]] = []
        left = {space for space, _ in held.values()}
        for change in changes:
            if change.namespace not in held:
                continue
            space, place = held[change.namespace]
            if change.value is None:
                tx.execute("delete_item", tenant=self.tenant, space=space, key=change.key)
                continue
            held[change.namespace] = (space, place + 1)
            left.discard(space)
            expires_at = None if change.ttl_us is None else now + change.ttl_us
            told = (change.ttl_us, expires_at, change.dimensions, change.value, change.vectors)
            rows.append((self.tenant, space, change.key, place + 1, now, now, *told))
        if rows:
            tx.execute_many("put_item", rows)
        for space in sorted(left):
            tx.execute("leave_space", tenant=self.tenant, space=space)

    def _sweep_some(self, tx: Transaction) -> int:
        now, count = self.clock(tx), 0
        for (namespace,) in tx.all("spaces_with_expired", tenant=self.tenant, now=now, limit=SWEEP_SPACES):
            row = tx.one("hold_space", tenant=self.tenant, namespace=namespace)
            if row is not None:
                which = {"tenant": self.tenant, "space": row[0]}
                count += tx.execute("delete_expired", **which, now=now, limit=SWEEP_ITEMS - count)
                tx.execute("leave_space", **which)
            if count >= SWEEP_ITEMS:
                break
        return count


def _size_after(page: Sequence[StoredItem]) -> int:
    """How many items of this size make a page."""
    if not page:
        return FIRST_PAGE
    held = sum([len(item.value) + len(item.vectors or b"") for item in page])
    return max(1, min(PAGE_ITEMS, PAGE_BYTES * len(page) // (held + 1)))
