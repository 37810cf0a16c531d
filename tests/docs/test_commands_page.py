"""Every command is on its page, with what it does and an example."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main

from analemma.cli.application import application
from analemma.cli.reference import commands_page, every_command, example_of
from tests.docs.pages import DOCS

COMMANDS = dict(every_command())


def test_the_page_is_current() -> None:
    current = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8") == commands_page()
    assert current, "run python -m analemma.cli.reference docs/reference/commands.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_gives_an_example_that_parses(name: str) -> None:
    command = COMMANDS[name]
    assert command.help and command.help.strip().split("\n")[0].endswith(".")
    example = example_of(command)
    assert example is not None and (example + " ").startswith(name + " ")
    program, *arguments = shlex.split(example)
    assert program == "analemma"
    group: Any = typer.main.get_command(application)
    with group.make_context(program, arguments) as context:
        for part in name.split()[1:]:
            found, inner, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
            assert found == part
            context = inner.make_context(part, rest, parent=context)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str) -> None:
    parameters = COMMANDS[name].params
    assert "--json" in [option for parameter in parameters for option in parameter.opts]
    for parameter in parameters:
        assert parameter.help, f"{name}: {parameter.name}"
