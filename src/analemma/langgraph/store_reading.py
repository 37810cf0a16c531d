"""How the LangGraph store answers: one item, a search, a listing of namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, SearchItem, SearchOp

from analemma.catalog.items import ItemReader, StoredItem
from analemma.clock import moment
from analemma.errors import Invalid
from analemma.langgraph.store_filters import parse_filter
from analemma.langgraph.store_index import Ranking
from analemma.langgraph.store_values import check_count, decode_namespace, decode_value, encode_namespace

WILDCARD = "*"


def check_page(op: SearchOp | ListNamespacesOp) -> None:
    """Raise Invalid unless it can be paged so."""
    check_count(op.limit, "a limit")
    check_count(op.offset, "an offset")


def check_listing(op: ListNamespacesOp) -> None:
    """Raise Invalid for what no namespace could match."""
    if op.max_depth is not None:
        check_count(op.max_depth, "a depth")
    for condition in op.match_conditions or ():
        if condition.match_type not in ("prefix", "suffix"):
            raise Invalid(f"not a kind of match: {condition.match_type!r}", hint="use 'prefix' or 'suffix'")


def get_item(reader: ItemReader, op: GetOp) -> Item | None:
    """One item, or None."""
    item = reader.get(encode_namespace(op.namespace), op.key)
    if item is None:
        return None
    if op.refresh_ttl:
        reader.refresh([item])
    return Item(
        namespace=decode_namespace(item.namespace),
        key=item.key,
        value=decode_value(item.value),
        created_at=moment(item.created_at_us),
        updated_at=moment(item.updated_at_us),
    )


def select(reader: ItemReader, op: SearchOp) -> list[StoredItem]:
    """The items that match, in the order in which they came to be."""
    matches = parse_filter(op.filter)
    wanted = op.offset + op.limit
    matching = (
        item
        for page in reader.below(encode_namespace(op.namespace_prefix), None if matches else wanted)
        for item in page
        if matches is None or matches(decode_value(item.value))
    )
    return list(islice(matching, op.offset, wanted)) if op.limit else []


def rank(reader: ItemReader, op: SearchOp, ranking: Ranking) -> Sequence[tuple[float | None, StoredItem]]:
    """The items that match, nearest first, with their scores."""
    matches = parse_filter(op.filter)
    for page in reader.below(encode_namespace(op.namespace_prefix)):
        items = [item for item in page if matches is None or matches(decode_value(item.value))]
        if items:
            vectors = reader.vectors(items)
            for item in items:
                ranking.add(item, vectors.get((item.space, item.place)))
    return ranking.ranked()[op.offset :]


def search_item(item: StoredItem, score: float | None) -> SearchItem:
    """An item as a search gives it out."""
    return SearchItem(
        namespace=decode_namespace(item.namespace),
        key=item.key,
        value=decode_value(item.value),
        created_at=moment(item.created_at_us),
        updated_at=moment(item.updated_at_us),
        score=score,
    )


def list_namespaces(reader: ItemReader, op: ListNamespacesOp) -> list[tuple[str, ...]]:
    """The namespaces that match, cut to a depth, each once, in their order."""
    conditions = op.match_conditions or ()

    def matching() -> Iterable[tuple[str, ...]]:
        newest: tuple[str, ...] | None = None
        for encoded in reader.namespaces(_common_prefix(conditions)):
            namespace = decode_namespace(encoded)
            if all(_matches(condition, namespace) for condition in conditions):
                shown = namespace[: op.max_depth]
                # They come in order, so those that are cut to the same stand together.
                if shown != newest:
                    newest = shown
                    yield shown

    return list(islice(matching(), op.offset, op.offset + op.limit))


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
