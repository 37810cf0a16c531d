"""Node numbers: one holder at a time, and none is lost with its holder."""

from __future__ import annotations

import os

import pytest

from analemma.catalog.nodes import NodeLeases
from analemma.clock import SystemClock
from analemma.errors import Limit
from analemma.pipeline.versions import LEASE_S, Versions
from analemma.slicing.tsid import VersionGenerator, decompose, parse_version
from tests.api.gc.collections import later
from tests.api.pipeline.shop import book, open_shop
from tests.api.pipeline.tables import query
from tests.stores import Store


class SteppingClock(SystemClock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


def versions(leases: NodeLeases, holder: str, clock: SystemClock | None = None, node: int | None = None) -> Versions:
    return Versions(leases, holder=holder, clock=clock or SystemClock(), node=node)


def test_each_maker_of_versions_has_a_number_of_its_own(store: Store) -> None:
    with store.open() as app:
        leases = NodeLeases(app.catalog.engine)
        makers = [versions(leases, str(number)) for number in range(5)]
        assert [decompose(each.generate())[1] for each in makers] == [0, 1, 2, 3, 4]
        makers[1].close()
        # A number that was given back is used again when no fresh one is left.
        query(store, "INSERT INTO node_lease SELECT node + 5, 'x', lease_until, 0 FROM node_lease WHERE node < 1")
        assert decompose(versions(leases, "new").generate())[1] == 6


def test_a_number_is_free_again_after_its_lease(store: Store) -> None:
    with store.open() as app:
        engine = app.catalog.engine
        leases = NodeLeases(engine)
        held = leases.take("crashed", 1000, newest=7 << 22)
        for number in range(1, 1024):
            leases.take("others", 1e6, node=number)
        with pytest.raises(Limit):
            leases.take("next", 10)
        with pytest.raises(Limit):
            leases.take("next", 10, node=held.node)
        after = NodeLeases(engine, clock=later(1001)).take("next", 10)
        assert (after.node, after.newest) == (held.node, 7 << 22)
        assert not leases.renew(held, "crashed", 10, newest=0)


def test_whoever_takes_a_number_goes_on_behind_its_newest_version(store: Store) -> None:
    with store.open() as app:
        leases = NodeLeases(app.catalog.engine)
        ahead = versions(leases, "first").generate() + (3_000_000 << 22)
        query(store, "UPDATE node_lease SET lease_until = 0, newest = ?", int(ahead))
        query(store, "INSERT INTO node_lease SELECT node + 1, 'x', 9000000000000000, 0 FROM node_lease")
        for number in range(2, 1024):
            leases.take("others", 1e6, node=number)
        assert versions(leases, "second").generate() > ahead


def test_a_lease_is_renewed_or_given_up_for_another(store: Store) -> None:
    clock = SteppingClock()
    with store.open() as app:
        leases = NodeLeases(app.catalog.engine)
        maker = versions(leases, "me", clock)
        first = maker.generate()
        ((until,),) = query(store, "SELECT lease_until FROM node_lease")
        clock.ahead_s = LEASE_S * 0.6
        assert decompose(maker.generate())[1] == 0
        ((renewed, newest),) = query(store, "SELECT lease_until, newest FROM node_lease")
        assert renewed > until and newest > first
        query(store, "UPDATE node_lease SET holder = 'another'")
        clock.ahead_s = LEASE_S * 1.2
        assert decompose(maker.generate())[1] == 1
        clock.ahead_s = LEASE_S * 10
        assert decompose(maker.generate())[1] in (1, 2)


def test_a_number_may_be_configured(store: Store) -> None:
    with store.open(version_node=77) as app:
        assert decompose(app.versions.generate())[1] == 77
        assert query(store, "SELECT count(*) FROM node_lease") == [(0,)]


def test_a_forked_process_makes_versions_of_its_own(store: Store) -> None:
    if store.url.startswith("postgresql"):
        pytest.skip("nothing of it is the database's")
    with store.open() as app:
        app.versions.generate()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, str(decompose(app.versions.generate())[1]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert int(os.read(reading, 10)) != decompose(app.versions.generate())[1]
        os.close(reading)
        os.close(writing)


def test_closing_a_store_gives_its_number_back(store: Store) -> None:
    with open_shop(store) as shop:
        made = parse_version(shop.ingest("BOOK", "1", book("1")).version)
        ((node, until, _),) = query(store, "SELECT node, lease_until, newest FROM node_lease")
        assert until > 0 and decompose(made)[1] == node
    ((_, until, newest),) = query(store, "SELECT node, lease_until, newest FROM node_lease")
    assert until == 0 and newest > made


def test_a_version_that_is_only_told_of_takes_no_number(store: Store) -> None:
    with store.open() as app:
        leases = NodeLeases(app.catalog.engine)
        for number in range(1024):
            leases.take("others", 1e6, node=number)
        maker = versions(leases, "new")
        seen = VersionGenerator(node=3).generate()
        maker.observe(seen)
        with pytest.raises(Limit):
            maker.generate()


def test_versions_go_on_upwards_with_another_lease(store: Store) -> None:
    clock = SteppingClock()
    with store.open() as app:
        maker = versions(NodeLeases(app.catalog.engine), "maker", clock)
        ahead = VersionGenerator(node=1000).generate() + (60_000 << 22)
        maker.observe(ahead)
        first = maker.generate()
        clock.ahead_s += LEASE_S
        assert maker.generate() > first > ahead
