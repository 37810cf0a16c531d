"""Writers of one namespace take turns, whoever empties it and whoever fills it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from analemma import App
from analemma.catalog.items import ItemChange, ItemReader, SqlItems
from tests.stores import Store


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open(sqlite_synchronous="NORMAL") as app:
        yield app


@pytest.fixture
def items(app: App) -> SqlItems:
    return SqlItems(app.catalog.engine, app.default.id)


def put(key: str, namespace: bytes = b"a") -> ItemChange:
    return ItemChange(namespace, key, b"{}")


def delete(key: str, namespace: bytes = b"a") -> ItemChange:
    return ItemChange(namespace, key, None)


def keys(items: SqlItems) -> list[tuple[bytes, str]]:
    return items.read(lambda reader: [(item.namespace, item.key) for page in reader.below(b"") for item in page])


def nothing(reader: ItemReader) -> None:
    return None


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        pytest.param(put("new"), delete("old"), [(b"a", "new")], id="emptied while it is filled"),
        pytest.param(delete("old"), put("new"), [(b"a", "new")], id="filled while it is emptied"),
        pytest.param(delete("old"), delete("old"), [], id="emptied twice"),
    ],
)
def test_the_second_waits_for_the_first(
    items: SqlItems, first: ItemChange, second: ItemChange, left: list[tuple[bytes, str]]
) -> None:
    items.change([put("old")], nothing)
    began, go_on = threading.Event(), threading.Event()

    def linger(reader: ItemReader) -> None:
        # The namespace is held, and nothing is changed yet.
        began.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(items.change, [first], linger)
        assert began.wait(30)
        other: Future[None] = pool.submit(items.change, [second], nothing)
        with pytest.raises(TimeoutError):
            other.result(0.3)
        go_on.set()
        one.result(30)
        other.result(30)
    assert keys(items) == left
    assert items.read(lambda reader: list(reader.namespaces(b""))) == [b"a"][: len(left)]


def test_batches_in_opposite_orders_never_wait_for_each_other_in_a_circle(postgres_url: str) -> None:
    with Store(postgres_url).open() as app:
        items = SqlItems(app.catalog.engine, app.default.id)

        def work(worker: int) -> None:
            spaces = [b"a", b"b", b"c", b"d"]
            for turn in range(10):
                chosen = spaces if (worker + turn) % 2 else spaces[::-1]
                items.change([put(f"{worker}", space) for space in chosen], nothing)
                items.change([delete(f"{worker}", space) for space in chosen], nothing)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert keys(items) == []
    # Connections tell what they have counted when they close.
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert found.fetchone() == (0,)


def test_a_range_is_a_namespace_and_what_is_below_it(items: SqlItems) -> None:
    spaces = [b"a", b"a\0b", b"a\0b\0c", b"a\x01", b"ab", "é".encode(), b"b"]
    items.change([put("k", space) for space in spaces], nothing)

    def below(prefix: bytes) -> list[bytes]:
        listed = items.read(lambda reader: list(reader.namespaces(prefix)))
        found = items.read(lambda reader: [item.namespace for page in reader.below(prefix) for item in page])
        assert sorted(found) == listed
        return found

    assert below(b"") == spaces
    assert below(b"a") == [b"a", b"a\0b", b"a\0b\0c"]
    assert below(b"a\0b") == [b"a\0b", b"a\0b\0c"]
    assert below(b"a\0") == []
    assert below(b"c") == []
