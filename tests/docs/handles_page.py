"""Writes the reference of handles and revisions: `python -m tests.docs.handles_page docs/reference/handles.md`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import analemma
from tests.docs.kernel_page import signature_of

INTRODUCTION = """# Handles and revisions

`store.workflow("trip", owner="ann")` is a handle on one workflow, seen from its main branch; nothing is read until a
verb is called, and each looks anew. Left out, `owner` is the one of the [settings](settings.md).
`store.tenant(name).workflow(...)` works in another tenant. In `analemma.aio` the same verbs are coroutines, `edit` is
for `async with`, `log` and `watch` for `async for`. The [kernel's verbs](kernel.md) are the lower interface: what
handles do is done by them, and they can do more (forks into other workflows, pins, decisions, retention, segments).

## Revisions

Wherever a version is expected, by a verb here or by a [command](commands.md), a revision names it:

| revision | means |
|---|---|
| `HEAD` | the newest version of the branch |
| `draft@3` | version 3 as the branch `draft` has it |
| `3` | version 3 as the branch has it: its own, or that of the branch it was forked from |
| `good` | the version with this tag |
| `draft` | the newest version of this branch |
| `5d0c91` | the version whose id begins so; at least 6 digits, and of one owner |
| `@{2026-11-01}`, `@{2026-11-01T12:00}` | what was newest at that time, in UTC unless it says another zone |
| `draft@{2026-11-01}` | the same of another branch |
| `HEAD~2`, `good~1`, `HEAD~` | so many versions before: the first parent of the first parent, also across forks |

The first of these that there is counts, in this order. Two versions whose ids begin alike are `Invalid`, and both are
named. What does not exist is `NotFound`, what retention has removed `Expired`. In a program a version may also be
what an earlier call gave: a commit, a version of the log, a tag, a bag. New tags and branches whose names would mean
something else (numbers, ids, `HEAD`; branches with `@` or `~`) are `Invalid`; those that there are keep their names,
and verbs that take the name of a branch take them.

## Where a version comes from

`why` is what is worth knowing about how a version came to be: any fields, and best by these names: `model`, `prompt`
(its hash), `tool`, `code_revision`, `actor`, `reason`. It is the key `why` of the version's metadata, so it is part
of the version's id and cannot be changed later; nobody else may use that key. `analemma save --why model=m-1` says it,
`analemma log`, `show` and `blame` print it.

This page is written by `python -m tests.docs.handles_page docs/reference/handles.md`.
"""


def handles_page() -> str:
    """The page as it should be."""
    parts = [INTRODUCTION]
    for cls in (analemma.Workflow, analemma.WorkflowVersion, analemma.WorkflowTicket):
        parts.append(f"## {cls.__name__}\n")
        for name, verb in vars(cls).items():
            if inspect.isfunction(verb) and (not name.startswith("_") or name == "__getitem__"):
                shown = signature_of(name, verb).replace("<current head>", "CURRENT_HEAD")
                parts.append(f"### {name}\n" if name != "__getitem__" else '### `trip["goal"]`\n')
                parts.append(f"<!-- not run: a signature -->\n```python\n{shown}\n```\n")
                parts.append(f"{inspect.getdoc(verb) or 'What stands there; NotFound, a KeyError, if nothing does.'}\n")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(handles_page(), encoding="utf-8")
