"""Exit codes, by the kind of error.

`python -m analemma.cli.exit_codes docs/reference/exit-codes.md` writes the reference page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from analemma.errors import AnalemmaError

OK = 0
INTERRUPTED = 130
BROKEN_PIPE = 141

CODES: dict[str, int] = {
    "error": 1,
    "internal": 1,
    "invalid": 2,
    "not_found": 3,
    "conflict": 4,
    "head_moved": 4,
    "expired": 5,
    "corrupt": 6,
    "unavailable": 7,
    "outcome_unknown": 7,
    "denied": 8,
    "limit": 9,
    "timeout": 10,
    "data_lost": 11,
    "consistency": 12,
}
"""Scripts rely on these: a kind may be added, none may change."""

MEANINGS: dict[int, str] = {
    OK: "It worked.",
    1: "A defect in Analemma: `ANALEMMA_DEBUG=1` shows where. Without an error, a command that looks found something "
    "that is not well (`outbox status`, `sinks list`, `sinks health`, `fanout status`), something is dead "
    "(`worker --drain`, `worker --once`), or a person did not say yes.",
    2: "The command line, a setting or the input is wrong.",
    3: "No such thing in this tenant.",
    4: "Someone else was first, or the request contradicts what is stored: reload, then decide again.",
    5: "It existed and was removed by retention or collection.",
    6: "Stored bytes do not match their hash or their format.",
    7: "A database, an object store or a file system did not answer. After `outcome_unknown`, read back first.",
    8: "Not allowed.",
    9: "A configured limit would be exceeded.",
    10: "It took longer than allowed.",
    11: "An archive, or a part of one, is gone or damaged.",
    12: "A checkpoint failed, so the state that its ticket promised does not exist.",
    INTERRUPTED: "Interrupted from the keyboard.",
    BROKEN_PIPE: "Whoever read the output went away.",
}


def exit_code(error: AnalemmaError) -> int:
    """The code of the error's kind, or of the nearest kind above it that has one."""
    kinds = (cls.kind for cls in type(error).__mro__ if issubclass(cls, AnalemmaError))
    return next(CODES[kind] for kind in kinds if kind in CODES)


def exit_codes_page() -> str:
    """The reference page, in Markdown."""
    lines = [
        "# Exit codes",
        "",
        "A command that fails prints one line, `error: ...`, and often a second, `hint: ...`, on stderr; with `--json`",
        'it prints `{"error": {"kind": ..., "message": ..., "hint": ..., ...}}` there.',
        "",
        "| code | kinds | meaning |",
        "|---|---|---|",
    ]
    for code, meaning in MEANINGS.items():
        kinds = ", ".join(f"`{kind}`" for kind, given in CODES.items() if given == code)
        lines.append(f"| {code} | {kinds} | {meaning} |")
    lines += ["", "This page is written by `python -m analemma.cli.exit_codes docs/reference/exit-codes.md`.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(exit_codes_page(), encoding="utf-8")
