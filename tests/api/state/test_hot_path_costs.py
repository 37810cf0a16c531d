"""What one save, one log and one comparison do on the way, counted: statements, attempts to compress, nodes decoded,
links read. Nothing here takes the time."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import App, DeltaUpdate, Operation
from analemma.blocks import codec
from analemma.canon import diffing, source
from analemma.canon.identity import block_id
from analemma.canon.nodes import block_links

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
AN_ORDINARY_SAVE = {"move_head": 1, "add_blocks": 1, "add_manifest": 1, "add_journal": 1}


@pytest.fixture
def app(tmp_path: Path) -> Any:
    with analemma.open(tmp_path / "store") as app:
        yield app


def step(number: int) -> DeltaUpdate:
    """Two messages more, and a text replaced: what an agent changes."""
    messages = [{"id": number * 2 + turn, "content": f"message {number}.{turn} " * 80} for turn in range(2)]
    added = [Operation("add", ("messages", "-"), message) for message in messages]
    return DeltaUpdate((*added, Operation("put", ("scratch",), f"scratch {number} " * 300)))


def work(app: App, steps: int) -> None:
    app.kernel.save_state_delta({"messages": [], "scratch": "", "constant": "never changes " * 3000}, **NAME)
    for number in range(steps):
        app.kernel.save_state_delta(step(number), **NAME)


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """The arguments of every call to a function from now on."""
    calls: list[Any] = []
    real: Callable[..., Any] = getattr(module, name)

    def counting(*arguments: Any) -> Any:
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(module, name, counting)
    return calls


class CountingCompressor:
    """Compresses, and keeps what it was given."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.tried: list[bytes] = []

    def compress(self, data: bytes) -> bytes:
        self.tried.append(data)
        return bytes(self._real.compress(data))


def test_an_ordinary_save_on_sqlite_is_four_statements(app: App) -> None:
    work(app, 5)
    before = app.catalog.engine.statements.copy()
    app.kernel.save_state_delta(step(5), **NAME)
    spent = app.catalog.engine.statements - before
    # Once a second a commit also looks whether sources of state were declared.
    assert Counter({name: spent[name] for name in spent if name != "contracts_generation"}) == AN_ORDINARY_SAVE


def test_a_base_that_is_not_the_head_is_still_looked_for(app: App) -> None:
    work(app, 1)
    first = app.kernel.history(**NAME)[-1].manifest_id
    before = app.catalog.engine.statements["base_exists"]
    app.kernel.fork(first, owner_id="ann", branch="other")
    assert app.catalog.engine.statements["base_exists"] == before + 1


def test_what_a_head_names_cannot_be_removed_under_it(app: App) -> None:
    """Why a save need not look for its parent: the foreign key of the head holds it."""
    work(app, 1)
    head = app.kernel.history(**NAME)[0].manifest_id
    engine: Any = app.catalog.engine
    connection: sqlite3.Connection = engine._connection
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("DELETE FROM manifest WHERE id = ?", (bytes.fromhex(head),))
    assert app.kernel.save_state_delta({"n": 1}, **NAME).parent_id == head


def test_small_blocks_of_hashes_are_not_compressed_in_vain(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    work(app, 3)
    codec.compress(b"a" * 1000)  # this thread has a compressor from here on
    counting = CountingCompressor(codec._local.compressor)
    monkeypatch.setattr(codec._local, "compressor", counting)
    commit = app.kernel.save_state_delta(step(3), **NAME)
    assert len(counting.tried) < commit.blocks_stored
    assert commit.manifest_id not in {block_id(data).hex() for data in counting.tried}
    assert [data for data in counting.tried if len(data) < 384 and block_links(data)] == []
    # And none of those that were left alone would have gained by it.
    rows = app.catalog.read_blocks(app.default.id, [bytes.fromhex(each) for each in commit.block_ids])  # type: ignore[misc]
    for row in rows.values():
        assert row.codec == codec.ZSTD or row.body is not None
        if row.codec == codec.RAW and row.body is not None:
            assert codec.compress(row.body)[0] == codec.RAW


def test_a_save_after_a_save_decodes_nothing_and_reads_no_links_again(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(app, 60)
    decoded = count_calls(monkeypatch, source, "decode_node")
    ids_read = count_calls(monkeypatch, source, "node_link_ids")
    links_read = count_calls(monkeypatch, source, "node_links")
    for number in range(60, 70):
        app.kernel.save_state_delta(step(number), **NAME)
    # The text that is replaced is no node of an edit; everything else was made by the save before.
    assert (len(decoded), len(ids_read), len(links_read)) == (0, 0, 0)
    assert len(app.kernel.load_latest_state(**NAME)["messages"]) == 140
    assert app.kernel.verify(**NAME).ok


def test_comparing_neighbours_takes_index_entries_at_a_glance(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"entry {number:05}": f"text {number} " * 20 for number in range(3000)}
    first = app.kernel.save_state_delta({"entries": entries}, **NAME)
    second = app.kernel.save_state_delta({"/entries/entry 01234": "other", "/entries/entry 02345": 7}, **NAME)
    asked = count_calls(monkeypatch, diffing, "entry_facts")
    differing = count_calls(monkeypatch, diffing, "_differ")
    changes = app.kernel.diff(first.manifest_id, second.manifest_id)
    assert {(change["op"], change["path"], change.get("value")) for change in changes} == {
        ("replace", "/entries/entry 01234", "other"),
        ("replace", "/entries/entry 02345", 7),
    }
    # Entries that both trees have are equal; only the two children of the roots and what changed type is asked about.
    assert asked == []
    assert len(differing) <= 4


def test_binding_bytes_and_none_keeps_them_as_they_are() -> None:
    connection = sqlite3.connect(":memory:")
    row = (b"", b"\x00bytes", None, 1, 1.5, "text", bytearray(b"more"), memoryview(b"view"))
    [found] = connection.execute(f"SELECT {', '.join('?' * len(row))}", row).fetchall()
    assert found == (b"", b"\x00bytes", None, 1, 1.5, "text", b"more", b"view")
    assert [type(each) for each in found[:3]] == [bytes, bytes, type(None)]
    adapters: Any = getattr(sqlite3, "adapters", {})
    for kind in (bytes, type(None)):
        adapt = adapters.get((kind, sqlite3.PrepareProtocol))
        assert adapt is not None and all(adapt(value) is value for value in row if type(value) is kind)
    connection.close()
