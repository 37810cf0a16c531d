"""From what a user says to what runs calls; and how few calls are out at a time, however many there are."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from analemma.errors import Invalid, Unavailable
from analemma.testing.executors import die, square
from analemma.testing.refusals import refuses
from tests.ports.entry_points.executors import Call, Next, resolve_executor

ROOT = Path(__file__).parents[3]
NAMES: dict[str | None, tuple[str, int, bool]] = {
    None: ("threads:4", 4, False),
    "threads": ("threads:4", 4, False),
    "threads:7": ("threads:7", 7, False),
    "processes:3": ("processes:3", 3, True),
}
HOSTILE = ["", "clouds", "threads:", "threads:0", "threads:x", "threads:-1", "threads:²", "processes:100000"]
HOSTILE += ["dask:", "ray:"]


def test_a_name_says_what_runs_calls() -> None:
    for given, expected in NAMES.items():
        with resolve_executor(given) as executor:
            assert (executor.name, executor.slots, executor.apart) == expected


def test_what_is_none_is_refused() -> None:
    assert [given for given in HOSTILE if not refuses(resolve_executor, given)] == []


def test_something_else_is_refused() -> None:
    with pytest.raises(Invalid, match="int runs no calls"):
        resolve_executor(4)


def test_a_broken_pool_of_the_callers_is_told() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, resolve_executor(pool) as executor:
        calls = iter([Call(die, (1,))])
        with pytest.raises(Unavailable, match="ProcessPoolExecutor that was given is broken"):
            list(executor.run(lambda: next(calls, Next.OVER)))


def test_a_source_without_end_is_asked_for_no_more_than_there_is_room_for() -> None:
    asked = itertools.count()
    with resolve_executor("threads:2") as executor:
        running = executor.run(lambda: Call(square, (next(asked),)))
        for _ in range(20):
            next(running)
        running.close()  # type: ignore[attr-defined]
    assert next(asked) <= 20 + 2 * 4


@pytest.mark.deep("an address is tried for half a minute")
def test_nobody_listens_at_an_address() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(Unavailable, match="no Dask scheduler at tcp://127"):
        resolve_executor("dask:tcp://127.0.0.1:9")


def test_asking_for_threads_imports_neither_dask_nor_ray() -> None:
    program = (
        "import sys; from tests.ports.entry_points.executors import resolve_executor; "
        "resolve_executor('threads:1').close(); "
        "print([name for name in ('distributed', 'dask', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_processes_take_no_interrupts_from_the_keyboard() -> None:
    with resolve_executor("processes:1") as executor:
        ((_, process),) = executor.map(_process, [0])
        os.kill(process, 2)
        time.sleep(0.2)
        assert list(executor.map(_process, [0])) == [(0, process)]


def _process(_: int) -> int:
    return os.getpid()
