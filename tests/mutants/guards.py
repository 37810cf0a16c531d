"""Guards and their mutants.

A guard is a condition that stops the second of two actors, or damage. Where it stands, in Python or SQL, a comment says
`guard: NAME`. A mutant breaks one guard: it names the guard, a piece of text that begins at the comment or in the few
lines below it, what to put in its place, and the tests of which one must fail then. Guards keep their names when the
source moves, so mutants move along."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src"
WINDOW: Final = 16
"""How many lines from its comment on a guard may take."""

_MARKER = re.compile(r"(?:#|--) guard: ([a-z0-9_.]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """Where a guard stands."""

    file: Path
    """Relative to the source."""
    line: int


@dataclass(frozen=True)
class Mutant:
    """One guard, broken."""

    guard: str
    old: str
    new: str
    killers: tuple[str, ...] = ()
    """Tests of which at least one fails, as pytest names them; all of them pass on the source as it is."""
    file: str | None = None
    """For text that is not at the comment: migrations are never edited, so the comment stands where they are called."""
    equivalent: str | None = None
    """Why nothing can tell it from the source, if that is so."""
    number: int = 1
    """Which mutant of its guard."""

    @property
    def name(self) -> str:
        return self.guard if self.number == 1 else f"{self.guard} ({self.number})"


@cache
def guards() -> dict[str, list[Place]]:
    """Every guard that the source names, and where."""
    found: dict[str, list[Place]] = {}
    for file in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]):
        text = file.read_text()
        for match in _MARKER.finditer(text):
            place = Place(file.relative_to(SOURCE), text.count("\n", 0, match.start()) + 1)
            found.setdefault(match[1], []).append(place)
    return found


@cache
def mutants() -> tuple[Mutant, ...]:
    """All of them, in the order of the files beside this one."""
    found: list[Mutant] = []
    numbers: dict[str, int] = {}
    for file in sorted(Path(__file__).parent.glob("*.toml")):
        for row in tomllib.loads(file.read_text())["mutant"]:
            guard = row["guard"]
            numbers[guard] = numbers.get(guard, 0) + 1
            killers = tuple(row.pop("killers", ()))
            found.append(Mutant(**row, killers=killers, number=numbers[guard]))
    return tuple(found)


def mutate(mutant: Mutant) -> tuple[Path, str]:
    """The file that changes, relative to the source, and its text as the mutant has it.

    Raises ValueError if the text that is to change is not there, or the guard is not."""
    places = guards().get(mutant.guard, [])
    if len(places) != 1:
        raise ValueError(f"{len(places)} comments say guard: {mutant.guard}")
    place = places[0]
    if mutant.file is not None:
        file, start, end = Path(mutant.file), 0, None
        text = (SOURCE / file).read_text()
    else:
        file = place.file
        text = (SOURCE / file).read_text()
        lines = text.splitlines(keepends=True)
        start = sum(map(len, lines[: place.line - 1]))
        end = start + sum(map(len, lines[place.line - 1 : place.line - 1 + WINDOW]))
    at = text.find(mutant.old, start, end)
    if at < 0:
        raise ValueError(f"{mutant.name}: {file} does not have, where the guard is: {mutant.old}")
    return file, text[:at] + mutant.new + text[at + len(mutant.old) :]
