"""An object store that fails, loses answers or tears what it stores: the volume stays until its archive is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analemma import Archives
from analemma.errors import AnalemmaError, DataLost, OutcomeUnknown, Unavailable
from analemma.testing.objects import FailingStore, Fault
from tests.api.archives.volumes import look, object_keys, workspace_of
from tests.stores import Store, local


@contextmanager
def failing(store: Store, *faults: Fault, **more: Any) -> Iterator[tuple[Archives, FailingStore]]:
    """Another opener, whose object store fails."""
    with store.open() as app:
        assert app.objects is not None
        objects = FailingStore(app.objects, faults, **more)
        app.objects = objects
        yield app.archives, objects


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_stream_that_fails_for_a_moment_is_sent_again(kind: Any, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app, failing(local(tmp_path), Fault("put_stream", kind)) as (archives, objects):
        workspace_of(app, root)
        before = look(root)
        archives.archive("ws1")
        assert objects.unused == ()
        archives.restore("ws1")
        assert look(root) == before
        # Whatever the first attempt left has a name of its own.
        assert len([key for key in object_keys(app) if key.endswith(".zst")]) == (2 if kind == "after" else 1)


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("put_stream", "before")] * 3,
        [Fault("put_stream", "before", Unavailable("no space"))],
        [Fault("put", "before")],
        [Fault("put", "torn")],
        [Fault("put", "after")],
        [Fault("get_range", "torn")],
        [Fault("head", "before")],
    ],
    ids=[
        "stream, always",
        "stream, for good",
        "marker",
        "half a marker",
        "marker, answer lost",
        "half read back",
        "head",
    ],
)
def test_what_fails_before_the_commit_leaves_the_volume(faults: list[Fault], tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app, failing(local(tmp_path), *faults) as (archives, objects):
        workspace_of(app, root)
        before = look(root)
        with pytest.raises((Unavailable, OutcomeUnknown, DataLost)):
            archives.archive("ws1")
        assert objects.unused == ()
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation, workspace.archive_key) == ("WARM", "NONE", None)
        assert look(root) == before
        app.archives.archive("ws1")
        app.archives.restore("ws1")
        assert look(root) == before


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_fails_at_random_loses_nothing(seed: int, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app, failing(local(tmp_path), seed=seed, rate=0.3) as (archives, _):
        workspace_of(app, root)
        before = look(root)
        for _ in range(12):
            status = archives.get("ws1").status
            try:
                if status == "WARM":
                    archives.archive("ws1")
                elif status == "COLD":
                    archives.restore("ws1")
                else:
                    archives.recover("ws1")
            except AnalemmaError:
                pass
            if archives.get("ws1").operation != "NONE":
                try:
                    archives.recover("ws1")
                except AnalemmaError:
                    continue
            if root.exists():
                assert look(root) == before
        if archives.get("ws1").operation != "NONE" or archives.get("ws1").status == "ERROR":
            app.archives.recover("ws1")
        if app.archives.get("ws1").status == "COLD":
            app.archives.restore("ws1")
        assert look(root) == before
