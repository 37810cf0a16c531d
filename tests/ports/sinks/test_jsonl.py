"""Files of JSONL sinks: torn lines, other writers, rotation, full disks; and how they are read."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from analemma import Sink, open_sink, read_snapshot
from analemma.errors import Corrupt, NotFound
from analemma.testing.sinks import Outcome, gone, make_document
from tests.actors import Actor


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "books.jsonl"


@pytest.fixture
def sink(file: Path) -> Iterator[Sink]:
    with closing_sink(file) as sink:
        yield sink


@contextlib.contextmanager
def closing_sink(file: Path, lock_s: float = 0.2) -> Iterator[Sink]:
    sink = open_sink({"type": "JSONL", "path": str(file), "lockTimeoutS": lock_s}, environment={})
    yield sink
    sink.close()


def ids(file: Path) -> list[str]:
    """The documents in it."""
    return [line.doc_id for line in read_snapshot(file)]


def test_a_line_is_what_the_reference_says(sink: Sink, file: Path) -> None:
    sink.ship_batch([make_document("a", 1, title="x\ny"), gone(make_document("b"), 2)])
    assert file.read_text().splitlines() == [
        '{"docId":"a","shipSeq":1,"op":"upsert","body":{"title":"x\\ny"}}',
        '{"docId":"b","shipSeq":2,"op":"delete","body":null}',
    ]


def test_wherever_a_line_is_cut_off_the_next_writer_repairs_it(file: Path) -> None:
    with closing_sink(file) as sink:
        sink.ship(make_document("a", 1, title="kept"))
        kept = file.read_bytes()
        sink.ship(make_document("b", 1, title="cut \u00e9\U0001f600 off"))
    whole = file.read_bytes()
    for length in range(len(kept), len(whole)):
        for tail in (b"", b"\0" * 20):
            file.write_bytes(whole[:length] + tail)
            if length > len(kept) or not tail:
                assert ids(file) == ["a"]
            with closing_sink(file) as sink:
                assert sink.ship(make_document("c", 1, title="next")).outcome is Outcome.SHIPPED
            assert file.read_bytes().startswith(kept)
            assert ids(file) == ["a", "c"]


def test_a_long_line_that_is_cut_off_is_found_from_its_start(file: Path) -> None:
    with closing_sink(file) as sink:
        sink.ship(make_document("a"))
        sink.ship(make_document("b", text="x" * 300_000))
        with file.open("r+b") as held:
            held.truncate(250_000)
        assert sink.ship(make_document("c")).outcome is Outcome.SHIPPED
    assert ids(file) == ["a", "c"]


def test_a_file_that_is_not_ours_is_left_alone(file: Path) -> None:
    for content in (b"not ours", b"a,b\n1,2", b'{"doc":1}', b"\xff\xfe", b'{"docId"\n:'):
        file.write_bytes(content)
        with closing_sink(file) as sink:
            answer = sink.ship(make_document())
        assert answer.outcome is Outcome.RETRY and "does not end with a line of a sink" in (answer.reason or "")
        assert file.read_bytes() == content


def test_a_file_that_is_locked_for_long_is_tried_again_later(sink: Sink, file: Path) -> None:
    sink.ship(make_document())
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = sink.ship(make_document(ship_seq=2))
        assert answer.outcome is Outcome.RETRY and "locked" in (answer.reason or "")
    assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.SHIPPED


def test_a_file_that_was_moved_away_is_begun_anew(sink: Sink, file: Path) -> None:
    sink.ship(make_document("a"))
    file.rename(file.with_suffix(".1"))
    sink.ship(make_document("b"))
    assert ids(file) == ["b"]
    file.unlink()
    sink.ship(make_document("c"))
    assert ids(file) == ["c"]
    assert ids(file.with_suffix(".1")) == ["a"]


def test_a_full_disk_is_tried_again(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    link = tmp_path / "full.jsonl"
    link.symlink_to("/dev/full")
    with closing_sink(link) as sink:
        answer = sink.ship(make_document())
    assert answer.outcome is Outcome.RETRY and "No space left" in (answer.reason or "")


def test_each_tenant_and_type_has_its_file_and_none_leaves_the_folder(tmp_path: Path) -> None:
    target = {"type": "JSONL", "path": "out/{tenantId}/{entityType}.jsonl"}
    sink = open_sink(target, environment={}, base=tmp_path)
    documents = [replace(make_document(), tenant=tenant) for tenant in ("one", "two")]
    documents.append(replace(make_document(), entity_key="AUTHOR#shop#1"))
    assert {each.outcome for each in sink.ship_batch(documents)} == {Outcome.SHIPPED}
    made = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jsonl"))
    assert made == ["out/one/BOOK.jsonl", "out/shop/AUTHOR.jsonl", "out/two/BOOK.jsonl"]
    for tenant in ("..", ".", "", "/etc", "a/b", "a\\b", "a\0b", "a\n", "-x", ".x", "a b", "x" * 200, "\u00e9"):
        answer = sink.ship(replace(make_document(), tenant=tenant))
        assert answer.outcome is Outcome.REFUSED and "{tenantId}" in (answer.reason or "")
    sink.close()
    assert sorted(tmp_path.rglob("*.jsonl")) == sorted(tmp_path / name for name in made)


def test_more_files_than_may_be_open_at_once(tmp_path: Path) -> None:
    sink = open_sink({"type": "JSONL", "path": "{tenantId}.jsonl"}, environment={}, base=tmp_path)
    for ship_seq in (1, 2):
        documents = [replace(make_document(ship_seq=ship_seq), tenant=f"t{number}") for number in range(100)]
        assert {each.outcome for each in sink.ship_batch(documents)} == {Outcome.SHIPPED}
    assert len(os.listdir("/proc/self/fd")) < 100 + 64
    sink.close()
    assert all(len(path.read_text().splitlines()) == 2 for path in tmp_path.glob("*.jsonl"))


def test_a_snapshot_has_the_newest_state_of_each_document(sink: Sink, file: Path) -> None:
    for document in [
        make_document("a", 2, n="a2"),
        make_document("b", 1, n="b1"),
        make_document("a", 1, n="late"),
        make_document("c", 1, n="c1"),
        gone(make_document("c"), 2),
        make_document("c", 1, n="late"),
        make_document("b", 3, n="first"),
        make_document("b", 3, n="again"),
        gone(make_document("d"), 1),
        make_document("e", 1, n="e1"),
        gone(make_document("e"), 2),
        make_document("e", 3, n="back"),
    ]:
        sink.ship(document)
    assert [(line.doc_id, line.ship_seq, line.body) for line in read_snapshot(file)] == [
        ("a", 2, {"n": "a2"}),
        ("b", 3, {"n": "again"}),
        ("e", 3, {"n": "back"}),
    ]


def test_a_broken_line_is_told_with_its_number(sink: Sink, file: Path) -> None:
    sink.ship_batch([make_document("a"), make_document("b")])
    whole = file.read_bytes()
    for broken in (b"{}\n", b"x\n", b'{"docId":1,"shipSeq":1,"op":"upsert","body":{}}\n', b"\n", b"[]\n"):
        file.write_bytes(whole + broken + whole)
        with pytest.raises(Corrupt, match="line 3"):
            list(read_snapshot(file))
    with pytest.raises(NotFound):
        list(read_snapshot(file.with_name("none")))


def write(path: str, writer: int) -> None:
    with closing_sink(Path(path), lock_s=60) as sink:
        for number in range(40):
            batch = [make_document(f"{writer}-{number}-{place}", text="x" * 500) for place in range(5)]
            assert all(answer.is_done for answer in sink.ship_batch(batch))


def test_lines_of_several_processes_do_not_mix(file: Path) -> None:
    writers = [Actor(write, str(file), number) for number in range(3)]
    assert [(writer.wait(), writer.errors) for writer in writers] == [(0, "")] * 3
    assert len(ids(file)) == len(set(ids(file))) == len(file.read_text().splitlines()) == 600
