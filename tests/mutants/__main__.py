"""`python -m tests.mutants [GUARD ...]`: break one guard at a time, and see that a test fails.

Without names, all of them. Ends with 1 if a mutant lives, or if a test that is to kill one fails without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.mutants.guards import ROOT, SOURCE, Mutant, mutants, mutate

LONGEST_S = 240
"""A mutant may wait for ever where the source does not: that is noticed, too."""
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=line", "-p", "no:xdist"]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    killer: str | None
    seconds: float
    said: str = ""

    def __str__(self) -> str:
        fate = self.killer or ("equivalent" if self.mutant.equivalent else "LIVES")
        return f"{self.mutant.name:44} {self.seconds:6.1f} s  {fate}"


def judge(mutant: Mutant, source: Path) -> Verdict:
    """Run the killers of a mutant on a copy of the source that is broken meanwhile."""
    file, text = mutate(mutant)
    begun = time.monotonic()
    if mutant.equivalent:
        return Verdict(mutant, None, 0.0)
    (source / file).write_text(text)
    # What was compiled of another mutant of the same length, made in the same second, would pass for this one.
    Path(cache_from_source(str(source / file))).unlink(missing_ok=True)
    try:
        done = run([*PYTEST, *mutant.killers], source)
    finally:
        shutil.copy2(SOURCE / file, source / file)
    seconds = time.monotonic() - begun
    if done is None:
        return Verdict(mutant, f"{mutant.killers[0]} (does not end)", seconds)
    if done.returncode == 0:
        return Verdict(mutant, None, seconds, done.stdout)
    if done.returncode == pytest.ExitCode.INTERRUPTED and "KeyboardInterrupt" in done.stdout:
        return Verdict(mutant, f"{mutant.killers[0]} (would not end)", seconds)
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode != pytest.ExitCode.TESTS_FAILED or not failed:
        # It could not be collected: a mutant that nothing can import shows nothing.
        return Verdict(mutant, None, seconds, done.stdout + done.stderr)
    return Verdict(mutant, failed[0], seconds)


def run(command: Sequence[str], source: Path) -> subprocess.CompletedProcess[str] | None:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        output, errors = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def main(names: Sequence[str]) -> int:
    chosen = [mutant for mutant in mutants() if not names or mutant.guard in names]
    unknown = sorted(set(names) - {mutant.guard for mutant in chosen})
    if unknown:
        print(f"no mutant of: {', '.join(unknown)}")
        return 2
    workers = os.cpu_count() or 1
    begun = time.monotonic()
    killers = sorted({killer for mutant in chosen for killer in mutant.killers})
    print(f"{len(chosen)} mutants; first their {len(killers)} tests, which pass on the source as it is", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-n", str(workers), *killers]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        return 1
    with tempfile.TemporaryDirectory() as folder:
        sources: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            # Times are kept, so that what is compiled of the source serves the copies.
            shutil.copytree(SOURCE, Path(folder) / str(number))
            sources.put(Path(folder) / str(number))

        def judged(mutant: Mutant) -> Verdict:
            source = sources.get()
            try:
                verdict = judge(mutant, source)
            finally:
                sources.put(source)
            print(verdict, flush=True)
            return verdict

        with ThreadPoolExecutor(workers) as pool:
            verdicts = list(pool.map(judged, chosen))
    living = [verdict for verdict in verdicts if verdict.killer is None and not verdict.mutant.equivalent]
    for verdict in living:
        print(f"\n{verdict}\n{verdict.said}")
    equivalent = sum(1 for mutant in chosen if mutant.equivalent)
    killed = len(chosen) - len(living) - equivalent
    minutes, seconds = divmod(time.monotonic() - begun, 60)
    print(f"{killed} killed, {len(living)} live, {equivalent} equivalent, in {minutes:.0f}:{seconds:02.0f}")
    return 1 if living else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
