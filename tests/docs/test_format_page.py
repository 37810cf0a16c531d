"""docs/design/blocks-and-trees.md is right: its bytes are those we write, and a reader written from it works."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import libipld
import pytest

import analemma
from tests.docs.independent_reader import Cid, Damaged, Store, check_pack, parse_cbor
from tests.docs.pages import DOCS, code_blocks, table_rows

PAGE = DOCS / "design" / "blocks-and-trees.md"
NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
EXAMPLE = {"name": "Ann", "raw": b"\x01\x02", "day": dt.date(2024, 2, 29), "scores": [1, 1.5, None, True]}


def on_the_page(name: str) -> str:
    """The hexadecimal digits of a checked block, without its remarks: those follow two spaces."""
    (block,) = [block for block in code_blocks(PAGE) if block.checked == name]
    return "".join(re.split(r"  +", line)[0].replace(" ", "") for line in block.text.splitlines())


def constants() -> dict[str, int]:
    return {name: int(value) for name, value, *_ in table_rows(PAGE, first_heading="constant")}


def test_the_worked_examples_are_what_we_write(tmp_path: Path) -> None:
    with analemma.open(tmp_path / "store") as app:
        example = app.kernel.save_state_delta(EXAMPLE, **NAME)
        linked = app.kernel.save_state_delta({"text": "x" * 2046}, workflow_id="linked", owner_id="ann")
        inline = app.kernel.save_state_delta({"text": "x" * 2045}, workflow_id="inline", owner_id="ann")
    store = Store(tmp_path / "store", "default")
    assert example.root_hash == on_the_page("block id")
    assert store.block(bytes.fromhex(example.root_hash)).hex() == on_the_page("block")
    assert store.block(bytes.fromhex(linked.root_hash)).hex() == on_the_page("linked")
    assert (linked.blocks_stored, inline.blocks_stored) == (3, 2)
    store.close()


def test_the_worked_manifest_has_the_fields_that_ours_have_and_the_hash_that_it_says(tmp_path: Path) -> None:
    with analemma.open(tmp_path / "store") as app:
        made = app.kernel.save_state_delta(EXAMPLE, message="first", **NAME)
    store = Store(tmp_path / "store", "default")
    ours = store.block(bytes.fromhex(made.manifest_id))
    ((record, journal_hash),) = store.sql.execute("SELECT body, hash FROM journal").fetchall()
    store.close()
    page = bytes.fromhex(on_the_page("manifest"))
    assert hashlib.sha256(page).hexdigest() == on_the_page("manifest id")
    name, format_number, fields = parse_cbor(ours)
    # All but what is different each time.
    fields |= {"created_at": 1_700_000_000_000_000, "nonce": b"\0" + bytes(range(16))}
    assert encoded([name, format_number, fields]) == page

    assert encoded(parse_cbor(record)) == record and hashlib.sha256(record).digest() == journal_hash
    name, format_number, fields = parse_cbor(record)
    fields |= {"at": 1_700_000_000_000_000, "manifest": b"\0" + bytes.fromhex(on_the_page("manifest id"))}
    assert hashlib.sha256(encoded([name, format_number, fields])).hexdigest() == on_the_page("journal hash")


def encoded(value: Any) -> bytes:
    """DAG-CBOR by a library that others wrote."""
    data: bytes = libipld.encode_dag_cbor(_with_links(value))
    return data


def _with_links(value: Any) -> Any:
    if isinstance(value, Cid):
        return bytes.fromhex("01711220") + value.block
    if isinstance(value, list):
        return [_with_links(item) for item in value]
    return {key: _with_links(item) for key, item in value.items()} if isinstance(value, dict) else value


def state() -> dict[str, Any]:
    pick = random.Random(3)
    return {
        **EXAMPLE,
        "messages": [{"role": "user", "content": pick.randbytes(400).hex()} for _ in range(400)],
        "by key": {f"key {number}": pick.random() for number in range(3000)},
        "blob": pick.randbytes(700_000),
        "essay": "é" * 150_000,
        "": {"": [-0.0, {"": 1}]},
        "same": ["again"] * 5000,
    }


def plain(value: Any) -> Any:
    """A value as the independent reader gives it back: tagged values as name and payload."""
    if isinstance(value, dt.date):
        return "date", value.isoformat()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three versions, the first of them partly in a pack."""
    folder = tmp_path_factory.mktemp("format") / "store"
    with analemma.open(folder) as app:
        app.kernel.save_state_delta(state(), **NAME)
        for number in range(2):
            app.kernel.save_state_delta({"/messages/-": f"message {number}"}, message=f"step {number}", **NAME)
        assert app.kernel.verify(**NAME).ok
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(written, tmp_path / "store")


