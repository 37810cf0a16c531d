"""The whole way, with real worker processes: an author is renamed, and every book's slice, view and documents follow,
whatever happens to the workers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analemma import FanoutState
from tests.crash.bookshop_chain import AUTHOR, Chain, wait_until_quiet, workers
from tests.depth import count as so_many
from tests.depth import some
from tests.stores import Store

SIZES = [pytest.param(so_many(20, deep=300), id="some"), pytest.param(5000, id="5000", marks=pytest.mark.soak)]
BREAKERS = [
    pytest.param(so_many(60, deep=250), so_many(20, deep=100), id="some"),
    pytest.param(25_000, 10_000, id="25000-10000", marks=pytest.mark.soak),
]


def timeout_of(count: int) -> float:
    return 120 + count * 0.06


@pytest.fixture
def chain(store: Store, tmp_path: Path) -> Chain:
    return Chain(store, tmp_path)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", some([0, 2, 4], test=[2]))
@pytest.mark.parametrize("count", SIZES)
def test_every_book_follows_a_renamed_author(chain: Chain, count: int, kills: int) -> None:
    chain.load()
    chain.rename("Lem")
    chain.ingest_books(count)
    chance = random.Random(count + kills)
    with workers(chain.store) as running:
        wait_until_quiet(chain.store, timeout_of(count))
        chain.check(count, "Lem")
        # Books that were compiled before their author have been enriched since.
        enriched = chain.rows_of("ENRICHED")
        assert chain.rows_of("CORE", "PRICE") == 2 * count and count <= enriched <= 2 * count
        chain.rename("Stanisław Lem")
        wait_until_quiet(
            chain.store, timeout_of(count), between=[lambda: running.kill_one(chance) for _ in range(kills)]
        )
        assert running.killed == kills
    # Only what joins the author was written, once; the others have not a row more.
    assert (chain.rows_of("CORE", "PRICE"), chain.rows_of("ENRICHED")) == (2 * count, enriched + count)
    chain.check(count, "Stanisław Lem")


@pytest.mark.deep("tests/two_actors has the moments that this looks for")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", SIZES)
def test_of_two_renames_in_a_row_the_second_is_everywhere(chain: Chain, count: int) -> None:
    chain.load()
    chain.rename("Lem")
    chain.ingest_books(count)
    with workers(chain.store) as running:
        wait_until_quiet(chain.store, timeout_of(count))
        chain.rename("First")
        chain.rename("Second")
        wait_until_quiet(chain.store, timeout_of(count), between=[lambda: running.kill_one(random.Random(1))])
    assert chain.rows_of("CORE", "PRICE") == 2 * count
    chain.check(count, "Second")


@pytest.mark.deep("what a rename does, without a rename")
@pytest.mark.timeout(600)
def test_books_that_were_there_before_their_author_are_enriched_when_the_author_comes(chain: Chain) -> None:
    count = 40
    chain.load()
    chain.ingest_books(count)
    with workers(chain.store):
        wait_until_quiet(chain.store, timeout_of(count))
        chain.check(count, None)
        chain.rename("Late")
        wait_until_quiet(chain.store, timeout_of(count))
    assert chain.rows_of("CORE", "PRICE") == 2 * count
    chain.check(count, "Late")


@pytest.mark.deep("tests/api/pipeline has what a breaker does")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("count", "breaker"), BREAKERS)
def test_more_dependants_than_the_breaker_allows_arrive_all_the_same(chain: Chain, count: int, breaker: int) -> None:
    chain.load(breaker=breaker)
    chain.rename("Lem")
    chain.ingest_books(count)
    with workers(chain.store) as running:
        wait_until_quiet(chain.store, timeout_of(count))
        chain.rename("Renamed")
        wait_until_quiet(chain.store, timeout_of(count), between=[lambda: running.kill_one(random.Random(2))])
    with chain.store.open() as app:
        (alert,) = app.fanouts.alerts("shop").fanouts
        assert (alert.key.id, alert.status) == (AUTHOR, FanoutState.DONE)
        assert alert.alert is not None and str(breaker) in alert.alert
    assert chain.rows_of("CORE", "PRICE") == 2 * count
    chain.check(count, "Renamed")
