"""Fields load in as many threads as the memory of the container allows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from analemma import BlockId
from analemma.bag import payload_workers
from analemma.bag.hydration import share_out
from analemma.bag.payload_workers import memory_limit_mb, worker_count
from tests.api.bag.payload_stores import LARGE, receive, send
from tests.stores import local

MIB = 1024 * 1024


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("memory_mb", "workers"), [(0, 2), (128, 2), (256, 2), (384, 3), (512, 4), (1024, 8), (1280, 10), (65_536, 10)]
)
def test_one_worker_per_128_mb_from_two_to_ten(memory_mb: int, workers: int) -> None:
    assert worker_count(memory_mb) == workers


def test_the_functions_configuration_is_a_limit(tmp_path: Path) -> None:
    assert memory_limit_mb({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512"}, tmp_path) == 512
    assert memory_limit_mb({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "much"}, tmp_path) == 256
    assert memory_limit_mb({}, tmp_path) == 256


def test_cgroup_version_2_is_a_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    assert memory_limit_mb({}, tmp_path) == 16_384
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    assert memory_limit_mb({}, tmp_path) == 16_384
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{700 * MIB}\n")
    assert memory_limit_mb({}, tmp_path) == 700


def test_the_least_of_all_cgroups_above_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path, "sys/fs/cgroup/pod/memory.max", str(600 * MIB))
    write(tmp_path, "sys/fs/cgroup/pod/container/memory.max", str(900 * MIB))
    assert memory_limit_mb({}, tmp_path) == 600
    assert memory_limit_mb({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "300"}, tmp_path) == 300


def test_cgroup_version_1_is_a_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 16777216 kB\n")
    write(tmp_path, "proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str((1 << 63) - 4096))
    assert memory_limit_mb({}, tmp_path) == 16_384
    write(tmp_path, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", str(400 * MIB))
    assert memory_limit_mb({}, tmp_path) == 400


def test_this_machine_has_a_limit() -> None:
    assert memory_limit_mb() > 0


@pytest.mark.parametrize(("memory_mb", "workers"), [("256", 2), ("512", 4), ("4096", 10)])
def test_fields_load_in_that_many_threads_at_once(
    memory_mb: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory_mb)
    monkeypatch.setattr(payload_workers, "_limit_files", lambda root: [])
    with local(tmp_path).open(cache_bytes=0) as app:
        fields = {f"field {number}": [number, *LARGE] for number in range(12)}
        event = send(app, fields)
        blocks = app.default.blocks
        fetch = blocks.fetch
        # Nobody gets past until all are there: with fewer threads than this the barrier breaks.
        together = threading.Barrier(workers)
        seen: set[int] = set()

        def meet(ids: Sequence[BlockId]) -> dict[BlockId, bytes]:
            if threading.get_ident() not in seen:
                seen.add(threading.get_ident())
                together.wait(timeout=20)
            return fetch(ids)

        object.__setattr__(app.default.trees, "fetch", meet)
        state = receive(app, event, load_fields=set(fields))
        assert state.not_loaded() == {} and len(seen) == workers
        assert state == fields


def test_one_field_needs_no_threads(tmp_path: Path) -> None:
    with local(tmp_path).open(cache_bytes=0) as app:
        event = send(app, {"plan": LARGE})
        fetch = app.default.blocks.fetch
        seen: set[int] = set()

        def watch(ids: Sequence[BlockId]) -> dict[BlockId, bytes]:
            seen.add(threading.get_ident())
            return fetch(ids)

        object.__setattr__(app.default.trees, "fetch", watch)
        assert receive(app, event, load_fields={"plan"}) == {"plan": LARGE}
        assert seen == {threading.get_ident()}


def test_work_is_shared_by_bytes() -> None:
    sizes = [100, 1, 1, 1, 50, 49, 1, 1]
    shares = share_out(sizes, 2)
    assert sorted(number for share in shares for number in share) == list(range(8))
    loads = [sum(sizes[number] for number in share) for share in shares]
    assert abs(loads[0] - loads[1]) <= 4
    assert share_out([], 4) == [] and share_out([7], 4) == [[0]]
