"""The collector and the pipeline: what raws and slices need stays, what nothing needs goes."""

from __future__ import annotations

import threading

from analemma.catalog.bodies import emit_blocks
from tests.api.gc.collections import blocks_of, text
from tests.api.pipeline.shop import book, open_shop, put_author, put_book
from tests.stores import Store


def test_collecting_loses_no_version_and_no_slice(store: Store) -> None:
    with open_shop(store) as shop:
        app = shop._app
        put_author(shop, "lem", "Lem")
        versions = [put_book(shop, "1", title=text(str(number)), authorId="lem") for number in range(4)]
        shop.delete("BOOK", "1")
        shop.compile("BOOK", "1")
        app.worker(1).drain()
        shop.ingest("BOOK", "2", book("2", title=text("not compiled")))
        # What a writer left that died before it committed.
        lost = shop.trees.build({"lost": text("lost")})
        prepared = shop.blocks.prepare(lost.blocks, ("", "", ""), None)  # type: ignore[arg-type]
        with app.catalog.engine.transaction(write=True) as tx:
            emit_blocks(tx, shop.id, prepared.rows)
        before = blocks_of(shop, app)
        for _ in range(3):
            assert app.gc.run(grace_s=0).ok
        assert before - blocks_of(shop, app) == {row.id for row in prepared.rows}
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
    with open_shop(store) as shop:
        app = shop._app

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
                    document = book(str(number), title=text(f"{turn % 3}"))
                    tree = shop.trees.build(document)
                    rows = shop.blocks.prepare(tree.blocks, ("", "", ""), None).rows  # type: ignore[arg-type]
                    with app.catalog.engine.transaction(write=True) as tx:
                        emit_blocks(tx, shop.id, rows)
                    shop.ingest("BOOK", str(number), document)
                    shop.compile("BOOK", str(number))
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
