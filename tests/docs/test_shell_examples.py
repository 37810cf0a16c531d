"""The command lines that a page shows are run, in a shell, after the page's Python wrote the files that they read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT, code_blocks, shown
from tests.docs.test_examples import run

PAGES = {
    ROOT / "README.md": "one more day",
    DOCS / "how-to" / "build-a-view.md": "Solaris",
    DOCS / "tutorial" / "first-store.md": "Order 1042, urgent",
}
"""What the commands of each print, among others."""


@pytest.mark.deep("a process for each command")
@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_command_lines_do_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = code_blocks(page)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        if block.language == "python":
            run(page, block, namespace)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {name: value for name, value in os.environ.items() if not name.startswith("ANALEMMA_")}
    for block in blocks:
        if block.language == "sh" and block.not_run is None:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                env={**settings, "PATH": path},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), f"{shown(page)}, line {block.line}"
            assert PAGES[page] in done.stdout
