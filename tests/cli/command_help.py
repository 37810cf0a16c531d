"""What `--help` of the installed program lists: its commands, and the options of each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.command_line import CommandLine

WIDE = "400"
"""Columns of a terminal in which no row is broken."""
_PANEL = re.compile(r"╭─ (.+?) ─")
_FIXED = ("Options", "Arguments")


@dataclass(frozen=True)
class Help:
    """One page of help."""

    about: str
    example: str | None
    options: frozenset[str]
    panels: dict[str, list[str]] = field(default_factory=dict)
    """The commands below it, by their heading."""

    @property
    def commands(self) -> list[str]:
        return [name for names in self.panels.values() for name in names]


def help_of(*command: str) -> Help:
    """What the help of a command says, or that of a word with commands below it."""
    shown = CommandLine(Path.cwd(), {"COLUMNS": WIDE}).text(*command, "--help")
    panels: dict[str, list[str]] = {}
    options: set[str] = set()
    about: list[str] = []
    example: str | None = None
    heading: str | None = None
    for line in shown.splitlines():
        row = line.strip(" │")
        if (opened := _PANEL.match(line)) is not None:
            heading = opened[1]
        elif row.startswith("╰"):
            heading = None
        elif heading == "Options":
            # An option that must be given has a star before its names.
            names = row.removeprefix("*").split()
            options.update(name for name in names[:2] if re.fullmatch(r"--?[a-z][\w-]*", name))
        elif heading is not None and heading not in _FIXED:
            panels.setdefault(heading, []).append(row.split()[0])
        elif row.startswith("Example: "):
            example = row.removeprefix("Example: ")
        elif row and not row.startswith("Usage: "):
            about.append(row)
    return Help(" ".join(about), example, frozenset(options), panels)
