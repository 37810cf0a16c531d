"""Which version a command means: a manifest id, a version number of a branch, a tag, or the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analemma.cli.options import LARGEST_NUMBER
from analemma.errors import Invalid, NotFound

if TYPE_CHECKING:
    from analemma.app import App
    from analemma.catalog.port import Version

ID_DIGITS = 64


def find_version(app: App, named: str, *, owner: str | None, workflow: str | None, branch: str) -> Version:
    """The version of this manifest id, of this number on the branch, or with this tag in the workflow."""
    if len(named) < 20 and named.isascii() and named.isdigit():
        return numbered_version(app, int(named), owner=owner, workflow=workflow, branch=branch)
    from analemma.canon.identity import parse_block_id
    from analemma.state.arguments import expired

    if owner is not None and workflow is not None and len(named) != ID_DIGITS:
        named = _tagged_manifest(app, named, owner=owner, workflow=workflow)
    manifest = parse_block_id(named)
    row = app.catalog.manifest(app.default.id, manifest)
    gone = app.catalog.expired(app.default.id, manifest) if row is None else None
    if gone is not None and owner in (None, gone.key.owner):
        raise expired(gone)
    if row is None or (owner is not None and row.key.owner != owner):
        raise NotFound(f"there is no manifest {named}", hint="`analemma log` lists them", manifest=named)
    return row


def find_or_newest(app: App, named: str | None, *, owner: str | None, workflow: str | None, branch: str) -> Version:
    """The version that is named, or else the newest of the branch."""
    if named is not None:
        return find_version(app, named, owner=owner, workflow=workflow, branch=branch)
    if owner is None or workflow is None:
        raise Invalid("it is not said which version", hint="give --owner and --workflow, or a manifest id")
    return newest_version(app, owner=owner, workflow=workflow, branch=branch)


def _tagged_manifest(app: App, name: str, *, owner: str, workflow: str) -> str:
    tag = app.catalog.tag(app.default.id, owner, workflow, name)
    if tag is None:
        raise NotFound(f"workflow {owner}/{workflow} has no tag {name!r}", hint="`analemma tag` lists them", tag=name)
    return tag.manifest.hex()


def numbered_version(app: App, number: int, *, owner: str | None, workflow: str | None, branch: str) -> Version:
    """The version of this number on the branch."""
    if owner is None or workflow is None:
        raise Invalid(
            f"{number} is a version number, and it is not said of which workflow",
            hint="add --workflow and --owner, or give a manifest id",
        )
    newest = newest_version(app, owner=owner, workflow=workflow, branch=branch)
    after = min(number, LARGEST_NUMBER) + 1
    page = app.kernel.history(workflow_id=workflow, owner_id=owner, branch=branch, after=after, limit=1)
    if page and page[0].version == number:
        return page[0]
    from analemma.catalog.port import BranchKey
    from analemma.state.arguments import expired

    gone = app.catalog.expired_version(app.default.id, BranchKey(owner, workflow, branch), after - 1)
    if gone is not None:
        raise expired(gone)
    raise NotFound(
        f"workflow {owner}/{workflow} has no version {number}",
        hint=f"the newest on branch {branch} is {newest.version}",
        version=number,
    )


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
