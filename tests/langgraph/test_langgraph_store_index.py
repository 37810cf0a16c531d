"""AnalemmaStore: search by meaning. The embedding is a count of letters, so who is near to whom is plain to see."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.store.base import PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from analemma import App
from analemma.errors import Invalid, Limit
from analemma.langgraph import AnalemmaStore
from tests.stores import Store

DOCUMENTS = ("documents",)
TEXTS = {"one": "aab", "two": "abbc", "three": "ccc", "four": "", "five": "aab", "six": "bca"}


def letters(texts: Sequence[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


def index(**more: Any) -> Any:
    return {"dims": 3, "embed": letters, "fields": ["text"], **more}


def shown(found: Any) -> list[tuple[str, Any]]:
    return [(item.key, None if item.score is None else pytest.approx(item.score)) for item in found]


def test_it_ranks_as_the_memory_store_does(app: App) -> None:
    ours, theirs = AnalemmaStore(app, index=index()), InMemoryStore(index=index())
    for store in (ours, theirs):
        # One by one: the other store cannot embed one text twice in a batch.
        for key, text in TEXTS.items():
            store.put(DOCUMENTS, key, {"text": text, "long": len(text) > 3})
        store.put(DOCUMENTS, "unindexed", {"text": "aaa"}, index=False)
        store.put(("documents", "below"), "other", {"text": "ac", "note": "bbb"}, index=["note", "text"])
        store.put(("elsewhere",), "no", {"text": "a"})
    for query in ("a", "abc", "ccccb", "aab"):
        for limit, offset in ((10, 0), (3, 0), (3, 2), (1, 1), (2, 6)):
            for chosen in (None, {"long": False}):
                asked: dict[str, Any] = {"query": query, "limit": limit, "offset": offset, "filter": chosen}
                assert shown(ours.search(DOCUMENTS, **asked)) == shown(theirs.search(DOCUMENTS, **asked)), asked


def test_an_item_is_as_near_as_the_nearest_of_its_texts(app: App) -> None:
    memory = AnalemmaStore(app, index=index(fields=["parts[*].text"]))
    memory.put(DOCUMENTS, "both", {"parts": [{"text": "ccc"}, {"text": "aaa"}]})
    memory.put(DOCUMENTS, "mixed", {"parts": [{"text": "aab"}]})
    memory.put(DOCUMENTS, "none", {"parts": []})
    assert shown(memory.search(DOCUMENTS, query="a")) == [("both", 1.0), ("mixed", 2 / 5**0.5), ("none", None)]


def test_another_value_has_other_vectors(app: App) -> None:
    memory = AnalemmaStore(app, index=index())
    memory.put(DOCUMENTS, "k", {"text": "aaa"})
    memory.put(DOCUMENTS, "k", {"text": "bbb"})
    assert shown(memory.search(DOCUMENTS, query="a")) == [("k", 0.0)]
    memory.put(DOCUMENTS, "k", {"text": "aaa"}, index=False)
    assert shown(memory.search(DOCUMENTS, query="a")) == [("k", None)]


def test_without_an_index_a_query_changes_nothing(app: App) -> None:
    memory = AnalemmaStore(app)
    memory.put(DOCUMENTS, "k", {"text": "aaa"}, index=["text"])
    assert shown(memory.search(DOCUMENTS, query="a")) == [("k", None)]


def test_vectors_survive_reopening_and_pages(store: Store) -> None:
    with store.open() as app:
        memory = AnalemmaStore(app, index=index())
        memory.batch([PutOp(DOCUMENTS, f"{n}", {"text": "a" * (n % 7) + "b" * (n % 5)}) for n in range(600)])
        memory.batch([PutOp(("documents", f"{n}"), "below", {"text": "a"}) for n in range(3)])
    with store.open() as app:
        found = AnalemmaStore(app, index=index()).search(DOCUMENTS, query="a", limit=1000)
        assert len(found) == 603
        scores = [item.score for item in found if item.score is not None]
        assert scores == sorted(scores, reverse=True)
        alone = [str(n) for n in range(600) if n % 5 == 0 and n % 7 > 0]
        assert [item.key for item in found if item.score == 1.0] == [*alone, "below", "below", "below"]


def test_coroutines_embed_as_coroutines(app: App) -> None:
    async def embed(texts: Sequence[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return letters(texts)

    async def use() -> None:
        memory = AnalemmaStore(app, index=index(embed=embed))
        await memory.abatch([PutOp(DOCUMENTS, key, {"text": text}) for key, text in TEXTS.items()])
        found = (await memory.abatch([SearchOp(DOCUMENTS, query="c", limit=2)]))[0]
        assert shown(found) == [("three", 1.0), ("six", 1 / 3**0.5)]

    asyncio.run(use())


def test_an_embedding_that_is_wrong_is_refused_and_nothing_is_stored(app: App) -> None:
    def wrong(answer: Any) -> AnalemmaStore:
        return AnalemmaStore(app, index=index(embed=lambda texts: answer))

    for answer, why in (
        ([[1.0, 2.0]], "2 dimensions"),
        ([[1.0, 2.0, float("nan")]], "no number"),
        ([[]], "empty"),
        ([], "0 embeddings for 1"),
    ):
        with pytest.raises(Invalid, match=why):
            wrong(answer).put(DOCUMENTS, "k", {"text": "a"})
    assert wrong([]).search(()) == []


def test_vectors_of_another_length_are_not_compared(app: App) -> None:
    AnalemmaStore(app, index=index()).put(DOCUMENTS, "k", {"text": "a"})
    other = AnalemmaStore(app, index={"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]})
    with pytest.raises(Invalid, match=r"'k' was indexed with 3 dimensions, the query has 2"):
        other.search(DOCUMENTS, query="a")


def test_a_search_that_would_compare_too_much_says_so(app: App) -> None:
    memory = AnalemmaStore(app, index=index(fields=["all[*]"], embed=lambda texts: [[1.0, 0.0, 0.0]] * len(texts)))
    # Each counts as many times as it has texts.
    texts = [str(number) for number in range(1000)]
    memory.batch([PutOp(DOCUMENTS, str(number), {"all": texts, "odd": number % 2}) for number in range(51)])
    with pytest.raises(Limit, match="more than 50000 vectors"):
        memory.search(DOCUMENTS, query="a")
    assert len(memory.search(DOCUMENTS, query="a", filter={"odd": 1}, limit=100)) == 25


def test_an_item_with_too_many_texts_says_so(app: App) -> None:
    memory = AnalemmaStore(app, index=index(fields=["all[*]"]))
    memory.put(DOCUMENTS, "k", {"all": ["a"] * 1000})
    with pytest.raises(Limit, match="1001 texts"):
        memory.put(DOCUMENTS, "k", {"all": ["a"] * 1001})


def test_an_index_that_is_no_list_of_paths_is_refused(app: App) -> None:
    memory = AnalemmaStore(app, index=index())
    wrong: list[Any] = ["text", [1], [None]]
    for chosen in wrong:
        with pytest.raises(Invalid, match="not an index"):
            memory.put(DOCUMENTS, "k", {"text": "a"}, index=chosen)
