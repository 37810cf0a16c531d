"""The backends of docs/how-to/write-a-backend.md pass the suites they join."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, code_blocks

PAGE = DOCS / "how-to" / "write-a-backend.md"


@pytest.mark.deep("two whole suites")
def test_the_backends_on_the_page_pass_the_shipped_suites(tmp_path: Path) -> None:
    program = "\n\n".join(block.text for block in code_blocks(PAGE) if block.language == "python")
    (tmp_path / "test_my_backend.py").write_text(program, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 80, done.stdout[-500:]
