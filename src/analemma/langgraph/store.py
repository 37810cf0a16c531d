"""`AnalemmaStore`: LangGraph's long-term memory, on the catalog that also holds the threads. What it accepts, how that
is stored, and how it answers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from math import isfinite
from typing import Any

import orjson
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    validate_op_namespace,
)

from analemma.canon.canonical_json import canonical_json, parse_json
from analemma.canon.pointer import MAXIMUM_DEPTH
from analemma.catalog.langgraph.items import ItemChange, ItemReader, SqlItems, StoredItem
from analemma.catalog.leases import DatabaseClock, database_clock
from analemma.catalog.names import check_part, check_texts
from analemma.clock import Ticker, moment
from analemma.errors import Corrupt, Invalid, Limit
from analemma.langgraph.search import TextIndex, parse_filter, rank
from analemma.store.open import open_app
from analemma.store.store import App

logger = logging.getLogger(__name__)

DEFAULT_SWEEP_MINUTES = 5.0
NAMESPACE_BYTES = 1024
KEY_BYTES = 1024
"""Both together fit one index entry of PostgreSQL (2,704 bytes)."""
VALUE_BYTES = 16 << 20
LONGEST_TTL_MINUTES = 1e9
"""About 1,900 years."""

WILDCARD = "*"


class AnalemmaStore(BaseStore):
    """Items by namespace and key, for all threads and processes that open the same store.

    Takes an open `App`, or what `analemma.open` takes; what it opened itself, it closes. A batch is one transaction:
    its reads see what was there before its writes, and of several writes to one item the last counts.

    >>> store = AnalemmaStore("sqlite:///:memory:")
    >>> store.put(("users", "ann"), "food", {"likes": "pizza"})
    >>> store.get(("users", "ann"), "food").value
    {'likes': 'pizza'}
    >>> [item.key for item in store.search(("users",), filter={"likes": "pizza"})]
    ['food']
    >>> store.close()
    """

    supports_ttl = True

    def __init__(
        self,
        where: App | str | os.PathLike[str] | None = None,
        *,
        tenant: str | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        database_clock: DatabaseClock = database_clock,
    ) -> None:
        self.ttl_config = ttl
        if ttl is not None:
            ttl_us(ttl.get("default_ttl"))
        self.index_config = index
        self.embeddings = None if index is None else ensure_embeddings(index.get("embed"))
        self._index = None if index is None else TextIndex(index.get("fields"), index.get("dims"))
        # Unlike other stores, which give out what has expired until it is swept, unless told otherwise.
        omit_expired = ttl is None or ttl.get("omit_expired", True)
        self._lock = threading.Lock()
        self._sweeper: tuple[Ticker, Future[None]] | None = None
        with ExitStack() as opened:
            app = where if isinstance(where, App) else opened.enter_context(open_app(where))
            owner = app.default if tenant is None else app.tenant(tenant)
            self._items = SqlItems(app.catalog.engine, owner.id, database_clock, omit_expired)
            self._opened = opened.pop_all()

    def __enter__(self) -> AnalemmaStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> AnalemmaStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop sweeping, and close the store if it was opened here; safe to call twice."""
        self.stop_ttl_sweeper()
        self._opened.close()

    def setup(self) -> None:
        """Nothing to do: opening a store brings its schema up to date. Other stores ask for this call."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The answer to each operation, all from one transaction."""
        batch = self._plan(ops)
        if self.embeddings is not None:
            found = self.embeddings.embed_documents([*batch.vectors]) if batch.vectors else []
            batch.learn(found, [self.embeddings.embed_query(query) for query in batch.queries])
        return self._run(batch)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`, in a thread. Cancelling abandons the wait, never the transaction."""
        batch = self._plan(ops)
        if self.embeddings is not None:
            found = await self.embeddings.aembed_documents([*batch.vectors]) if batch.vectors else []
            batch.learn(found, [await self.embeddings.aembed_query(query) for query in batch.queries])
        return await asyncio.to_thread(self._run, batch)

    def sweep_ttl(self) -> int:
        """Delete what has expired, by the database's clock; how many items. Nobody sees them even before."""
        return self._items.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep every so many minutes in a thread, until the future, which is done when the thread has ended, is
        cancelled, or the store is closed. A thread that runs already goes on as it is."""
        configured = (self.ttl_config or {}).get("sweep_interval_minutes")
        interval_s = 60 * float(sweep_interval_minutes or configured or DEFAULT_SWEEP_MINUTES)
        if not 0 < interval_s < threading.TIMEOUT_MAX:
            raise Invalid(f"not an interval: {interval_s} seconds", hint="give minutes, more than zero")

        def sweep() -> float:
            try:
                count = self.sweep_ttl()
                if count:
                    logger.info("swept %d expired items", count)
            except Exception:
                # Nothing is lost: what has expired is not given out, and the next time comes.
                logger.exception("expired items could not be swept")
            return interval_s

        def end() -> None:
            # Unless it was cancelled.
            with suppress(InvalidStateError):
                ended.set_result(None)

        with self._lock:
            if self._sweeper is None or self._sweeper[1].done():
                ended: Future[None] = Future()
                sweeper = Ticker("analemma-store-sweeper", sweep, end=end)
                ended.add_done_callback(lambda future: sweeper.stop(0) if future.cancelled() else None)
                self._sweeper = sweeper, ended
                sweeper.wake()
            return self._sweeper[1]

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Whether the sweeper stopped within `timeout` seconds."""
        with self._lock:
            return self._sweeper is None or self._sweeper[0].stop(timeout)

    def _plan(self, ops: Iterable[Op]) -> _Batch:
        """Everything that can be refused is refused here, before anything happens."""
        batch = _Batch()
        for op in ops:
            validate_op_namespace(op)
            batch.ops.append(op)
            if isinstance(op, PutOp):
                if not op.namespace:
                    raise Invalid("the namespace is empty", hint="give it at least one label")
                key = encode_namespace(op.namespace), op.key
                check_key(op.key)
                value = None if op.value is None else encode_value(op.value)
                texts = [] if op.value is None or self._index is None else self._index.texts(op.value, op.index)
                batch.puts[key] = ItemChange(*key, value, ttl_us(op.ttl)), texts
            elif isinstance(op, GetOp):
                check_key(op.key)
            elif isinstance(op, SearchOp):
                check_page(op)
                parse_filter(op.filter)
                if op.query and self._index is not None:
                    batch.queries[op.query] = None
            elif isinstance(op, ListNamespacesOp):
                check_page(op)
                if op.max_depth is not None:
                    check_count(op.max_depth, "a depth")
                for condition in op.match_conditions or ():
                    if condition.match_type not in ("prefix", "suffix"):
                        raise Invalid(f"not a kind of match: {condition.match_type!r}", hint="use 'prefix' or 'suffix'")
            else:
                raise Invalid(
                    f"not an operation of a store: {type(op).__name__}",
                    hint="GetOp, PutOp, SearchOp and ListNamespacesOp are",
                )
        batch.vectors = dict.fromkeys(text for _, texts in batch.puts.values() for text in texts)
        return batch

    def _run(self, batch: _Batch) -> list[Result]:
        changes: list[ItemChange] = []
        for change, texts in batch.puts.values():
            if self._index is not None and texts:
                change = change._replace(**self._index.pack(batch.vectors[text] for text in texts))
            changes.append(change)

        def answer(reader: ItemReader) -> list[Result]:
            return [self._answer(reader, op, batch) for op in batch.ops]

        if changes:
            return self._items.change(changes, answer)
        return self._items.read(answer, single=len(batch.ops) == 1 and isinstance(batch.ops[0], GetOp))

    def _answer(self, reader: ItemReader, op: Op, batch: _Batch) -> Result:
        if isinstance(op, GetOp):
            item = reader.get(encode_namespace(op.namespace), op.key)
            if item is not None and op.refresh_ttl:
                reader.refresh([item])
            return None if item is None else Item(**_facts(item))
        if isinstance(op, ListNamespacesOp):
            return list_namespaces(reader, op)
        if not isinstance(op, SearchOp):
            return None
        asked = batch.queries.get(op.query) if op.query else None
        query = None if asked is None or self._index is None else self._index.check(asked)
        found = search(reader, op, query)
        if op.refresh_ttl:
            reader.refresh([item for _, item in found])
        return [SearchItem(**_facts(item), score=score) for score, item in found]


@dataclass(slots=True)
class _Batch:
    """Checked operations, and what they need from an embedding."""

    ops: list[Op] = field(default_factory=list)
    puts: dict[tuple[bytes, str], tuple[ItemChange, list[str]]] = field(default_factory=dict)
    vectors: dict[str, Any] = field(default_factory=dict)
    """The vector of each text, once it is known."""
    queries: dict[str, Any] = field(default_factory=dict)
    """The vector of each query, once it is known."""

    def learn(self, vectors: Sequence[Any], queries: Sequence[Any]) -> None:
        """The vectors of the texts and of the queries, in their order."""
        if len(vectors) != len(self.vectors):
            raise Invalid(f"{len(vectors)} embeddings for {len(self.vectors)} texts", hint="check the `embed` function")
        self.vectors = dict(zip(self.vectors, vectors, strict=True))
        self.queries = dict(zip(self.queries, queries, strict=True))


def check_page(op: SearchOp | ListNamespacesOp) -> None:
    """Raise Invalid unless it can be paged so."""
    check_count(op.limit, "a limit")
    check_count(op.offset, "an offset")


def search(reader: ItemReader, op: SearchOp, query: Any) -> Sequence[tuple[float | None, StoredItem]]:
    """The items that match, with their scores: nearest to a query's vector first, or in the order in which they came to
    be."""
    prefix, matches, wanted = encode_namespace(op.namespace_prefix), parse_filter(op.filter), op.offset + op.limit
    pages = (
        [item for item in page if matches is None or matches(decode_value(item.value))]
        for page in reader.below(prefix, None if matches or query else wanted, scored=query is not None)
    )
    found = chain.from_iterable(pages)
    if query is None:
        return [(None, item) for item in (islice(found, op.offset, wanted) if op.limit else ())]
    return rank(query, found, wanted)[op.offset :]


def _facts(item: StoredItem) -> dict[str, Any]:
    """An item as it is given out."""
    return {
        "namespace": decode_namespace(item.namespace),
        "key": item.key,
        "value": decode_value(item.value),
        "created_at": moment(item.created_at_us),
        "updated_at": moment(item.updated_at_us),
    }


def list_namespaces(reader: ItemReader, op: ListNamespacesOp) -> list[tuple[str, ...]]:
    """The namespaces that match, cut to a depth, each once, in their order."""
    conditions = op.match_conditions or ()
    spaces = map(decode_namespace, reader.namespaces(_common_prefix(conditions)))
    shown = (space[: op.max_depth] for space in spaces if all(_matches(each, space) for each in conditions))
    # They come in order, so those that are cut to the same stand together.
    once = (space for space, _ in groupby(shown))
    return list(islice(once, op.offset, op.offset + op.limit))


def _common_prefix(conditions: Iterable[MatchCondition]) -> bytes:
    """What every namespace that matches begins with."""
    for condition in conditions:
        if condition.match_type == "prefix":
            path = condition.path
            return encode_namespace(path[: path.index(WILDCARD)] if WILDCARD in path else path)
    return b""


def _matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in (WILDCARD, label) for wanted, label in zip(path, part, strict=True))


def encode_namespace(namespace: Any) -> bytes:
    """A namespace's labels as one key, in which byte order is the order of the tuples. Labels are text, not empty,
    without periods and zero characters, as `BaseStore` asks."""
    # Text is a sequence of labels too, but nobody means that.
    if isinstance(namespace, str | bytes):
        raise Invalid(f"the namespace is of type {type(namespace).__name__}", hint="give it as a tuple of labels")
    check_texts(namespace)
    encoded = "\0".join(namespace).encode()
    if len(encoded) > NAMESPACE_BYTES:
        raise Invalid(
            f"the namespace is {len(encoded)} bytes long",
            hint=f"the limit is {NAMESPACE_BYTES} bytes of UTF-8, with one byte between two labels",
        )
    return encoded


def decode_namespace(encoded: bytes) -> tuple[str, ...]:
    """The labels of a stored namespace."""
    return tuple(encoded.decode().split("\0"))


def check_key(key: Any) -> None:
    """Raise Invalid unless it is short text, which may be empty."""
    if key != "":
        check_part(key, "key", KEY_BYTES)


def encode_value(value: Any) -> bytes:
    """A value as JSON. Unlike canonical JSON it keeps the order of keys, and `1.0` stays a float."""
    if not isinstance(value, Mapping):
        raise Invalid(f"the value is of type {type(value).__name__}", hint="an item's value is a mapping")
    value = dict(value)
    try:
        canonical_json(value)
    except Invalid:
        # Perhaps only tuples and subclasses, which JSON has forms for; if not, the same complaint again.
        value = _plain(value, ())
        canonical_json(value)
    try:
        data = orjson.dumps(value)
    except TypeError:
        # It was checked above: what is left are integers beyond 64 bits.
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if len(data) > VALUE_BYTES:
        raise Limit(
            f"the value is {len(data)} bytes of JSON",
            hint=f"the limit is {VALUE_BYTES}; keep large data in a thread's state, or elsewhere with its name here",
        )
    return data


def decode_value(data: bytes) -> dict[str, Any]:
    """The value that was stored."""
    try:
        value: dict[str, Any] = parse_json(data)
    except Invalid as exc:
        raise Corrupt(f"a stored value is {exc.message}", hint="restore it from a backup") from exc
    return value


def ttl_us(minutes: Any) -> int | None:
    """A time to live in microseconds; None: for ever."""
    if minutes is None:
        return None
    if isinstance(minutes, bool) or not isinstance(minutes, int | float):
        raise Invalid(f"the time to live is of type {type(minutes).__name__}", hint="give it as minutes")
    if not (isfinite(minutes) and 0 <= minutes <= LONGEST_TTL_MINUTES):
        raise Invalid(f"not a time to live: {minutes}", hint=f"give it as minutes, at most {LONGEST_TTL_MINUTES:.0f}")
    return round(minutes * 60_000_000)


def check_count(count: Any, what: str) -> int:
    """A limit or an offset."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise Invalid(f"not {what}: {count!r}", hint="give a whole number, zero or more")
    return count


def _plain(value: Any, within: tuple[int, ...]) -> Any:
    """The value with lists for tuples, and the types of JSON for their subclasses. What has no form, or is inside of
    itself, stays as it is."""
    if len(within) > MAXIMUM_DEPTH or id(value) in within:
        return value
    if isinstance(value, dict):
        inside = (*within, id(value))
        return {str.__str__(k) if isinstance(k, str) else k: _plain(item, inside) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*within, id(value))) for item in value]
    # By the base class: an enum's own conversions give its name.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value
