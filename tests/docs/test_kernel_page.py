"""The reference of the kernel's verbs is the one that the code gives."""

from __future__ import annotations

import inspect
from pathlib import Path

from analemma.bag.kernel import BagKernel as Kernel
from tests.docs.kernel_page import kernel_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kernel.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == kernel_page(), "run: python -m tests.docs.kernel_page docs/reference/kernel.md"


def test_every_verb_says_what_it_does() -> None:
    for name, verb in inspect.getmembers(Kernel, inspect.isfunction):
        assert name.startswith("_") or inspect.getdoc(verb), name
