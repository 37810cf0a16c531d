"""How much a run of the tests tries: `make test` a part that one waits for, `make deep` everything.

A count stays as large as it takes to kill the mutants that its test must kill (`make mutants`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

VARIABLE: Final = "ANALEMMA_TESTS"
DEEP: Final = os.environ.get(VARIABLE) == "deep"


def count(test: int, *, deep: int) -> int:
    """How many: of seeds, examples, steps, processes."""
    return deep if DEEP else test


def some(everything: Sequence[T], *, test: Sequence[T]) -> Sequence[T]:
    """Which: all of them in `make deep`, those that `make test` cannot do without."""
    assert all(each in everything for each in test), "make test tries nothing that make deep does not"
    return everything if DEEP else test
