"""The near end of the doltlite process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.contenders.base import Contender, disk_bytes

PACKAGES = ("doltlite",)
_VERSION_VERBS = {"load_version": 1, "read_one": 1, "read_all": 1, "diff": 2, "branch": 1}
"""Verbs whose first arguments name versions by number."""


class Doltlite(Contender):
    """Dolt's engine behind SQLite's API, one row per message or entry."""

    name = "doltlite"

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self._place = place
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.contenders.doltlite_worker", str(place / "tables.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._versions: list[str] = []

    def timed(self, verb: str, *arguments: Any) -> tuple[float, Any]:
        named = _VERSION_VERBS.get(verb, 0)
        if named and not self._versions:
            self._versions = self._call("versions")[1]
        hashes = [self._versions[number] for number in arguments[:named]]
        return self._call(verb, *hashes, *arguments[named:])

    def reopen(self) -> None:
        self._call("reopen")

    def compact(self) -> None:
        self._call("compact")

    def disk_bytes(self) -> int:
        """What the directory holds."""
        return disk_bytes(self._place)

    def close(self) -> None:
        self._call("close")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _call(self, verb: str, *arguments: Any) -> tuple[float, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the doltlite process ended during {verb}")
        seconds, result = json.loads(answer)
        return seconds, result
