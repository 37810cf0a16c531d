"""What lies in many packs is read from several at a time, and from no more than memory allows."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Unavailable
from tests.stores import local

PACKS = 20
NAMED: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


class Meeting:
    """An object store that answers a reader of packs only when as many as it waits for have come."""

    def __init__(self, inner: Any, together: int) -> None:
        self._inner = inner
        self._barrier = threading.Barrier(together)
        self._lock = threading.Lock()
        self._here = 0
        self.most = 0
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        # A single pack is read by whoever asks, and several by threads of their own.
        if threading.current_thread().name.startswith("analemma-packs"):
            if self.fails:
                raise Unavailable("the network is down")
            with self._lock:
                self._here += 1
                self.most = max(self.most, self._here)
            self._barrier.wait(timeout=60)
            with self._lock:
                self._here -= 1
        return self._inner.get_ranges(key, ranges)  # type: ignore[no-any-return]


def fill(path: Path) -> tuple[str, dict[str, str]]:
    """A state whose fields each came in a save, and so in a pack, of their own; its version, and what it holds."""
    pick = random.Random(3)
    fields = {f"field {number}": pick.randbytes(3000).hex() for number in range(PACKS)}
    with local(path).open(pack_threshold_bytes=1024) as app:
        for name, text in fields.items():
            saved = app.kernel.save_state_delta({name: text}, **NAMED)
        assert app.objects is not None
        assert len(list(app.objects.list("packs"))) == PACKS
    return saved.manifest_id, fields


@pytest.mark.parametrize(("memory_mb", "together"), [("128", 2), ("512", 4), ("4096", 10)])
def test_packs_are_read_side_by_side_as_far_as_memory_allows(
    memory_mb: str, together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, fields = fill(tmp_path)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory_mb)
    with local(tmp_path).open(cache_bytes=0) as app:
        objects: Any = Meeting(app.objects, together)
        app.objects = objects
        assert app.kernel.load_state(version) == fields
        assert objects.most == together


def test_several_who_read_at_once_share_what_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, fields = fill(tmp_path)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
    with local(tmp_path).open(cache_bytes=0) as app, ThreadPoolExecutor(3) as pool:
        objects: Any = Meeting(app.objects, 4)
        app.objects = objects
        assert list(pool.map(app.kernel.load_state, [version] * 3)) == [fields] * 3
        assert objects.most == 4


def test_a_pack_that_cannot_be_read_fails_the_whole_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, fields = fill(tmp_path)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
    with local(tmp_path).open(cache_bytes=0) as app:
        objects: Any = Meeting(app.objects, 4)
        app.objects = objects
        objects.fails = True
        with pytest.raises(Unavailable, match="the network is down"):
            app.kernel.load_state(version)
        objects.fails = False
        assert app.kernel.load_state(version) == fields
