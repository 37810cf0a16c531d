"""The collector and the pipeline: what raws and slices need stays, what nothing needs goes."""

from __future__ import annotations

import hashlib
import threading

from analemma import App, Tenant
from tests.api.pipeline.shop import book, open_store, put_author, put_book
from tests.raw_rows import change, select
from tests.stores import Store

COLUMNS = "id, size, codec, body, upload, object_offset, object_length, links"


def text(name: str) -> str:
    """Text that no compression makes small."""
    return "".join(hashlib.sha256(f"{name} {line}".encode()).hexdigest() for line in range(60))


def blocks_of(store: Store, tenant: Tenant) -> set[bytes]:
    return {bytes(row[0]) for row in select(store, "SELECT id FROM block WHERE tenant = ?", [tenant.id])}


def leave_blocks(store: Store, app: App, shop: Tenant, isbn: str, title: str) -> None:
    """What a writer left that died before it committed: blocks of a book, as another tenant has them."""
    other = app.tenant(f"left-{title[:8]}")
    put_book(other, isbn, title=title)
    change(
        store,
        f"INSERT INTO block (tenant, {COLUMNS}) SELECT ?, {COLUMNS} FROM block WHERE tenant = ?"  # noqa: S608
        " ON CONFLICT DO NOTHING",
        [shop.id, other.id],
    )


def test_collecting_loses_no_version_and_no_slice(store: Store) -> None:
    with open_store(store) as (app, shop):
        put_author(shop, "lem", "Lem")
        versions = [put_book(shop, "1", title=text(str(number)), authorId="lem") for number in range(4)]
        shop.delete("BOOK", "1")
        shop.compile("BOOK", "1")
        app.worker(1).drain()
        shop.ingest("BOOK", "2", book("2", title=text("not compiled")))
        needed = blocks_of(store, shop)
        leave_blocks(store, app, shop, "lost", text("lost"))
        assert blocks_of(store, shop) > needed
        for _ in range(3):
            assert app.gc.run(grace_s=0).ok
        assert blocks_of(store, shop) == needed
    with store.open() as app:
        shop = app.tenant("shop")
        for number, version in enumerate(versions):
            core = shop.slices("BOOK", "1", version)["CORE"].data
            assert core is not None and core["title"] == text(str(number))
            shop.compile("BOOK", "1", version, mode="full")
        shop.compile("BOOK", "2")
        assert shop.slices("BOOK", "2")["CORE"].data is not None


def test_collecting_beside_ingest_and_compile_loses_nothing(store: Store) -> None:
    """Content that comes back after the collector has doomed its blocks, and beside it."""
    failures: list[BaseException] = []
    stop = threading.Event()
    with open_store(store) as (app, shop):

        def collect() -> None:
            try:
                while not stop.is_set():
                    app.gc.run(grace_s=0)
            except BaseException as exc:
                failures.append(exc)

        thread = threading.Thread(target=collect)
        thread.start()
        try:
            for turn in range(30):
                for number in range(3):
                    # Blocks that a dead writer left, and that the next version needs.
                    title = text(f"{turn % 3}")
                    leave_blocks(store, app, shop, str(number), title)
                    put_book(shop, str(number), title=title)
        finally:
            stop.set()
            thread.join()
        assert failures == []
    with store.open() as app:
        shop = app.tenant("shop")
        for number in range(3):
            shop.compile("BOOK", str(number), mode="full")
            core = shop.slices("BOOK", str(number))["CORE"].data
            assert core is not None and core["title"] == text(f"{29 % 3}")
