"""Hooks: what users run when a workspace is started or stopped."""

from __future__ import annotations

from collections.abc import Callable

from analemma.archives.operations import Held
from analemma.archives.parts import Workspace, public_workspace
from analemma.catalog.archives.workspaces import Operation, Status
from analemma.errors import AnalemmaError

Hook = Callable[[Workspace], object]


class Hooks:
    """The hooks of one process."""

    def __init__(self) -> None:
        self.start: Hook | None = None
        self.stop: Hook | None = None

    def of(self, operation: Operation) -> Hook | None:
        """The hook that belongs to an operation."""
        return {"STARTING": self.start, "STOPPING": self.stop}.get(operation)


def run_hook(hook: Hook | None, held: Held, before: Status) -> None:
    """Run it; if it raises, the workspace is what it was before."""
    if hook is None:
        return
    try:
        hook(public_workspace(held.row, held.settings))
    except BaseException as exc:
        undo(held, before, exc)
        raise


def undo(held: Held, status: Status, error: BaseException, *, intent: str | None = None) -> None:
    """End an operation that failed; if that does not work either, whoever comes after the lease does it."""
    try:
        held.finish(status, error=f"{type(error).__name__}: {error}", intent=intent)
    except AnalemmaError:
        pass
