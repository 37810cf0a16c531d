"""kill -9 in the middle of a bulk ingest: run again with --resume, every line is stored, and none twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from analemma.testing import failpoints
from tests.cli.command_line import at
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

LINES = 60
RUN = ["ingest", "BOOK", "books.jsonl", "--id-field", "isbn", "--resume", "cursor.json", "--batch", "10"]


@pytest.mark.parametrize(
    ("point", "lines_kept", "batches_stored"),
    [("ingest.before_transaction:4", 30, 3), ("ingest.after_commit:4", 30, 4)],
)
def test_a_bulk_ingest_that_was_killed_goes_on(
    point: str, lines_kept: int, batches_stored: int, store: Store, tmp_path: Path
) -> None:
    line = at(store, tmp_path)
    line.text("contracts", "load", str(EXAMPLE))
    books = [{"isbn": f"{number:03}", "title": "x", "price": number} for number in range(LINES)]
    (tmp_path / "books.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in books))

    killed = line.process(*RUN, **{failpoints.VARIABLE: point})
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, ""), killed.stderr
    assert json.loads((tmp_path / "cursor.json").read_text())["lines"] == lines_kept

    done = line.answer(*RUN)["ingested"]
    assert done["skipped_lines"] == lines_kept
    # What was committed and not noted is offered again, and is no change.
    assert (done["created"], done["unchanged"]) == (LINES - 10 * batches_stored, 10 * (batches_stored - 3))
    with store.open() as app:
        assert list(app.default.views.entity_ids("BOOK")) == [each["isbn"] for each in books]
        assert app.outbox.status().pending == LINES
