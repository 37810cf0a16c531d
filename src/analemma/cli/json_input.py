"""Reads JSON that people give on the command line, in a file or on standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

from analemma.errors import Invalid

STANDARD_INPUT = "-"


def parse_json(text: str, source: str, *, hint: str) -> Any:
    """What a text says; Invalid, naming the source and the place, if it is no JSON.

    >>> parse_json('{"n": 1}', "--metadata", hint="give an object")
    {'n': 1}
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_each_key_once)
    except _KeyTwice as exc:
        raise Invalid(f"{source}: an object names the key {exc.key!r} twice", hint="leave one of the two out") from exc
    except json.JSONDecodeError as exc:
        place = f"character {exc.pos + 1}" if exc.lineno == 1 else f"line {exc.lineno}, character {exc.colno}"
        raise Invalid(f"{source}: not JSON: {exc.msg} at {place}", hint=hint) from exc
    except RecursionError as exc:
        raise Invalid(f"{source}: it is nested too deeply to be read", hint=hint) from exc
    except ValueError as exc:
        raise Invalid(f"{source}: not JSON: {exc}", hint=hint) from exc


def parse_object(text: str, source: str, *, hint: str) -> dict[str, Any]:
    """The same for a text that must be an object."""
    return _object(parse_json(text, source, hint=hint), source, hint)


def read_object(file: str, *, hint: str) -> dict[str, Any]:
    """The object that a file, or standard input, holds."""
    return _object(read_json(file, hint=hint), source_of(file), hint)


def read_json(file: str, *, hint: str) -> Any:
    """What a file, or standard input, holds."""
    try:
        data = standard_input().read() if file == STANDARD_INPUT else Path(file).read_bytes()
        text = data.decode("utf-8-sig")
    except Invalid:
        raise
    except OSError as exc:
        raise Invalid(f"cannot read {file}: {exc.strerror}", file=file) from exc
    except UnicodeDecodeError as exc:
        raise Invalid(f"{source_of(file)} is not UTF-8: {exc}", hint="save it as UTF-8", file=file) from exc
    except ValueError as exc:
        # A name that no file can have.
        raise Invalid(f"cannot read {file!r}: {exc}") from exc
    return parse_json(text, source_of(file), hint=hint)


def standard_input() -> BinaryIO:
    """The bytes that come in; Invalid if the process was started without an input."""
    # Python has None in place of a stream that is closed.
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise Invalid("there is no standard input: it is closed", hint="name a file")
    return stream.buffer


def source_of(file: str) -> str:
    """What messages call it."""
    return "standard input" if file == STANDARD_INPUT else file


def _object(value: Any, source: str, hint: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"{source}: not a JSON object", hint=hint)
    return value


class _KeyTwice(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # One of the values would be lost without a word.
        names = [name for name, _ in pairs]
        raise _KeyTwice(next(name for name in names if names.count(name) > 1))
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
