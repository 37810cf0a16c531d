"""Archives in a real S3 server, large enough to be sent in parts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.archives.collections import cold, superseded, units
from tests.api.archives.volumes import look, object_keys, workspace_of
from tests.depth import count
from tests.s3_server import CannotStart, S3Server, run_directory, shared_s3
from tests.stores import Store

LARGE_BYTES = count(test=20_000_000, deep=40_000_000)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with shared_s3(run_directory(tmp_path_factory.getbasetemp())) as server:
            yield server
    except CannotStart as exc:
        pytest.skip(str(exc))


@pytest.mark.parametrize("format", ["tar", "blocks"])
def test_a_round_trip_in_parts_is_identical(format: str, s3: S3Server, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with Store(str(tmp_path / "store"), s3.url()).open(archive_format=format) as app:
        archives, _ = workspace_of(app, root)
        (root / "large").write_bytes(random.Random(3).randbytes(LARGE_BYTES))
        before = look(root)
        unit = archives.archive("ws1")
        assert unit.size > LARGE_BYTES
        assert app.objects is not None
        sizes = [info.size for info in app.objects.list("tenants")]
        assert (max(sizes) > LARGE_BYTES) == (format == "tar")
        archives.restore("ws1")
        assert look(root) == before
        archives.delete("ws1")
        archives.purge("ws1")
        assert object_keys(app) == []


@pytest.mark.parametrize("filter", ["merge", "bloom"])
def test_archives_that_nobody_needs_are_collected(filter: str, s3: S3Server, tmp_path: Path) -> None:
    with Store(str(tmp_path / "store"), s3.url()).open(archive_gc_filter=filter) as app:
        # In S3's own order, `a-b/` comes before `a/`.
        kept = {f"{name}/{cold(app, tmp_path, name)}" for name in ("a", "a-b", "a.b", "ab")}
        _, new = superseded(app, tmp_path, "b")
        assert app.objects is not None
        foreign = "tenants/default/archives/a/notes.txt"
        app.objects.put(foreign, b"mine")
        first = app.archives.gc_run(0)
        assert (first.counts.needed, first.counts.orphans, first.counts.missing) == (5, 1, 0)
        assert app.archives.gc_run(0).deleted == 1
        assert app.objects.get(foreign) == b"mine"
        app.objects.delete(foreign)
        assert units(app) == kept | {f"b/{new}"}
        for name in ("a", "a-b", "a.b", "ab", "b"):
            app.archives.restore(name)
