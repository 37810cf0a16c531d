"""What every contender is: verbs that can be timed where they run, and a place whose bytes can be counted."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class Contender:
    """A store with some of the verbs that benchmarks know. Timing happens beside the work, whatever process that is."""

    name = ""
    remark = ""
    """What else has to be known of how it was run, for the line of its result."""

    def timed(self, verb: str, *arguments: Any) -> tuple[float, Any]:
        """Run a verb; the seconds it took, and its answer."""
        run = getattr(self, verb)
        started = time.perf_counter()
        answer = run(*arguments)
        return time.perf_counter() - started, answer

    def reopen(self) -> None:
        """Start anew, with nothing cached in the process."""

    def compact(self) -> None:
        """Drop what no version needs, where that is an ordinary chore."""

    def close(self) -> None:
        """Give back everything; what was written stays."""


Opened = tuple[str, Sequence[str], Callable[[Path], Contender]]
"""A peer's name, the packages it needs, and how to open it."""


def missing(packages: Sequence[str]) -> str | None:
    """Why a peer cannot take part, or None."""
    absent = [name for name in packages if not _installed(name)]
    return f"not installed: {', '.join(absent)} (make bench installs it)" if absent else None


def disk_bytes(place: Path) -> int:
    """The bytes of all files below a directory."""
    return sum([path.stat().st_size for path in place.rglob("*") if path.is_file()])


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
