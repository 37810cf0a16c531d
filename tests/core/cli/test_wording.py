"""What errors say in the words of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import analemma
from analemma.cli.wording import WORDS, in_cli_words


@pytest.fixture(scope="module")
def said() -> str:
    """All that runs and workspaces could say."""
    package = Path(analemma.__path__[0])
    files = [*(package / "flows").rglob("*.py"), package / "catalog" / "workspaces.py"]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


@pytest.mark.parametrize("phrase", WORDS)
def test_each_phrase_is_one_that_the_library_says(phrase: str, said: str) -> None:
    assert phrase in said


def test_other_texts_stay_as_they_are() -> None:
    assert in_cli_words("the input has no name") == "the input has no name"
