"""`AnalemmaStore`: LangGraph's long-term memory, on the catalog that also holds the threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    validate_op_namespace,
)

from analemma.app import App, open_app
from analemma.catalog.collecting import DatabaseClock, database_clock
from analemma.catalog.items import ItemChange, ItemReader, SqlItems, StoredItem
from analemma.errors import Invalid
from analemma.langgraph.store_filters import parse_filter
from analemma.langgraph.store_index import Ranking, TextIndex, Vectors
from analemma.langgraph.store_reading import (
    check_listing,
    check_page,
    get_item,
    list_namespaces,
    rank,
    search_item,
    select,
)
from analemma.langgraph.store_sweeper import Sweeper
from analemma.langgraph.store_values import check_key, encode_namespace, encode_value, ttl_us

DEFAULT_SWEEP_MINUTES = 5.0


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
        self._sweeper = Sweeper(self.sweep_ttl)
        self._own = None if isinstance(where, App) else open_app(where)
        app = where if isinstance(where, App) else self._own
        assert app is not None
        try:
            owner = app.default if tenant is None else app.tenant(tenant)
        except BaseException:
            self.close()
            raise
        self._items = SqlItems(app.catalog.engine, owner.id, omit_expired=omit_expired, clock=database_clock)

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
        self._sweeper.stop()
        if self._own is not None:
            self._own.close()

    def setup(self) -> None:
        """Nothing to do: opening a store brings its schema up to date. Other stores ask for this call."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The answer to each operation, all from one transaction."""
        batch = self._plan(ops)
        if self.embeddings is not None:
            if batch.documents:
                batch.learn(self.embeddings.embed_documents(list(batch.documents)))
            for query in batch.queries:
                batch.queries[query] = self.embeddings.embed_query(query)
        return self._run(batch)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`, in a thread. Cancelling abandons the wait, never the transaction."""
        batch = self._plan(ops)
        if self.embeddings is not None:
            if batch.documents:
                batch.learn(await self.embeddings.aembed_documents(list(batch.documents)))
            for query in batch.queries:
                batch.queries[query] = await self.embeddings.aembed_query(query)
        return await asyncio.to_thread(self._run, batch)

    def sweep_ttl(self) -> int:
        """Delete what has expired, by the database's clock; how many items. Nobody sees them even before."""
        return self._items.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep every so many minutes in a thread, until the future is cancelled or the store is closed."""
        configured = (self.ttl_config or {}).get("sweep_interval_minutes")
        return self._sweeper.start(60 * float(sweep_interval_minutes or configured or DEFAULT_SWEEP_MINUTES))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Whether the sweeper stopped within `timeout` seconds."""
        return self._sweeper.stop(timeout)

    def _plan(self, ops: Iterable[Op]) -> _Batch:
        """Everything that can be refused is refused here, before anything happens."""
        batch = _Batch()
        for place, op in enumerate(ops):
            validate_op_namespace(op)
            batch.count += 1
            if isinstance(op, PutOp):
                self._plan_put(batch, op)
                continue
            if isinstance(op, GetOp):
                check_key(op.key)
            elif isinstance(op, SearchOp):
                check_page(op)
                parse_filter(op.filter)
                if op.query and self._index is not None:
                    batch.queries[op.query] = None
            elif isinstance(op, ListNamespacesOp):
                check_page(op)
                check_listing(op)
            else:
                raise Invalid(
                    f"not an operation of a store: {type(op).__name__}",
                    hint="GetOp, PutOp, SearchOp and ListNamespacesOp are",
                )
            batch.reads.append((place, op))
        return batch

    def _plan_put(self, batch: _Batch, op: PutOp) -> None:
        if not op.namespace:
            raise Invalid("the namespace is empty", hint="give it at least one label")
        namespace, key = encode_namespace(op.namespace), check_key(op.key)
        texts: list[str] = []
        value = None
        if op.value is not None:
            value = encode_value(op.value)
            if self._index is not None:
                texts = self._index.texts(op.value, op.index)
        batch.puts[namespace, key] = _Put(ItemChange(namespace, key, value, ttl_us(op.ttl)), texts)

    def _run(self, batch: _Batch) -> list[Result]:
        changes = [self._indexed(batch, put) for put in batch.puts.values()]

        def answer(reader: ItemReader) -> list[Result]:
            results: list[Result] = [None] * batch.count
            for place, op in batch.reads:
                results[place] = self._answer(reader, op, batch)
            return results

        if changes:
            return self._items.change(changes, answer)
        return self._items.read(answer, single=batch.count == 1 and isinstance(batch.reads[0][1], GetOp))

    def _indexed(self, batch: _Batch, put: _Put) -> ItemChange:
        vectors = batch.vectors_of(put, self._index)
        change = put.change
        if vectors is None:
            return change
        return ItemChange(change.namespace, change.key, change.value, change.ttl_us, vectors.dimensions, vectors.data)

    def _answer(self, reader: ItemReader, op: Op, batch: _Batch) -> Result:
        if isinstance(op, GetOp):
            return get_item(reader, op)
        if isinstance(op, ListNamespacesOp):
            return list_namespaces(reader, op)
        assert isinstance(op, SearchOp)
        query = batch.queries.get(op.query) if op.query else None
        if query is None or self._index is None:
            found: Sequence[tuple[float | None, StoredItem]] = [(None, item) for item in select(reader, op)]
        else:
            found = rank(reader, op, Ranking(self._index.check(query), op.offset + op.limit))
        if op.refresh_ttl:
            reader.refresh([item for _, item in found])
        return [search_item(item, score) for score, item in found]


@dataclass(frozen=True, slots=True)
class _Put:
    change: ItemChange
    texts: list[str]


@dataclass(slots=True)
class _Batch:
    """Checked operations, and what they need from an embedding."""

    count: int = 0
    reads: list[tuple[int, Op]] = field(default_factory=list)
    puts: dict[tuple[bytes, str], _Put] = field(default_factory=dict)
    queries: dict[str, Any] = field(default_factory=dict)
    """The vector of each query, once it is known."""
    _learned: dict[str, Any] = field(default_factory=dict)

    @property
    def documents(self) -> dict[str, None]:
        """Each text to embed once."""
        return {text: None for put in self.puts.values() for text in put.texts}

    def learn(self, vectors: Sequence[Any]) -> None:
        """The vectors of the documents, in their order."""
        documents = self.documents
        if len(vectors) != len(documents):
            raise Invalid(f"{len(vectors)} embeddings for {len(documents)} texts", hint="check the `embed` function")
        self._learned = dict(zip(documents, vectors, strict=True))

    def vectors_of(self, put: _Put, index: TextIndex | None) -> Vectors | None:
        if index is None or not put.texts:
            return None
        return index.pack([index.check(self._learned[text]) for text in put.texts])
