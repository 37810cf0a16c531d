"""What commands print: JSON for programs, aligned lines for people, errors on stderr."""

from __future__ import annotations

import dataclasses
import json
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


def print_json(answer: Mapping[str, Any]) -> None:
    """One JSON document, in a form that is easy to read and to compare."""
    print(json.dumps(answer, indent=2, default=str))


def print_fields(fields: Mapping[str, Any]) -> None:
    """Names and values, aligned."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name.replace('_', ' '):<{width}}  {value}")


def confirm(question: str) -> bool:
    """Ask a person; anything but yes is no, and nobody there to answer is an error."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
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
    return " ".join(text.encode(errors="backslashreplace").decode().split())
