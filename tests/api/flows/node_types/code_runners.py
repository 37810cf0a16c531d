"""Stores whose nodes run code, and what has to be so when the code is over."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import analemma
from analemma import App, Run, Settings
from tests.api.flows.runs import place
from tests.depth import some

SYSTEM_PYTHON = "/usr/bin/python3"
SMALL: dict[str, Any] = {"memory_mb": 64, "cpu_s": 20, "disk_mb": 4}


@contextmanager
def open_isolated(isolation: str) -> Iterator[App]:
    """A store whose nodes run code so; skips where this machine cannot."""
    python = None if isolation == "namespaces" else SYSTEM_PYTHON
    settings = Settings(code_isolation=isolation, code_python=python)
    with analemma.open("sqlite:///:memory:", settings=settings) as app:
        tried = flow(app, code="result = 1")
        if tried.error is not None:
            pytest.skip(tried.error.message)
        yield app


def flow(app: App, state: dict[str, Any] | None = None, **more: Any) -> Run:
    """A run of one node with code."""
    node = {"id": "calc", "type": "code_interpreter", **SMALL, **more}
    return app.flows.run({"workflow": "w", "nodes": [node]}, state, **place())


def answer(app: App, text: str, state: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """What came of code of the state: `ok`, `result`, `output`, `error`."""
    run = flow(app, {"program": text, **(state or {})}, code_path="program", reads=list(state or {}), **more)
    assert run.error is None, run.error
    found: dict[str, Any] = run.state["calc"]
    return found


def failure(app: App, text: str, **more: Any) -> str:
    """How code failed."""
    found = answer(app, text, **more)
    assert found["ok"] is False and found["result"] is None
    return f"{found['error']['type']}: {found['error']['message']}"


@pytest.fixture(scope="module")
def closed() -> Iterator[App]:
    """Code runs in namespaces of its own."""
    with open_isolated("namespaces") as app:
        yield app


@pytest.fixture(scope="module", params=some(["namespaces", "limits"], test=["namespaces"]))
def runner(request: pytest.FixtureRequest) -> Iterator[App]:
    """Code runs within limits; in namespaces of its own, or as a user of its own."""
    with open_isolated(request.param) as app:
        yield app


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process outlives the code."""
    before = _children()
    yield
    until = time.monotonic() + 60
    while (left := _children() - before) and time.monotonic() < until:
        time.sleep(0.02)
    assert left == set()


def _children() -> set[str]:
    found = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True)
    return {line for line in found.stdout.splitlines() if "ps --ppid" not in line}
