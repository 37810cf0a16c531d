"""Node numbers: one holder at a time, and none is lost with its holder."""

from __future__ import annotations

import os

import pytest

from analemma.errors import Limit
from tests.api.pipeline.shop import book, open_shop, open_store
from tests.api.pipeline.tables import query
from tests.api.pipeline.version_texts import later, node, number
from tests.raw_rows import is_sqlite
from tests.stores import Store

FOR_EVER = 9_000_000_000_000_000
NUMBERS = """
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1023)
INSERT INTO node_lease (node, holder, lease_until, newest) SELECT n, 'others', ?, 0 FROM numbers
"""


def take_all(store: Store) -> None:
    query(store, NUMBERS, FOR_EVER)


def test_each_opener_makes_versions_of_its_own(store: Store) -> None:
    with open_shop(store) as shop, store.open() as second, store.open() as third:
        shops = [shop, second.tenant("shop"), third.tenant("shop")]
        nodes = [node(each.ingest("BOOK", str(at), book(str(at))).version) for at, each in enumerate(shops)]
        assert nodes == [0, 1, 2]


def test_a_number_is_free_again_after_its_lease(store: Store) -> None:
    take_all(store)
    with open_shop(store) as shop:
        with pytest.raises(Limit):
            shop.ingest("BOOK", "1", book("1"))
        query(store, "UPDATE node_lease SET lease_until = 0 WHERE node = 7")
        assert node(shop.ingest("BOOK", "1", book("1")).version) == 7


def test_whoever_takes_a_number_goes_on_behind_its_newest_version(store: Store) -> None:
    with open_shop(store) as shop:
        ahead = later(shop.ingest("BOOK", "1", book("1")).version, 3_000_000)
    query(store, "DELETE FROM node_lease")
    take_all(store)
    query(store, "UPDATE node_lease SET lease_until = 0, newest = ? WHERE node = 7", number(ahead))
    with open_shop(store) as shop:
        assert shop.ingest("BOOK", "2", book("2")).version > ahead


def test_a_number_may_be_configured(store: Store) -> None:
    with open_store(store, version_node=77) as (_, shop):
        assert node(shop.ingest("BOOK", "1", book("1")).version) == 77
        assert query(store, "SELECT count(*) FROM node_lease") == [(0,)]


def test_a_forked_process_makes_versions_of_its_own(store: Store) -> None:
    if not is_sqlite(store):
        pytest.skip("nothing of it is the database's")
    with open_shop(store) as shop:
        shop.ingest("BOOK", "1", book("1"))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with open_shop(store) as own:
                    os.write(writing, own.ingest("BOOK", "2", book("2")).version.encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert node(os.read(reading, 13).decode()) != node(shop.ingest("BOOK", "3", book("3")).version)
        os.close(reading)
        os.close(writing)


def test_closing_a_store_gives_its_number_back(store: Store) -> None:
    with open_shop(store) as shop:
        made = shop.ingest("BOOK", "1", book("1")).version
        ((held, until),) = query(store, "SELECT node, lease_until FROM node_lease")
        assert until > 0 and node(made) == held
    ((until, newest),) = query(store, "SELECT lease_until, newest FROM node_lease")
    assert until == 0 and newest > number(made)


def test_a_version_that_is_only_told_of_takes_no_number(store: Store) -> None:
    take_all(store)
    with open_shop(store) as shop:
        assert shop.ingest("BOOK", "1", book("1"), version="0000000000001").created
        with pytest.raises(Limit):
            shop.ingest("BOOK", "1", book("1", price=2))
