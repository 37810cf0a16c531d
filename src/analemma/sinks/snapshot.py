"""Reads the files of JSONL sinks: line by line, or folded to the newest state of each document."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from analemma.errors import Corrupt, NotFound, Unavailable


@dataclass(frozen=True, slots=True)
class ShippedLine:
    """One line of such a file."""

    doc_id: str
    ship_seq: int
    body: dict[str, Any] | None
    """None: deleted."""


def read_lines(path: str | os.PathLike[str]) -> Iterator[ShippedLine]:
    """Every whole line, in the order of shipping. A last line that a crash cut off was never acknowledged, and is left
    out; any other that cannot be read is Corrupt."""
    for _, line in _placed_lines(Path(path)):
        yield line


def read_snapshot(path: str | os.PathLike[str]) -> Iterator[ShippedLine]:
    """The newest state of each document that is not deleted, in the order of shipping; of states with the same
    `ship_seq`, the last. Holds ids in memory, not bodies."""
    newest: dict[str, tuple[int, int, bool]] = {}
    for position, line in _placed_lines(Path(path)):
        known = newest.get(line.doc_id)
        if known is None or line.ship_seq >= known[0]:
            newest[line.doc_id] = (line.ship_seq, position, line.body is None)
    wanted = {position for _, position, is_deleted in newest.values() if not is_deleted}
    last = max(wanted, default=-1)
    for position, line in _placed_lines(Path(path)):
        # Lines that were appended meanwhile come after all that were wanted.
        if position > last:
            return
        if position in wanted:
            yield line


def _placed_lines(path: Path) -> Iterator[tuple[int, ShippedLine]]:
    position = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                yield position, _parsed(line, path, number)
                position += len(line)
    except FileNotFoundError as exc:
        raise NotFound(f"there is no file {path}", hint="a sink makes it with its first document") from exc
    except OSError as exc:
        raise Unavailable(f"cannot read {path}: {exc.strerror}", hint="check its permissions") from exc


def _parsed(line: bytes, path: Path, number: int) -> ShippedLine:
    try:
        value = orjson.loads(line)
        found = ShippedLine(value["docId"], value["shipSeq"], value["body"] if value["op"] == "upsert" else None)
        if not isinstance(found.doc_id, str) or not isinstance(found.ship_seq, int) or value["op"] not in _OPERATIONS:
            raise ValueError("not a line of a sink")
    except (ValueError, KeyError, TypeError) as exc:
        raise Corrupt(f"{path}, line {number} cannot be read", hint="restore the file, or take the line out") from exc
    return found


_OPERATIONS = ("upsert", "delete")
