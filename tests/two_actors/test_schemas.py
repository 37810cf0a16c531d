"""Two stores in two schemas of one PostgreSQL database share nothing; a URL that names none means the same store."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from analemma.errors import Denied, Invalid
from analemma.testing import failpoints
from tests.actors import Actor
from tests.ports.entry_points.catalog import identity_of, wakeups_of
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, connect, select
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
STORE = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'store' ORDER BY table_schema"


def one_of(url: str, schema: str) -> Store:
    return Store(f"{url}&schema={schema}")


def checkpoint(url: str, value: str) -> None:
    with Store(url).open() as app:
        app.kernel.wait_for(app.kernel.checkpoint_async({"n": value}, **AT))


def test_one_store_does_not_wait_for_the_other(postgres_url: str) -> None:
    """One is stopped where it has the lock of a branch; a branch of that name is another's in the other schema."""
    one, two = one_of(postgres_url, "one"), one_of(postgres_url, "two")
    for store in (one, two):
        with store.open() as app:
            app.kernel.save_state_delta({"n": store.url}, **AT)
    failpoints.wait_at_steps(one.url)
    with connect(postgres_url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(hashtextextended('enter_pending.2', 0))")
        with beside(lambda: checkpoint(one.url, "first")) as stopped:
            wait_for_waiting(postgres_url, stopped)
            assert stopped.is_alive()
            with Actor(checkpoint, two.url, "second") as other:
                assert other.wait() == 0, other.errors
            # So is making another store.
            with Actor(checkpoint, one_of(postgres_url, "three").url, "third") as other:
                assert other.wait() == 0, other.errors
            assert stopped.is_alive()
            holder.execute("SELECT pg_advisory_unlock_all()")
    for store, value in ((one, "first"), (two, "second")):
        with store.open() as app:
            assert app.kernel.load_latest_state(**AT) == {"n": value}
            assert len(list(app.kernel.history(**AT))) == 2
            assert app.kernel.verify(**AT).ok


def test_one_stores_workers_are_not_woken_by_the_other(postgres_url: str) -> None:
    with one_of(postgres_url, "one").open() as one, one_of(postgres_url, "two").open() as two:
        heard, unheard = wakeups_of(one).listen(), wakeups_of(two).listen()
        try:
            # Once for beginning to listen.
            assert heard.wait(30) and unheard.wait(30)
            with Actor(checkpoint, one_of(postgres_url, "one").url, "x") as other:
                assert other.wait() == 0, other.errors
            with one_of(postgres_url, "one").open() as another:
                wakeups_of(another).signal()
                assert heard.wait(30)
                assert not unheard.wait(0.3)
        finally:
            heard.close()
            unheard.close()


def test_a_url_without_a_schema_means_the_store_that_was_there(postgres_url: str) -> None:
    with Store(postgres_url).open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)
    with one_of(postgres_url, "other").open() as app:
        app.kernel.save_state_delta({"n": 2}, **AT)
    with connect(postgres_url) as connection:
        assert connection.execute(STORE).fetchall() == [("analemma",), ("other",)]
    for url in (postgres_url, one_of(postgres_url, "analemma").url):
        with Store(url).open() as app:
            assert app.kernel.load_latest_state(**AT) == {"n": 1}


def test_a_store_from_before_there_were_schemas_stays_where_it_is(postgres_url: str) -> None:
    with one_of(postgres_url, "public").open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)
    with Store(postgres_url).open() as app:
        assert app.kernel.load_latest_state(**AT) == {"n": 1}
        # As the marker of its objects always had it.
        assert str(identity_of(app)).count(".") == 0
    with connect(postgres_url) as connection:
        assert connection.execute(STORE).fetchall() == [("public",)]
    one_of(postgres_url, "analemma").open().close()
    with pytest.raises(Invalid, match="in the schema analemma, and one in public") as caught:
        Store(postgres_url).open()
    assert "schema=" in str(caught.value.hint)


def test_no_store_is_made_beside_one_whose_schema_must_be_named(postgres_url: str) -> None:
    one_of(postgres_url, "other").open().close()
    with pytest.raises(Invalid, match="in the schema other"):
        Store(postgres_url).open()


def test_what_a_session_looks_at_first_does_not_matter(postgres_url: str) -> None:
    with Store(postgres_url).open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)
    change(Store(postgres_url), "CREATE SCHEMA elsewhere")
    url = f"{postgres_url}&options={quote('-c search_path=elsewhere')}"
    with Store(url).open() as app:
        assert app.kernel.save_state_delta({"n": 2}, **AT).version == 2


def test_a_copy_in_another_schema_does_not_own_the_objects(postgres_url: str, tmp_path: Path) -> None:
    objects = str(tmp_path / "objects")
    original, copy = Store(postgres_url, objects), Store(one_of(postgres_url, "copy").url, objects)
    with original.open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)
        app.gc.run(grace_s=0)
        (claim,) = select(original, "SELECT * FROM store")
    Store(copy.url).open().close()
    change(copy, "DELETE FROM store")
    change(copy, f"INSERT INTO store VALUES ({', '.join('?' * len(claim))})", claim)  # noqa: S608
    with copy.open() as app, pytest.raises(Denied, match="belong to another catalog"):
        app.gc.run(grace_s=0)
    # One that is renamed is no copy.
    change(copy, "DROP SCHEMA copy CASCADE")
    change(original, "ALTER SCHEMA analemma RENAME TO renamed")
    with Store(one_of(postgres_url, "renamed").url, objects).open() as app:
        assert app.gc.run(grace_s=0).ok


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "1a",
        "a b",
        'a"b',
        "a'b",
        "a;DROP TABLE store",
        "a.b",
        "pg_temp",
        "information_schema",
        "a" * 48,
        "é",
        "\0",
    ],
)
def test_what_is_no_plain_name_is_refused(name: str) -> None:
    """Before anybody is asked: there is no such server."""
    with pytest.raises(Invalid, match="not the name of a schema") as caught:
        Store(f"postgresql://nobody@localhost:1/none?connect_timeout=2&schema={quote(name)}").open()
    assert "\n" not in str(caught.value)


def test_a_url_names_one_schema() -> None:
    with pytest.raises(Invalid, match="two schemas"):
        Store("postgresql://nobody@localhost:1/none?schema=a&schema=b").open()


def test_reserved_words_are_names_too(postgres_url: str) -> None:
    with one_of(postgres_url, "select").open() as app:
        assert app.kernel.save_state_delta({"n": 1}, **AT).version == 1
        app.gc.run()
