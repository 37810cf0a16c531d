"""How large the source is, part by part, and how many files a verb crosses."""

from __future__ import annotations

import ast
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import analemma

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "analemma"
LIMITS = Path(__file__).parent / "limits.toml"
JOBS = ("flows", "pipeline", "slicing", "contracts", "outbox", "sinks", "archives", "cli", "testing")
"""The packages on top; all others but the handles are the core."""
HANDLES = ("store/workflow.py", "store/revisions.py", "store/provenance.py")
COUNTED = (".py", ".pyi", ".sql", ".json", ".yaml", ".yml", ".toml", ".html", ".css", ".js", ".jinja")


def figures() -> dict[str, dict[str, int]]:
    """Every figure that has a limit, by section."""
    return {
        **{part: _sizes(part) for part in ("core", "jobs", "handles")},
        "folders": _folders(),
        "crossed": _crossed(),
    }


def limits() -> dict[str, dict[str, int]]:
    """The limits, as they stand in the file."""
    found: dict[str, dict[str, int]] = tomllib.loads(LIMITS.read_text())
    return found


def _files(part: str) -> Iterator[Path]:
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and path.suffix in COUNTED and _part(path.relative_to(SOURCE)) == part:
            yield path


def _part(path: Path) -> str:
    return "jobs" if path.parts[0] in JOBS else "handles" if path.as_posix() in HANDLES else "core"


def _sizes(part: str) -> dict[str, int]:
    found = Counter[str](lines=0, python_files=0, sql_files=0, python_statements=0, sql_statements=0)
    for path in _files(part):
        text = path.read_text(encoding="utf-8")
        found["lines"] += len(text.splitlines())
        if path.suffix in (".py", ".pyi"):
            found["python_files"] += 1
            found["python_statements"] += sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
        elif path.suffix == ".sql":
            found["sql_files"] += 1
            found["sql_statements"] += _sql_statements(text)
    return dict(found)


def _sql_statements(text: str) -> int:
    """Named statements, or the statements of a script."""
    named = sum(line.startswith("-- ") and line.endswith(" --") for line in text.splitlines())
    return named or sum(line.rstrip().endswith(";") for line in text.splitlines())


def _folders() -> dict[str, int]:
    """The entries of the fullest folder; modules and folders count, `__init__` does not."""
    entries = {
        folder: sum(not each.name.startswith("__") and each.suffix in ("", *COUNTED) for each in folder.iterdir())
        for folder in [SOURCE, *SOURCE.rglob("*")]
        if folder.is_dir() and folder.name != "__pycache__"
    }
    return {"fullest": max(entries.values()), "over_16": sum(count > 16 for count in entries.values())}


def _crossed() -> dict[str, int]:
    """How many files of the package a warm verb comes through, on SQLite."""
    with tempfile.TemporaryDirectory() as folder, analemma.open(os.path.join(folder, "store")) as app:

        def save(number: int) -> str:
            return app.kernel.save_state_delta({"x": number, "y": [number]}, workflow_id="w", owner_id="o").manifest_id

        verbs: dict[str, Callable[[], object]] = {
            "save": lambda: save(3),
            "load": lambda: app.kernel.load_latest_state(workflow_id="w", owner_id="o"),
            "collect": lambda: app.gc.run(grace_s=0),
        }
        save(1)
        for verb in verbs.values():
            verb()
        return {name: _files_of(verb) for name, verb in verbs.items()}


def _files_of(action: Callable[[], object]) -> int:
    with _watching() as seen:
        action()
    return len(seen)


@contextmanager
def _watching() -> Iterator[set[str]]:
    seen: set[str] = set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            seen.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield seen
    finally:
        sys.setprofile(before)
