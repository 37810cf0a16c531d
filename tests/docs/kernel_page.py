"""Writes the reference of the kernel's verbs: `python -m tests.docs.kernel_page docs/reference/kernel.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import analemma

INTRODUCTION = """# The kernel's verbs

`app.kernel` works in the tenant that the settings name, `app.tenant(name).kernel` in any other. `analemma.aio` has the
same verbs with `await`. Ids are 64 hexadecimal digits. Every verb raises the errors of [errors](errors.md) and no
others; one that writes changes nothing when it raises.

This page is written by `python -m tests.docs.kernel_page docs/reference/kernel.md`.
"""


LONGEST_LINE = 100
with analemma.open("sqlite:///:memory:") as app:
    Kernel = type(app.kernel)


def kernel_page() -> str:
    """The page as it should be."""
    chapters = _chapters()
    parts = [INTRODUCTION]
    for title, verbs in chapters.items():
        parts.append(f"- {title}: {', '.join(f'[{name}](#{name})' for name in verbs)}")
    parts.append("")
    for title, verbs in chapters.items():
        parts.append(f"## {title}\n")
        for name, verb in verbs.items():
            parts.append(f"### {name}\n")
            parts.append(f"<!-- not run: a signature -->\n```python\n{signature_of(name, verb)}\n```\n")
            parts.append(inspect.getdoc(verb) or "")
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def signature_of(name: str, verb: Callable[..., Any]) -> str:
    """As it would stand in a program, on several lines if it is long."""
    signature = inspect.signature(verb)
    parameters = list(signature.parameters.values())[1:]
    shown = [
        f"{each.name}: {each.annotation}" + ("" if each.default is each.empty else f" = {each.default!r}")
        for each in parameters
    ]
    by_name = next((place for place, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if by_name is not None:
        shown.insert(by_name, "*")
    line = f"{name}({', '.join(shown)}) -> {signature.return_annotation}"
    if len(line) <= LONGEST_LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f") -> {signature.return_annotation}"])


def _chapters() -> dict[str, dict[str, Callable[..., Any]]]:
    """The verbs by the modules that have them, each called after the first sentence of its description."""
    chapters: dict[str, dict[str, Callable[..., Any]]] = {}
    for cls in Kernel.__mro__:
        for name, verb in vars(cls).items():
            if not name.startswith("_") and inspect.isfunction(verb) and getattr(Kernel, name) is verb:
                chapters.setdefault(_title(sys.modules[verb.__module__]), {})[name] = verb
    return chapters


def _title(module: ModuleType) -> str:
    return " ".join((module.__doc__ or "").split()).partition(".")[0].partition(":")[0]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(kernel_page())
