"""Writes the reference of settings: `python -m tests.docs.settings_page docs/reference/settings.md`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from analemma import Settings

INTRODUCTION = """# Settings

A setting comes from the first of these that names it: an argument, an environment variable, a file, the
default. The file is `analemma.toml` in the current directory, or the one that `ANALEMMA_CONFIG` names; its
keys are the names below, and a key that is not below is an error. An empty variable counts as unset.

| name | variable | value | default | meaning |
|---|---|---|---|---|
"""
END = """
This page is written by `python -m tests.docs.settings_page docs/reference/settings.md`.
"""


def settings_page() -> str:
    """The page as it should be."""
    rows = "".join(
        f"| `{name}` | `ANALEMMA_{name.upper()}` | {each.expected()} | {_shown(each.default)} | {each.meaning} |\n"
        for name, each in vars(Settings).items()
        if name in Settings.__annotations__
    )
    return f"{INTRODUCTION}{rows}{END}"


def _shown(default: Any) -> str:
    if default is None:
        return "unset"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(settings_page(), encoding="utf-8")
