"""Every verb of the kernel is described."""

from __future__ import annotations

import inspect

from tests.docs.kernel_page import Kernel


def test_every_verb_says_what_it_does() -> None:
    for name, verb in inspect.getmembers(Kernel, inspect.isfunction):
        assert name.startswith("_") or inspect.getdoc(verb), name
