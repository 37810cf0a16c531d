"""Runs one command line. Every failure becomes one line, a hint where there is one, and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import typer

from analemma.cli.application import application
from analemma.cli.exit_codes import BROKEN_PIPE, INTERRUPTED, OK, exit_code
from analemma.cli.options import OWNER_VARIABLE
from analemma.cli.output import print_error, printable
from analemma.errors import AnalemmaError, Internal, Invalid
from analemma.settings import Settings

DEBUG_VARIABLE = "ANALEMMA_DEBUG"
"""Set, a failure also shows where it happened."""

# Typer brings its own copy of click or uses the installed one, depending on its version; this is whichever it raises.
_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns its exit code."""
    _log_briefly()
    _name_owner()
    try:
        result = application(args=list(arguments), prog_name="analemma", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else OK
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output went away; the interpreter must not trip over that again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as exc:
        # Typer turns a broken pipe into this.
        if isinstance(exc.__context__, BrokenPipeError):
            return BROKEN_PIPE
        raise
    except Exception as exc:
        error = _as_ours(exc)
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        print_error(error, as_json="--json" in arguments)
        return exit_code(error)


def _name_owner() -> None:
    """Have the owner that a file of settings names where the variable would, which commands look at."""
    if not os.environ.get(OWNER_VARIABLE):
        # What is wrong with settings is told by who opens the store.
        with suppress(AnalemmaError):
            os.environ[OWNER_VARIABLE] = Settings().owner or ""


class _Brief(logging.Handler):
    """Shows log records on stderr, warnings without where they come from: the command says what went wrong itself. A
    program that has a way of its own of logging keeps it."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        shown = logging.makeLogRecord(record.__dict__)
        if record.levelno < logging.ERROR and not os.environ.get(DEBUG_VARIABLE):
            shown.exc_info = shown.exc_text = None
        print(*map(printable, self.format(shown).splitlines()), sep="\n", file=sys.stderr)


def _log_briefly() -> None:
    ours = logging.getLogger("analemma")
    if not any(isinstance(each, _Brief) for each in ours.handlers):
        ours.addHandler(_Brief(logging.WARNING))


def _as_ours(error: Exception) -> AnalemmaError:
    if isinstance(error, AnalemmaError):
        return error
    if isinstance(error, _USAGE_ERROR):
        message: str = error.format_message()
        command = "analemma" if error.ctx is None else error.ctx.command_path
        return Invalid(message, hint=f"{command} --help says what there is")
    return Internal(
        f"unexpected {type(error).__name__}: {error}", hint=f"set {DEBUG_VARIABLE}=1 to see where it happened"
    )
