"""What errors say in the words of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from analemma import flows
from analemma.cli.wording import WORDS, in_cli_words


@pytest.fixture(scope="module")
def said() -> str:
    """All that runs could say."""
    return "\n".join(file.read_text(encoding="utf-8") for file in Path(flows.__path__[0]).rglob("*.py"))


@pytest.mark.parametrize("phrase", WORDS)
def test_each_phrase_is_one_that_the_library_says(phrase: str, said: str) -> None:
    assert phrase in said


def test_other_texts_stay_as_they_are() -> None:
    assert in_cli_words("the input has no name") == "the input has no name"
