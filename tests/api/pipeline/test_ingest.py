"""Taking documents in: which of them are versions, and which are not."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma.errors import Conflict, Invalid, Limit, NotFound
from tests.api.pipeline.shop import book, open_shop, open_store
from tests.api.pipeline.tables import query, row_counts, rows_added
from tests.api.pipeline.version_texts import LATEST, later, number
from tests.raw_rows import connect
from tests.stores import Store

ROOT = Path(__file__).parents[3]
SAME = [
    '{"title": "Ångström", "price": 1200, "isbn": "1", "tags": ["a", "b"]}',
    '{"isbn":"1","price":1200.0,"tags":["a","b"],"title":"\\u00c5ngstr\\u00f6m"}',
    ' {\n"tags":[ "a" ,"b" ], "price": 1.2e3, "title": "Ångström", "isbn": "1"}\n',
]


def test_the_form_of_a_document_does_not_matter(store: Store) -> None:
    with open_shop(store) as shop:
        first = shop.ingest("BOOK", "1", {"isbn": "1", "title": "Ångström", "price": 1200, "tags": ["a", "b"]})
        assert first.created
        again = [shop.ingest("BOOK", "1", json.loads(other)) for other in SAME]
        assert {(each.created, each.version, each.hash) for each in again} == {(False, first.version, first.hash)}


PROGRAM = """
import json, sys, analemma
with analemma.open("sqlite:///:memory:") as app:
    app.contracts.load("examples/bookshop/contracts.yaml")
    for place, document in enumerate(json.loads(sys.argv[1])):
        print(app.default.ingest("BOOK", str(place), document).hash)
