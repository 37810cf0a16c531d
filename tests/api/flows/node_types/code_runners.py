"""Runners of code for tests, and what has to be so when the code is over."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from analemma.clock import SystemClock
from analemma.errors import Denied
from analemma.flows.node_types.code_running import Code, CodeRunner, Outcome

SYSTEM_PYTHON = "/usr/bin/python3"


def why_not(isolation: str, python: str | None = None) -> str | None:
    """Why code cannot be run so on this machine, if it cannot."""
    try:
        CodeRunner(isolation=isolation, python=python, clock=SystemClock()).run(code(""), lambda: False)  # type: ignore[arg-type]
    except Denied as exc:
        return exc.message
    return None


def code(text: str, *, state: dict[str, Any] | None = None, **more: Any) -> Code:
    made: dict[str, Any] = {
        "memory_mb": 64, "cpu_s": 20, "disk_mb": 4, "wall_s": 20, "network": False, **more
    }  # fmt: skip
    return Code(text, state or {}, **made)


REFUSED = why_not("namespaces")
isolated = pytest.mark.skipif(REFUSED is not None, reason=f"{REFUSED}")
HAS_LIMITS = os.path.exists(SYSTEM_PYTHON) and why_not("limits", SYSTEM_PYTHON) is None


@pytest.fixture(autouse=True)
def nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No process and no directory outlives the code."""
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")
    yield
    until = time.monotonic() + 5
    while (left := _children()) and time.monotonic() < until:
        time.sleep(0.02)
    assert left == []


def _children() -> list[str]:
    found = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if "code_child" in line]


@pytest.fixture(params=["namespaces", "limits"])
def runner(request: pytest.FixtureRequest) -> CodeRunner:
    if request.param == "namespaces" and REFUSED is not None:
        pytest.skip(REFUSED)
    if request.param == "limits" and not HAS_LIMITS:
        pytest.skip("no interpreter that others can read")
    return CodeRunner(
        isolation=request.param, python=None if request.param == "namespaces" else SYSTEM_PYTHON, clock=SystemClock()
    )


@pytest.fixture
def closed() -> CodeRunner:
    """In namespaces of its own."""
    if REFUSED is not None:
        pytest.skip(REFUSED)
    return CodeRunner(isolation="namespaces", python=None, clock=SystemClock())


def run(runner: CodeRunner, text: str, **more: Any) -> Outcome:
    outcome = runner.run(code(text, **more), lambda: False)
    assert outcome is not None
    return outcome
