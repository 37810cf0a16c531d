"""What commands print: JSON for programs, aligned lines for people, errors on stderr."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analemma.cli.wording import in_cli_words
from analemma.errors import AnalemmaError, Invalid

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """Where answers for people go."""
    from rich.console import Console

    return Console(soft_wrap=True)


# What moves a terminal's cursor, changes its colours or turns its text around, and what is no character at all: beside
# those below the space, which JSON escapes by itself.
_HIGH_CONTROLS = r"\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROLS = re.compile(rf"[\x00-\x1f{_HIGH_CONTROLS}]")
_CONTROLS_IN_JSON = re.compile(f"[{_HIGH_CONTROLS}]")


def print_json(answer: Mapping[str, Any]) -> None:
    """One JSON document, in a form that is easy to read and to compare."""
    print(json_text(answer, indent=2))


def json_text(answer: Mapping[str, Any], *, indent: int | None = None) -> str:
    """A JSON document for standard output, in the letters of its own language where the output has them."""
    has_all_letters = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(answer, indent=indent, default=str, ensure_ascii=not has_all_letters)
    return _CONTROLS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Names and values, aligned."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print_line(f"{name.replace('_', ' '):<{width}}  {value}")


def print_line(text: str, *, flush: bool = False) -> None:
    """One line for people, whatever the names and messages in it hold."""
    print(printable(text), flush=flush)


def printable(text: str) -> str:
    """A text that cannot command the terminal that shows it: states, names and messages are written by others.

    >>> printable("done\\x1b[2J")
    'done\\\\x1b[2J'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def confirm(question: str) -> bool:
    """Ask a person; anything but yes is no, and nobody there to answer is an error."""
    try:
        return input(f"{printable(question)} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError as exc:
        print()
        raise Invalid("there is nobody to ask", hint="add --yes") from exc


def bytes_for_people(size: int) -> str:
    """`1536` -> `1.5 KiB`."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def print_error(error: AnalemmaError, *, as_json: bool) -> None:
    """One line and a hint on stderr, or the same with all facts as JSON."""
    if as_json:
        facts = {**error.facts, "kind": error.kind, "message": error.message, "hint": error.hint}
        print(json.dumps({"error": facts}, default=_fact), file=sys.stderr)
        return
    print(f"error: {one_line(in_cli_words(error.message))}", file=sys.stderr)
    if error.hint:
        print(f"hint: {one_line(in_cli_words(error.hint))}", file=sys.stderr)


def _fact(fact: Any) -> Any:
    if isinstance(fact, bytes):
        return fact.hex()
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        return dataclasses.asdict(fact)
    return str(fact)


def one_line(text: str) -> str:
    """A text for one line of a terminal."""
    # What was typed may hold bytes that are no text, and the message may quote it.
    return printable(" ".join(text.encode(errors="backslashreplace").decode().split()))
