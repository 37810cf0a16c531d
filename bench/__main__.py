"""`python -m bench [--quick] [--only NAME] [--json]`: run the benchmarks and print what they found. Always exits 0."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import time
import traceback

from rich.console import Console

from bench.harness import Row, as_json, machine_facts, print_rows, temporary_folder

MODULES = (
    "json_encoding",
    "commits",
    "trees",
    "kernel",
    "cold_start",
    "checkpoints",
    "agent",
    "langgraph",
    "payloads",
    "gc",
    "pipeline",
    "fanout",
    "outbox",
    "ship",
    "backfill",
    "archives",
    "flows",
    "peers",
)
"""Modules of this package with `run(quick: bool) -> Iterable[Row]`; one that is not there yet is left out."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Analemma against the same run's floor."
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--only", action="append", choices=MODULES, metavar="NAME", help=f"one of {', '.join(MODULES)}")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    options = parser.parse_args()

    progress = Console(stderr=True, highlight=False)
    rows: list[Row] = []
    with temporary_folder() as folder:
        # Sinks with relative paths write there, and not to wherever this was started.
        os.environ["ANALEMMA_SHIP_BASE"] = str(folder)
        for name in options.only or MODULES:
            if importlib.util.find_spec(f"bench.{name}") is not None:
                rows += run_module(name, quick=options.quick, progress=progress)
    facts = machine_facts()
    if options.json:
        print(json.dumps(as_json(rows, facts), indent=2))
    else:
        # A file or a pipe has no width of its own; a terminal wraps where it must.
        console = Console()
        print_rows(rows, facts, console if console.is_terminal else Console(width=200))


def run_module(name: str, *, quick: bool, progress: Console) -> list[Row]:
    """Every row of one module. One that breaks is reported and costs only its own rows."""
    progress.print(f"{name} ...")
    started = time.perf_counter()
    rows: list[Row] = []
    try:
        for row in importlib.import_module(f"bench.{name}").run(quick):
            if not isinstance(row, Row):
                raise TypeError(f"bench.{name} reported a {type(row).__name__}, not a Row")
            progress.print(f"  {row.name}")
            rows.append(row)
    except Exception:
        progress.print(f"{name} broke:\n{traceback.format_exc()}", markup=False)
    progress.print(f"{name} took {time.perf_counter() - started:.1f} s")
    return rows


if __name__ == "__main__":
    main()
