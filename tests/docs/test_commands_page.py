"""Every command is on its page, with what it does, its options and an example that fits them."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from tests.cli.command_help import Help, help_of
from tests.docs.pages import DOCS, code_blocks, markdown_files, shown

PAGE = DOCS / "reference" / "commands.md"


@dataclass(frozen=True)
class Option:
    """One row of a command's table: an option, or an argument."""

    names: tuple[str, ...]
    takes_value: bool
    meaning: str

    @property
    def is_argument(self) -> bool:
        return not self.names[0].startswith("-")


@dataclass(frozen=True)
class Chapter:
    """What the page says of one command."""

    about: str
    example: str
    options: tuple[Option, ...]

    def named(self, name: str) -> Option | None:
        return next((option for option in self.options if name in option.names), None)


@cache
def chapters() -> dict[str, Chapter]:
    found = {}
    for name, text in re.findall(r"^## (analemma .+?)\n(.*?)(?=^## )", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        said = re.fullmatch(r"\n(.*?)\n\n```sh\n(.*?)\n```\n\n(.*)", text, re.S)
        assert said is not None, name
        rows = [re.split(r"(?<!\\)\|", row)[1:-1] for row in said[3].splitlines()[2:] if row]
        options = tuple(
            Option(tuple(re.findall(r"`(.+?)`", names)), bool(value.strip()), meaning.strip())
            for names, value, meaning in rows
        )
        found[name] = Chapter(said[1], said[2], options)
    return found


@cache
def commands() -> dict[str, Help]:
    """What each command that is on the page says of itself."""
    return {name: help_of(*name.split()[1:]) for name in chapters()}


def listed(*above: str) -> Iterator[str]:
    """The commands that help lists, in its order; what the page has commands below is a word that groups them."""
    for part in help_of(*above).commands:
        name = " ".join(["analemma", *above, part])
        if any(each.startswith(f"{name} ") for each in chapters()):
            yield from listed(*above, part)
        else:
            yield name


def test_the_page_has_the_commands_that_help_lists() -> None:
    assert list(chapters()) == list(listed())


def test_the_page_has_the_options_that_help_lists() -> None:
    differing = {}
    for name, found in commands().items():
        named = {each for option in chapters()[name].options if not option.is_argument for each in option.names}
        if found.commands or named != found.options - {"--help", "-h"}:
            differing[name] = named ^ found.options
    assert differing == {}


def test_every_command_says_what_it_does_and_gives_an_example_that_fits_its_options() -> None:
    wrong = {name: problem for name in commands() if (problem := problem_of(name)) is not None}
    assert wrong == {}


def problem_of(name: str) -> str | None:
    """What is wrong with what a command says of itself."""
    chapter, found = chapters()[name], commands()[name]
    if not found.about or "." not in found.about or chapter.example != found.example:
        return f"help says {found.about!r}, example {found.example!r}"
    words = shlex.split(chapter.example)
    if words[: len(name.split())] != name.split():
        return "the example is of another command"
    return misfit(chapter, words[len(name.split()) :])


def misfit(chapter: Chapter, words: Sequence[str]) -> str | None:
    """Why these words behind a command do not fit the table of its options."""
    given: set[Option] = set()
    rest = list(words)
    positional = 0
    while rest:
        word = rest.pop(0)
        if not re.match(r"--?[a-zA-Z]", word):
            positional += 1
            continue
        option = chapter.named(word)
        if option is None:
            return f"there is no option {word}"
        if option.takes_value and not rest:
            return f"{word} has no value"
        if option.takes_value:
            rest.pop(0)
        given.add(option)
    arguments = [option for option in chapter.options if option.is_argument]
    required = [option for option in chapter.options if "Required." in option.meaning]
    # What a variable may say need not be on the line.
    named = [each for each in required if not each.is_argument and "Also from" not in each.meaning]
    missing = [each.names[0] for each in named if each not in given]
    if missing:
        return f"{missing} must be given"
    if positional < sum(each.is_argument for each in required):
        return "an argument is missing"
    if positional > len(arguments) and not any("..." in each.names[0] for each in arguments):
        return "there are too many arguments"
    return None


def command_lines(text: str) -> Iterator[list[str]]:
    """What stands behind each `analemma` in a block of shell, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        words = deque(shlex.split(line, comments=True))
        while words:
            if words.popleft() != "analemma":
                continue
            taken = []
            while words and words[0] not in ("|", ">", "&&", "||", ";"):
                taken.append(words.popleft())
            yield taken


def test_command_lines_on_pages_fit_the_options_that_there_are() -> None:
    wrong = []
    for page in markdown_files():
        for block in code_blocks(page):
            if block.language != "sh" or page == PAGE:
                continue
            for words in command_lines(block.text):
                names = [" ".join(["analemma", *words[:count]]) for count in (3, 2, 1)]
                name = next((each for each in names if each in chapters()), None)
                if name is None:
                    problem: str | None = "there is no such command"
                else:
                    problem = misfit(chapters()[name], words[len(name.split()) - 1 :])
                if problem is not None:
                    wrong.append(f"{shown(page)}, line {block.line}: {' '.join(words)}: {problem}")
    assert wrong == []


def test_every_option_says_what_it_is_for_and_every_command_can_print_json() -> None:
    silent = [
        (name, option.names) for name, chapter in chapters().items() for option in chapter.options if not option.meaning
    ]
    assert silent == []
    assert [name for name, chapter in chapters().items() if chapter.named("--json") is None] == []
