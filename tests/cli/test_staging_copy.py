"""The example that shows what a copy of a store may do with its original's objects, on servers of its own and on one
that is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import PostgresServer

SCRIPT = Path(__file__).parents[2] / "examples/staging-copy/staging_copy.py"


@pytest.mark.deep("it needs PostgreSQL, and takes seconds")
@pytest.mark.parametrize("servers", ["its own", "one that is there"])
def test_the_example_of_a_staging_copy_ends_well(servers: str, postgres_server: PostgresServer, tmp_path: Path) -> None:
    given = [] if servers == "its own" else [postgres_server.url]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("ANALEMMA_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *given], cwd=tmp_path, env=settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("# Nothing was lost.")
    assert "are not this catalog's to delete" in done.stdout
