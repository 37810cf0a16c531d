"""Which cases a run leaves to `make deep`, and what it tells in the end: where the time went, and what failed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.depth import DEEP

SLOWEST_FILES = 15
MOST_CASES = 5_000
"""Of `make test`: whoever adds more takes some away, or leaves them to `make deep`."""
LONGEST_S = 3.0
"""The longest case of `make test` on a quiet machine; those with a browser or a server may take five times as long."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures-to", metavar="FILE", help="write the ids of the cases that failed, one a line")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for name in ("deep", "both_stores"):
            marker = item.get_closest_marker(name)
            if marker is not None and not (marker.args and isinstance(marker.args[0], str) and marker.args[0]):
                raise pytest.UsageError(f"{item.nodeid}: say why it is marked {name}")
    if DEEP:
        return
    left = [item for item in items if is_left_to_deep(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]
    if len(items) > MOST_CASES:
        raise pytest.UsageError(f"{len(items)} cases are more than the {MOST_CASES} that `make test` is to have")


def is_left_to_deep(item: pytest.Item) -> bool:
    """What is marked so, and what SQLite has tried: on PostgreSQL only cases whose subject is the database."""
    if item.get_closest_marker("deep") is not None:
        return True
    parameters = (
        item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    )
    on_postgres = any(isinstance(each, str) and each == "postgres" for each in parameters)
    return on_postgres and item.get_closest_marker("both_stores") is None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    files, cases = Counter[str](), Counter[str]()
    failed = dict[str, None]()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            files[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
            cases[report.nodeid] += report.duration  # type: ignore[assignment]
            if outcome in ("failed", "error"):
                failed[report.nodeid] = None
    if (written := config.getoption("--failures-to")) is not None:
        Path(written).write_text("".join(f"{nodeid}\n" for nodeid in failed))
    if len(files) < SLOWEST_FILES:
        return
    terminalreporter.section("slowest files")
    for name, seconds in files.most_common(SLOWEST_FILES):
        terminalreporter.line(f"{seconds:8.1f} s  {name}")
    long = [(name, seconds) for name, seconds in cases.most_common() if seconds > LONGEST_S]
    if long and not DEEP:
        terminalreporter.section(f"{len(long)} cases over {LONGEST_S:g} s")
        for name, seconds in long[:40]:
            terminalreporter.line(f"{seconds:8.1f} s  {name}")
