"""Reading state: all of it, or some fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path
from analemma.catalog.port import BranchKey
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.state.arguments import (
    check_name,
    check_unicode,
    field_path,
    place,
)

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel


def latest_version(kernel: Kernel, key: BranchKey, execution_id: str | None) -> BlockId:
    """The newest version of a branch, or of one execution on it; NotFound if there is none."""
    if execution_id is None:
        return kernel._commits.head(key).manifest
    rows = kernel._catalog.history(kernel._tenant, key, execution=check_name(execution_id, "execution"), limit=1)
    if not rows:
        raise NotFound(f"{place(key)} has no version of execution {execution_id!r}")
    return rows[0].id


def load_fields(
    kernel: Kernel, manifest_id: str, fields: Sequence[str], *, owner_id: str | None = None
) -> dict[str, Any]:
    """Some fields (names or JSON pointers) of one version, reading only the blocks they need; those that are not
    there are left out."""
    if isinstance(fields, str):
        raise Invalid("fields is one string", hint="pass a list of names or pointers")
    return read_fields(kernel, kernel._row(manifest_id, owner_id).id, fields)


def read_fields(kernel: Kernel, manifest: BlockId, fields: Sequence[str]) -> dict[str, Any]:
    """Some fields of a version that is known to be there."""
    paths = {name: path_of(name) for name in fields}
    root = kernel._commits.manifest(manifest).root.id
    found = kernel._commits.guarded(manifest, lambda: kernel._trees.get_many(root, paths.values()))
    return {name: found[path] for name, path in paths.items() if path in found}


def read_state(kernel: Kernel, manifest: BlockId) -> dict[str, Any]:
    """All of a version that is known to be there."""
    state = kernel._commits.guarded(manifest, lambda: kernel._trees.read(kernel._commits.manifest(manifest).root.id))
    if type(state) is not dict:
        raise Corrupt(f"the state of manifest {manifest.hex()} is no dict", block=manifest.hex())
    return state


def path_of(name: Any) -> Path:
    """A field's name or a JSON pointer, as someone asks for it."""
    check_unicode(name, "path")
    return field_path(name)