def test_a_reader_written_from_the_page_reads_and_checks_a_store(folder: Path) -> None:
    store = Store(folder, "default")
    found = store.check_branch("ann", "report")
    expected = plain(state())
    expected["messages"] += ["message 0", "message 1"]
    assert repr(sorted(found.items())) == repr(sorted(expected.items()))
    assert len(store.seen) > 100
    packs = [path for path in (folder / "objects" / "packs").rglob("*") if path.is_file()]
    assert packs
    for path in packs:
        assert check_pack(path.read_bytes())
    store.close()


def test_nodes_are_cut_within_the_sizes_on_the_page(written: Path) -> None:
    store = Store(written, "default")
    store.check_branch("ann", "report")
    limits = constants()
    leaves: dict[str, list[int]] = {}
    for block in store.seen:
        data = store.block(block)
        parsed = parse_cbor(data)
        if parsed[0] in ("list", "map", "text", "bytes"):
            leaves.setdefault(parsed[0] if parsed[1] == 0 else "index", []).append(len(data))
    store.close()
    head = 16
    """What a node has beside its entries, at most."""
    for kind in ("list", "map", "index"):
        assert max(leaves[kind]) <= limits["MAXIMUM_BYTES"] + head, kind
        # The last of a level may be short, and there are few levels.
        assert sum(size < limits["MINIMUM_BYTES"] for size in leaves[kind]) <= 8, kind
    for kind in ("text", "bytes"):
        assert max(leaves[kind]) <= limits["TEXT_MAXIMUM_BYTES"] + head, kind
        assert sum(size < limits["TEXT_MINIMUM_BYTES"] for size in leaves[kind]) <= 1, kind


def flip(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


DAMAGE: dict[str, str] = {
    "a block's body": "UPDATE block SET body = flip(body) WHERE body IS NOT NULL",
    "a block's size": "UPDATE block SET size = size + 1",
    "a missing block": "DELETE FROM block WHERE id = (SELECT root FROM manifest WHERE version = 3)",
    "a block in another's place": "UPDATE block SET (body, codec, size) = (SELECT body, codec, size FROM block AS other"
    " WHERE other.id = (SELECT id FROM manifest WHERE version = 2)) WHERE id = (SELECT manifest FROM head)",
    "a pack's range": "UPDATE block SET object_offset = object_offset + 1 WHERE upload IS NOT NULL",
    "a journal record": "UPDATE journal SET body = flip(body) WHERE seq = 2",
    "a journal record dropped": "DELETE FROM journal WHERE seq = 2",
    "the last journal record dropped": "DELETE FROM journal WHERE seq = 3",
    "a journal column": "UPDATE journal SET created_at = created_at + 1 WHERE seq = 1",
    "a manifest column": "UPDATE manifest SET message = 'another' WHERE version = 3",
    "a head's version": "UPDATE head SET version = 2",
    "a head's journal tip": "UPDATE head SET journal_tip = flip(journal_tip)",
    "a head at an older manifest": "UPDATE head SET manifest = (SELECT id FROM manifest WHERE version = 2)",
    "a head at an older version": "UPDATE head SET (manifest, version) ="
    " (SELECT id, version FROM manifest WHERE version = 2)",
}
OLDER: dict[str, str] = {
    "an older version's block": "DELETE FROM block WHERE id = (SELECT root FROM manifest WHERE version = 1)",
    "an older version": "DELETE FROM manifest WHERE version = 1",
    "an older manifest column": "UPDATE manifest SET message = 'another' WHERE version = 1",
    "what a row says of links": "UPDATE block SET links = NULL",
}


def ours(folder: Path) -> bool:
    with analemma.open(folder) as app:
        return app.kernel.verify(**NAME).ok


def theirs(folder: Path) -> bool:
    store = Store(folder, "default")
    try:
        store.check_branch("ann", "report")
    except Exception:  # A reader this short finds some damage only by stumbling over it.
        return False
    finally:
        store.close()
    return True


def do(damage: str, folder: Path) -> None:
    connection = sqlite3.connect(folder / "catalog.db")
    connection.create_function("flip", 1, flip)
    connection.execute(damage)
    connection.commit()
    connection.close()


def test_a_whole_store_is_in_order(folder: Path) -> None:
    assert ours(folder) and theirs(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_by_us_and_by_a_reader_written_from_the_page(folder: Path, damage: str) -> None:
    do(DAMAGE[damage], folder)
    assert not ours(folder)
    assert not theirs(folder)


@pytest.mark.parametrize("damage", OLDER)
def test_damage_to_older_versions_is_found(folder: Path, damage: str) -> None:
    do(OLDER[damage], folder)
    assert not ours(folder)


def test_a_damaged_pack_is_found(folder: Path) -> None:
    (path,) = [path for path in (folder / "objects" / "packs").rglob("*") if path.is_file()]
    whole = path.read_bytes()
    path.write_bytes(whole[:5000] + flip(whole[:5001])[5000:] + whole[5001:])
    assert not ours(folder)
    assert not theirs(folder)
    with pytest.raises(Damaged):
        check_pack(path.read_bytes())