"""


def test_hashes_are_the_same_in_every_process(store: Store) -> None:
    values: list[Any] = ["Å", {"n": 1, "m": [1, 2]}, 2**63, 1e20, -0.0, 1.5, "\U0001f600"]
    documents = [{"isbn": "1", "title": "t", "price": 1, "audit": {"extra": value}} for value in values]
    with open_shop(store) as shop:
        made = [shop.ingest("BOOK", str(place), document).hash for place, document in enumerate(documents)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(documents)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == made


def test_a_document_that_comes_back_is_another_version(store: Store) -> None:
    with open_shop(store) as shop:
        one, two = book("1"), book("1", price=5)
        made = [shop.ingest("BOOK", "1", document) for document in (one, two, one, one)]
        assert [each.created for each in made] == [True, True, True, False]
        assert made[0].version < made[1].version < made[2].version == made[3].version
        assert made[0].hash == made[2].hash != made[1].hash


def test_a_version_keeps_its_content(store: Store) -> None:
    with open_shop(store) as shop:
        version = shop.ingest("BOOK", "1", book("1")).version
        again = shop.ingest("BOOK", "1", book("1"), version=version)
        assert (again.created, again.version) == (False, version)
        with pytest.raises(Conflict):
            shop.ingest("BOOK", "1", book("1", price=5), version=version)
        # Also when it is no longer the newest.
        shop.ingest("BOOK", "1", book("1", price=7))
        with pytest.raises(Conflict):
            shop.ingest("BOOK", "1", book("1", price=5), version=version)
        assert not shop.ingest("BOOK", "1", book("1"), version=version).created


def test_a_version_below_the_newest_is_taken_and_does_not_become_the_newest(store: Store) -> None:
    with open_shop(store) as shop:
        newest = shop.ingest("BOOK", "1", book("1"))
        late = shop.ingest("BOOK", "1", book("1", price=5), version="0000000000001")
        assert (late.created, late.version) == (True, "0000000000001")
        # What is compared is the newest.
        assert shop.ingest("BOOK", "1", book("1")).version == newest.version
        # Told of an older time, even the newest's content is news.
        assert shop.ingest("BOOK", "1", book("1"), version="0000000000002").created


def test_a_version_ahead_of_the_clock_is_followed_in_its_entity_only(store: Store) -> None:
    ahead = "6000000000000"
    with open_shop(store) as shop:
        assert shop.ingest("BOOK", "1", book("1"), version=ahead).version == ahead
        after = shop.ingest("BOOK", "1", book("1", price=5))
        assert number(after.version) == number(ahead) + 1
        assert shop.ingest("BOOK", "2", book("2")).version < ahead


def test_a_version_a_little_ahead_is_followed_everywhere(store: Store) -> None:
    with open_shop(store) as shop:
        ahead = later(shop.ingest("BOOK", "1", book("1")).version, 60_000)
        shop.ingest("BOOK", "1", book("1", price=5), version=ahead)
        assert shop.ingest("BOOK", "2", book("2")).version > ahead


def test_what_is_no_version_is_refused(store: Store) -> None:
    wrong: list[Any] = ["", "1", "000000000000I", "G000000000000", "8000000000000", "0HZX", 12]
    with open_shop(store) as shop:
        for version in wrong:
            with pytest.raises(Invalid):
                pytest.fail(f"{version!r} is {shop.ingest('BOOK', '1', book('1'), version=version)}")


def test_nothing_comes_after_the_greatest_version(store: Store) -> None:
    with open_shop(store) as shop:
        shop.ingest("BOOK", "1", book("1"), version=LATEST)
        with pytest.raises(Limit):
            shop.ingest("BOOK", "1", book("1", price=5))


def test_what_a_schema_refuses_is_not_stored(store: Store) -> None:
    with open_shop(store) as shop:
        with pytest.raises(Invalid) as refused:
            shop.ingest("BOOK", "1", {"isbn": 5})
        assert refused.value.pointer == "/isbn"
        with pytest.raises(NotFound):
            shop.ingest("NOTHING", "1", {})
        with pytest.raises(Invalid):
            shop.ingest("BOOK", "a#b", book("1"))
        with pytest.raises(Invalid):
            shop.ingest("BOOK", "1", book("1", extra=2**70 + 1))
        with pytest.raises(NotFound):
            shop.delete("BOOK", "1")


def test_a_schema_may_be_named(store: Store) -> None:
    with open_store(store) as (app, shop):
        schema = app.contracts.current.schema("BOOK")
        first = shop.ingest("BOOK", "1", book("1"))
        for named in (schema.id, str(schema.ref), schema.ref):
            assert shop.ingest("BOOK", "1", book("1"), schema=named).hash == first.hash
        with pytest.raises(NotFound):
            shop.ingest("BOOK", "1", book("1"), schema=f"{schema.id}@9.9.9")
        author = app.contracts.current.schema("AUTHOR")
        with pytest.raises(Invalid):
            shop.ingest("BOOK", "1", book("1"), schema=author.id)
        for part in ("entity.book.v1@", "@", "@1.0.0"):
            with pytest.raises(
                (Invalid, NotFound), match=r"names no version behind the @|there is no ENTITY_SCHEMA @1"
            ):
                shop.ingest("BOOK", "1", book("1"), schema=part)


def test_a_delete_is_a_version(store: Store) -> None:
    with open_shop(store) as shop:
        with pytest.raises(NotFound):
            shop.delete("BOOK", "1")
        first = shop.ingest("BOOK", "1", book("1"))
        gone = shop.delete("BOOK", "1")
        assert gone.created and gone.version > first.version
        again = shop.delete("BOOK", "1")
        assert (again.created, again.version) == (False, gone.version)
        back = shop.ingest("BOOK", "1", book("1"))
        assert back.created and back.hash == first.hash


def test_an_entity_that_is_only_referred_to_does_not_exist(store: Store) -> None:
    with open_shop(store) as shop:
        shop.ingest("BOOK", "1", book("1", authorId="lem"))
        shop.compile("BOOK", "1")
        for verb in (shop.delete, shop.compile, shop.slices):
            with pytest.raises(NotFound):
                verb("AUTHOR", "lem")
        assert shop.ingest("AUTHOR", "lem", {"name": "Lem"}).created


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_many_documents_are_reported_one_by_one(store: Store, batch: int) -> None:
    with open_shop(store) as shop:
        shop.ingest("BOOK", "2", book("2"))
        items: list[tuple[str, str, Any]] = [
            ("BOOK", "3", book("3")),
            ("BOOK", "1", book("1")),
            ("BOOK", "2", book("2")),
            ("BOOK", "bad", {"isbn": 1}),
            ("BOOK", "1", book("1", price=2)),
            ("BOOK", "1", book("1", price=2)),
            ("NOTHING", "1", {}),
            ("BOOK", "", {}),
        ]
        found = shop.ingest_many(iter(items), batch=batch)
        assert [each.status for each in found] == [
            "created",
            "created",
            "unchanged",
            "refused",
            "created",
            "unchanged",
            "refused",
            "refused",
        ]
        assert [(each.entity_type, each.entity_id) for each in found] == [(kind, name) for kind, name, _ in items]
        assert "/isbn" in (found[3].reason or "") and found[0].reason is None
        shop.compile("BOOK", "1")
        assert shop.slices("BOOK", "1")["PRICE"].data == {"amount": {"minor": 2}}
        with pytest.raises(Invalid):
            shop.ingest_many([], batch=0)


def test_a_large_document_goes_to_an_object(store: Store) -> None:
    with store.open(pack_threshold_bytes=1000) as app:
        app.contracts.load(ROOT / "examples/bookshop/contracts.yaml")
        shop = app.tenant("shop")
        text = "".join(chr(0x4E00 + number % 20000) for number in range(300_000))
        shop.ingest("BOOK", "1", book("1", title=text))
        assert app.stats().uploads == 1
        # Sent again, it is no-op and uploads nothing that stays.
        assert not shop.ingest("BOOK", "1", book("1", title=text)).created
        shop.compile("BOOK", "1")
        assert shop.slices("BOOK", "1")["CORE"].data == {"isbn": "1", "title": text}


def test_a_version_sent_again_after_its_answer_was_lost_is_the_same(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile somebody else had added another."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with open_shop(store) as shop, store.open() as other:
        shop.ingest("BOOK", "2", book("2"))
        before = row_counts(store)
        here = threading.get_ident()
        lost: list[Any] = []
        real = psycopg.Connection.execute

        def execute(self: Any, query: Any, *arguments: Any, **more: Any) -> Any:
            answer = real(self, query, *arguments, **more)
            if threading.get_ident() == here and not lost and b"add_raws" in bytes(query):
                lost.append(query)
                other.tenant("shop").ingest("BOOK", "1", book("1", price=2))
                with connect(store.url) as administrator:
                    administrator.execute("SELECT pg_terminate_backend(%s)", (self.info.backend_pid,))
                real(self, "SELECT pg_sleep(60)")
            return answer

        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        made = shop.ingest("BOOK", "1", book("1"))
        assert lost and made.created
        assert rows_added(store, before)["raw"] == 2 and rows_added(store, before)["outbox"] == 2


def test_a_batch_with_an_upload_is_all_there(store: Store) -> None:
    """Blocks that lie in an object appear with the transaction that finishes its upload."""
    with open_store(store) as (app, shop):
        for name in ("A", "B"):
            newest = shop.ingest("AUTHOR", "a", {"name": name}).version
        shop.ingest("AUTHOR", "b", {"name": "old"}, version=later(newest, 7_200_000))
        large = {"name": random.Random(1).randbytes(400_000).hex()}
        done = shop.ingest_many([("AUTHOR", "a", {"name": "A"}), ("AUTHOR", "b", large)])
        assert [each.status for each in done] == ["created", "created"]
        assert query(store, "SELECT state FROM upload") == [("ready",)]
        app.worker(1).drain()
        assert shop.slices("AUTHOR", "b")["PROFILE"].data == large
