"""Reads what `save` is to change from the command line: `--set`, `--file` and `--delete`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from analemma.errors import Invalid

STANDARD_INPUT = "-"


def read_changes(assignments: Sequence[str], file: str | None) -> dict[str, Any]:
    """The delta: the file's fields, then the assignments, which win.

    >>> read_changes(["n=1", "/plan/0=null"], None)
    {'n': 1, '/plan/0': None}
    """
    delta = {} if file is None else _read_file(file)
    seen: set[str] = set()
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise Invalid(f"--set {assignment}: there is no '='", hint="write --set NAME=JSON")
        if name in seen:
            raise Invalid(f"--set {name}: it is set twice", hint="leave one of the two out")
        seen.add(name)
        delta[name] = _parse(text, f"--set {name}", hint=f"""text needs quotes: --set '{name}="text"'""")
    return delta


def _read_file(file: str) -> dict[str, Any]:
    source = "standard input" if file == STANDARD_INPUT else file
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as exc:
        raise Invalid(f"cannot read {file}: {exc.strerror}", file=file) from exc
    except UnicodeDecodeError as exc:
        raise Invalid(f"{source} is not UTF-8: {exc}", file=file) from exc
    delta = _parse(text, source, hint="give one JSON object of changed fields")
    if not isinstance(delta, dict):
        raise Invalid(f"{source}: not a JSON object", hint="give one JSON object of changed fields", file=file)
    return delta


def _parse(text: str, source: str, *, hint: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        place = f"character {exc.pos + 1}" if exc.lineno == 1 else f"line {exc.lineno}, character {exc.colno}"
        raise Invalid(f"{source}: not JSON: {exc.msg} at {place}", hint=hint) from exc
    except (ValueError, RecursionError) as exc:
        raise Invalid(f"{source}: not JSON: {exc}", hint=hint) from exc


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
