"""Reads what `save` is to change, and why, from the command line: `--set`, `--file` and `--why`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analemma.cli.json_input import parse_json, read_object
from analemma.errors import Invalid


def read_changes(assignments: Sequence[str], file: str | None) -> dict[str, Any]:
    """The delta: the file's fields, then the assignments, which win.

    >>> read_changes(["n=1", "/plan/0=null"], None)
    {'n': 1, '/plan/0': None}
    """
    delta = {} if file is None else read_object(file, hint="give one JSON object of changed fields")
    seen: set[str] = set()
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise Invalid(f"--set {assignment}: there is no '='", hint="write --set NAME=JSON")
        if not name:
            raise Invalid(f"--set {assignment}: there is no name before the '='", hint="write --set NAME=JSON")
        if name in seen:
            raise Invalid(f"--set {name}: it is set twice", hint="leave one of the two out")
        seen.add(name)
        delta[name] = parse_json(text, f"--set {name}", hint=f"""text needs quotes: --set '{name}="text"'""")
    return delta


def read_why(facts: Sequence[str]) -> dict[str, str] | None:
    """Where a version comes from; None if nothing is said of it.

    >>> read_why(["model=m-1", "reason=a=b"])
    {'model': 'm-1', 'reason': 'a=b'}
    """
    told: dict[str, str] = {}
    for fact in facts:
        name, equals, text = fact.partition("=")
        if not equals or not name or name in told:
            trouble = "it is said twice" if name in told else "there is no '='" if not equals else "it has no name"
            raise Invalid(f"--why {fact}: {trouble}", hint="write --why NAME=TEXT, once for each name")
        told[name] = text
    return told or None
