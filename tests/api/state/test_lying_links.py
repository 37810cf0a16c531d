"""A tree whose blocks all have the right names, and whose links do not tell the truth: verify says so."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import libipld
import pytest

from analemma.errors import Corrupt
from tests.raw_rows import change, change_all, table
from tests.stores import Store, local

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
VALUE = {"items": [f"item {number}" for number in range(3000)]}
CID_PREFIX = b"\x01\x71\x12\x20"
COUNT, SIZE, BRANCHING = 2, 3, 4
"""Where a link says so."""


def forge(store: Store, place: int, lie: int, child: bytes | None = None) -> None:
    """Make the root tell a lie about its first link, or lead to another block there, and everything above it agree with
    that root."""
    block = "UPDATE block SET id = ?, body = ? WHERE id = ?"
    [version], [record] = table(store, "manifest"), table(store, "journal")
    bodies = {row["id"]: row["body"] for row in table(store, "block")}
    root = libipld.decode_dag_cbor(bodies[version["root"]])
    first = root[3]["items"][""]
    first[place] += lie
    others: list[tuple[str, list[Any]]] = []
    if child is not None:
        other = "UPDATE block SET id = ?, body = ?, size = ?, codec = 0 WHERE id = ?"
        others = [(other, [hashed(child), child, len(child), first[0][4:]])]
        first[0] = CID_PREFIX + hashed(child)
    manifest = libipld.decode_dag_cbor(bodies[version["id"]])
    link = manifest[2]["root"][""]
    link[0] = CID_PREFIX + hashed(encoded(root))
    link[SIZE] += lie if place == SIZE else 0
    journal = libipld.decode_dag_cbor(record["body"])
    new = hashed(encoded(manifest))
    journal[2]["manifest"] = b"\0" + new
    change_all(
        store,
        [
            *others,
            (block, [hashed(encoded(root)), encoded(root), version["root"]]),
            (block, [new, encoded(manifest), version["id"]]),
            ("UPDATE manifest SET id = ?, root = ?", [new, hashed(encoded(root))]),
            ("UPDATE journal SET manifest = ?, body = ?, hash = ?", [new, encoded(journal), hashed(encoded(journal))]),
            ("UPDATE head SET manifest = ?, journal_tip = ?", [new, hashed(encoded(journal))]),
            ("UPDATE branch SET first_manifest = ?", [new]),
        ],
    )


def encoded(content: Any) -> bytes:
    return bytes(libipld.encode_dag_cbor(content))


def hashed(data: bytes) -> bytes:
    return sha256(data).digest()


@pytest.mark.parametrize(("place", "lie"), [(COUNT, 1), (SIZE, 1), (SIZE, -1), (BRANCHING, -1)])
def test_a_link_that_lies_is_found(place: int, lie: int, tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.open() as app:
        app.kernel.save_state_delta(VALUE, **NAME)
    forge(store, place, 0)
    with store.open() as app:
        assert app.kernel.verify(**NAME).problems == []
    forge(store, place, lie)
    with store.open() as app:
        assert "is not what a link to it says" in "".join(app.kernel.verify(**NAME).problems)
        # Numbers that no reader has to believe change nothing of what is read.
        if place != COUNT:
            assert app.kernel.load_latest_state(**NAME) == VALUE


@pytest.mark.parametrize(("child", "problem"), [(b"\xff", "is not DAG-CBOR"), (b"\x84dlist", "is not a tree node")])
def test_a_block_that_nobody_can_read_is_found_by_its_name(child: bytes, problem: str, tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.open() as app:
        app.kernel.save_state_delta(VALUE, **NAME)
    forge(store, COUNT, 0, child)
    with store.open() as app:
        found = "".join(app.kernel.verify(**NAME).problems)
        assert problem in found
        assert f"block {hashed(child).hex()}" in found


def test_a_block_with_another_letter_in_it_is_refused_however_good_a_block_it_is(tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.open() as app:
        saved = app.kernel.save_state_delta({"answer": "yes"}, **NAME)
    [body] = [row["body"] for row in table(store, "block") if b"cyes" in row["body"]]
    assert change(store, "UPDATE block SET body = ? WHERE body = ?", [body.replace(b"cyes", b"cno!"), body]) == 1
    with store.open() as app:
        with pytest.raises(Corrupt, match="other bytes than its name says"):
            app.kernel.load_state(saved.manifest_id)
        assert "other bytes than its name says" in "".join(app.kernel.verify(**NAME).problems)
