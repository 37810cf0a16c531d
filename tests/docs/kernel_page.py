"""Writes the reference of the kernel's verbs: `python -m tests.docs.kernel_page docs/reference/kernel.md`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from analemma.bag.kernel import BagKernel as Kernel

INTRODUCTION = """# The kernel's verbs

`app.kernel` works in the tenant that the settings name, `app.tenant(name).kernel` in any other. `analemma.aio` has the
same verbs with `await`. Ids are 64 hexadecimal digits. Every verb raises the errors of [errors](errors.md) and no
others; one that writes changes nothing when it raises.

This page is written by `python -m tests.docs.kernel_page docs/reference/kernel.md`.
"""


def kernel_page() -> str:
    """The page as it should be."""
    parts = [INTRODUCTION]
    for cls in Kernel.__mro__:
        verbs = [name for name, item in vars(cls).items() if not name.startswith("_") and getattr(Kernel, name) is item]
        verbs = [name for name in verbs if inspect.isfunction(getattr(cls, name))]
        if not verbs:
            continue
        parts.append(f"## {(cls.__doc__ or '').splitlines()[0].rstrip('.')}\n")
        for name in verbs:
            verb = getattr(cls, name)
            signature = str(inspect.signature(verb)).replace("(self, ", "(").replace("(self)", "()")
            parts.append(f"### {name}\n")
            parts.append(f"<!-- not run: a signature -->\n```python\n{name}{signature}\n```\n")
            parts.append(inspect.getdoc(verb) or "")
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(kernel_page())
