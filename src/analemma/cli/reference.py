"""The reference page of the commands.

`python -m analemma.cli.reference docs/reference/commands.md` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from analemma.cli.application import application
from analemma.cli.rendering import SHOWN_AS

# Typer's copy of click has no types that are ours to import.
Command = Any
Parameter = Any

EXAMPLE = "Example: "


def every_command() -> Iterator[tuple[str, Command]]:
    """Each command with its full name, in the order in which `--help` lists them."""
    yield from _below(typer.main.get_command(application), "analemma")


def example_of(command: Command) -> str | None:
    """The command line that the help shows as an example."""
    epilog = command.epilog or ""
    return epilog.removeprefix(EXAMPLE) if epilog.startswith(EXAMPLE) else None


def commands_page() -> str:
    """The reference page, in Markdown."""
    lines = [
        "# Commands",
        "",
        "Every command takes `--json`, which makes it print one JSON document, and fails with one line on stderr and",
        "an [exit code](exit-codes.md). Where no store is named, it is the one in the [settings](settings.md).",
    ]
    for name, command in every_command():
        lines += ["", f"## {name}", "", _paragraph(command.help), "", "```sh", example_of(command) or name, "```", ""]
        lines += ["| option | value | meaning |", "|---|---|---|"]
        lines += [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    lines += ["", "## Values as JSON", "", "What JSON has is printed as it is. Other values are tagged:", ""]
    lines += ["| value | printed as |", "|---|---|"]
    lines += [f"| {value} | `{shown}` |" for value, shown in SHOWN_AS.items()]
    lines += ["", "This page is written by `python -m analemma.cli.reference docs/reference/commands.md`.", ""]
    return "\n".join(lines)


def _below(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, inner in command.commands.items():
        yield from _below(inner, f"{name} {part}")


def _row(parameter: Parameter) -> str:
    metavar = (parameter.metavar or "").replace("[", "").replace("]", "").replace("|", "\\|")
    argument = parameter.param_type_name == "argument"
    names = f"`{metavar}`" if argument else ", ".join(f"`{name}`" for name in parameter.opts)
    # What has no metavar is a switch.
    value = f"`{metavar}`" if metavar and not argument else ""
    meaning = (parameter.help or "").replace("|", "\\|")
    if parameter.required:
        meaning += " Required."
    elif parameter.default not in (None, False, [], ()) and not callable(parameter.default):
        meaning += f" Default: `{parameter.default}`."
    if parameter.envvar:
        meaning += f" Also from `{parameter.envvar}`."
    return f"| {names} | {value} | {meaning} |"


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(commands_page(), encoding="utf-8")
