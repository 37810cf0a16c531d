"""docs/design/blocks-and-trees.md is right: its bytes are those we write, and a reader written from it works."""

from __future__ import annotations

import datetime as dt
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import BranchKey, Operation, Proposal
from analemma.canon import chunking
from analemma.canon.standard_types import standard_registry
from analemma.canon.tree import Trees, no_blocks
from analemma.state.journal import next_record
from analemma.state.manifests import Manifest, encode_manifest
from tests.docs.independent_reader import Damaged, Store, check_pack
from tests.docs.pages import DOCS, code_blocks, table_rows

PAGE = DOCS / "design" / "blocks-and-trees.md"
KEY = BranchKey("ann", "report")
EXAMPLE = {"name": "Ann", "raw": b"\x01\x02", "day": dt.date(2024, 2, 29), "scores": [1, 1.5, None, True]}


def on_the_page(name: str) -> str:
    """The hexadecimal digits of a checked block, without its remarks: those follow two spaces."""
    (block,) = [block for block in code_blocks(PAGE) if block.checked == name]
    return "".join(re.split(r"  +", line)[0].replace(" ", "") for line in block.text.splitlines())


def test_the_worked_example_is_what_we_write() -> None:
    trees = Trees(no_blocks, standard_registry())
    example = trees.build(EXAMPLE)
    (block,) = example.blocks
    assert (block.data.hex(), block.id.hex()) == (on_the_page("block"), on_the_page("block id"))
    linked = trees.build({"text": "x" * 2046})
    assert [block.data.hex() for block in linked.blocks if block.id == linked.root.id] == [on_the_page("linked")]
    manifest = Manifest(KEY, 1, None, example.root, 1_700_000_000_000_000, bytes(range(16)), message="first")
    made = encode_manifest(manifest)
    assert (made.data.hex(), made.id.hex()) == (on_the_page("manifest"), on_the_page("manifest id"))
    record = next_record(KEY, None, kind="committed", manifest=made.id, at_us=manifest.created_at_us, version=1)
    assert record.hash.hex() == on_the_page("journal hash")


def test_the_constants_are_those_of_the_code() -> None:
    for name, value, *_ in table_rows(PAGE, first_heading="constant"):
        assert getattr(chunking, name) == int(value), name
    public = {name for name in vars(chunking) if name.isupper() and not name.startswith("_")}
    assert public == {row[0] for row in table_rows(PAGE, first_heading="constant")}


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with three versions, the first of them partly in a pack."""
    with analemma.open(tmp_path / "store") as app:
        tenant = app.tenant("default")
        head = tenant.committer.commit(Proposal(KEY, tenant.trees.build(state()), None)).head
        for number in range(2):
            root = tenant.manifest(head.manifest).root.id
            edited = tenant.trees.edit(root, [Operation("add", ("messages", "-"), f"message {number}")])
            head = tenant.committer.commit(Proposal(KEY, edited, head, message=f"step {number}")).head
        assert tenant.verify(KEY).ok
    return tmp_path / "store"


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
        return app.tenant("default").verify(KEY).ok


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


@pytest.mark.parametrize("checker", [ours, theirs])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(folder: Path, damage: str, checker: Callable[[Path], bool]) -> None:
    assert checker(folder)
    do(DAMAGE[damage], folder)
    assert not checker(folder)


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
