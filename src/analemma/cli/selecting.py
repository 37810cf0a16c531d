"""Which version a command means: what a revision names, or the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analemma.errors import Invalid, NotFound

if TYPE_CHECKING:
    from analemma.catalog.port import Version
    from analemma.store.store import App

ID_DIGITS = 64


def find_version(app: App, named: str, *, owner: str | None, workflow: str | None, branch: str) -> Version:
    """The version that a revision names."""
    from analemma.store import revisions

    return revisions.find_version(app.kernel, named, owner=owner, workflow=workflow, branch=branch)


def find_or_newest(app: App, named: str | None, *, owner: str | None, workflow: str | None, branch: str) -> Version:
    """The version that is named, or else the newest of the branch."""
    if named is not None:
        return find_version(app, named, owner=owner, workflow=workflow, branch=branch)
    if owner is None or workflow is None:
        raise Invalid("it is not said which version", hint="give --owner and --workflow, or a manifest id")
    return newest_version(app, owner=owner, workflow=workflow, branch=branch)


def expected_id(app: App, named: str, *, owner: str, workflow: str, branch: str) -> str:
    """The manifest that must still be the newest, whether or not there is one of this id."""
    if len(named) == ID_DIGITS:
        return named
    return find_version(app, named, owner=owner, workflow=workflow, branch=branch).manifest_id


def merge_source(app: App, named: str, *, owner: str, workflow: str, branch: str) -> str:
    """What is to be merged, as the kernel takes it: a branch, or else the manifest that a revision names."""
    from analemma.catalog.port import BranchKey

    if app.catalog.head_and_pending(app.default.id, BranchKey(owner, workflow, named)) != (None, False):
        return named
    return expected_id(app, named, owner=owner, workflow=workflow, branch=branch)


def version_number(app: App, named: str, *, owner: str, workflow: str, branch: str) -> int:
    """A number as it is given, or that of the version that a revision names, which must be on the branch itself."""
    if len(named) < 17 and named.isascii() and named.isdigit():
        return int(named)
    found = find_version(app, named, owner=owner, workflow=workflow, branch=branch)
    if (found.workflow_id, found.branch) != (workflow, branch):
        raise Invalid(f"{named} is on branch {found.branch} of {found.workflow_id}", hint=f"name one on {branch}")
    return found.version


def newest_version(app: App, *, owner: str, workflow: str, branch: str, execution: str | None = None) -> Version:
    """The newest version of the branch, or of one execution on it."""
    page = app.kernel.history(
        workflow_id=workflow, owner_id=owner, branch=branch, execution_id=execution, limit=1, forks=False
    )
    if not page:
        raise NotFound(
            f"workflow {owner}/{workflow} has no version of execution {execution!r}",
            hint="`analemma log` says which execution made what; or leave out --execution",
            execution=execution,
        )
    return page[0]
