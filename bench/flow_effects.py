"""What happens twice outside when processes are killed: ours and DBOS, each in processes of their own that really are.

Both get the same kills: when so many lines are in the file of the outside, and a moment of chance later."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from bench.contenders.base import missing
from bench.contenders.dbos_flows import PACKAGES
from bench.harness import Row, temporary_folder

STEPS_PER_KILL: Final = 6
STEPS_BEHIND: Final = 20
LONGEST_MOMENT_S: Final = 0.04
"""Twice as long as an answer is under way: some kills hit it, and some do not."""
LONGEST_WAIT_S: Final = 120.0
NEWLINE: Final = b"\n"


@dataclass(frozen=True, slots=True)
class Repeated:
    """What came of a workflow that was killed so often."""

    repeated: int
    """How often the outside was asked for what it had done already."""
    under_another_key: int
    """Of these, what a receiver that honours keys would have done again."""


def effect_rows(quick: bool) -> Iterator[Row]:
    """By what is done about effects of which nobody knows: asked for again, of a receiver that honours keys or of one
    that does not, or asked about."""
    kills = 5 if quick else 20
    reason = missing(PACKAGES)
    ours, theirs = _killed("ours", kills, "retry"), None if reason is not None else _killed("dbos", kills, "retry")
    asked = _killed("ours", kills, "ask")
    name = f"flow, effects repeated in {kills} kills"
    told = ("", "") if theirs is None else (f"DBOS ({theirs.repeated})", f"DBOS ({theirs.under_another_key})")
    yield _row(f"{name}, any receiver", ours.repeated, kills, told[0])
    yield _row(f"{name}, receiver that honours keys", ours.under_another_key, 0, told[1])
    yield _row(f"{name}, somebody who knows is asked", asked.repeated, 0, "")


def _row(name: str, found: int, most: int, against: str) -> Row:
    return Row(name, found, "effects", against=against or None, goal=f"<= {most}", met=found <= most)


def _killed(who: str, kills: int, on_unknown: str) -> Repeated:
    """Run a workflow to its end, and kill whoever runs it on the way."""
    steps, moments = kills * STEPS_PER_KILL + STEPS_BEHIND, Random(kills)
    with temporary_folder() as folder:
        file = folder / "outside.txt"
        file.touch()
        url = str(folder / "store") if who == "ours" else f"sqlite:///{folder / 'dbos.db'}"
        command = [sys.executable, "-m", "bench.contenders.effect_runs", who, url, str(file), str(steps), on_unknown]
        for number in range(kills):
            with (folder / "errors.txt").open("wb") as errors:
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            try:
                _wait_for_lines(file, (number + 1) * STEPS_PER_KILL, process)
                time.sleep(moments.uniform(0, LONGEST_MOMENT_S))
            finally:
                process.kill()
                ended = process.wait()
            if ended != -signal.SIGKILL:
                said = (folder / "errors.txt").read_text()[-2000:]
                raise RuntimeError(f"{who} was to be killed, and ended with {ended}: {said}")
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=LONGEST_WAIT_S)
        return _counted(file, steps)


def _wait_for_lines(file: Path, wanted: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + LONGEST_WAIT_S
    while file.read_bytes().count(NEWLINE) < wanted:
        if process.poll() is not None:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"no more than {file.read_bytes().count(NEWLINE)} effects of {wanted}")
        time.sleep(0.001)


def _counted(file: Path, steps: int) -> Repeated:
    happened = [tuple(line.split()) for line in file.read_text().splitlines()]
    done = {number for _, number in happened}
    if len(done) != steps:
        raise RuntimeError(f"{len(done)} of {steps} steps have happened")
    return Repeated(len(happened) - steps, len({key for key, _ in happened}) - steps)
