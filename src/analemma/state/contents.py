"""Saving and reading state: it is changed by deltas, which is the one way it is written, and read whole or by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from analemma.canon.build import Packer, check_path
from analemma.canon.nodes import BlockId, parse_block_id
from analemma.canon.pointer import Path
from analemma.canon.trees import Edited, Trees
from analemma.catalog.port import BranchKey, Head
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.state.arguments import (
    CURRENT_HEAD,
    MAIN,
    CurrentHead,
    DeltaUpdate,
    branch_key,
    check_name,
    check_new_branch,
    check_unicode,
    explained,
    field_path,
    place,
    read_delta,
)
from analemma.state.commits import Proposal
from analemma.state.records import Commit

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel


def save_state_delta(
    kernel: Kernel,
    delta: Mapping[str, Any] | DeltaUpdate,
    *,
    workflow_id: str,
    owner_id: str,
    execution_id: str | None = None,
    segment_id: int | None = None,
    previous_manifest_id: str | CurrentHead | None = CURRENT_HEAD,
    deleted: Iterable[str] = (),
    branch: str = MAIN,
    idempotency_key: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    why: Mapping[str, Any] | None = None,
) -> Commit:
    """Apply the delta and make the result the next version.

    Keys of `delta` are field names, or JSON pointers when they start with a slash (a field literally named `/x` is
    `/~1x`). What is deleted need not be there. With `previous_manifest_id`, the head must still be that manifest
    (None: the branch must not exist yet), or HeadMoved is raised and nothing changes; without it, the delta is
    applied to whatever is newest. The same `idempotency_key` gives the same commit, however often and from wherever
    it is asked for, for as long as keys are kept (`idempotency_keep_s` of the settings) or its version is; after
    that it is a new request. `why` says where the version comes from: `model`, `prompt`, `tool`, `code_revision`,
    `actor`, `reason`, or what else is worth knowing. It is kept, and hashed, with the metadata."""
    key = branch_key(owner_id, workflow_id, branch)
    metadata = explained(metadata, why)
    update = read_delta(delta, deleted)
    wire, blocks = (None, ()) if metadata is None else kernel._trees.pack(metadata)
    expected = _parse_previous(previous_manifest_id)
    fingerprint = b""
    if idempotency_key is not None:
        check_name(idempotency_key, "idempotency key")
        fingerprint = fingerprint_of(
            kernel, key, update, previous_manifest_id, execution_id, segment_id, message, metadata
        )

    def propose(head: Head | None) -> Proposal:
        if head is None:
            check_new_branch(key.branch)
        base = None if head is None else kernel._commits.manifest(head.manifest)
        tree = apply_update(kernel._trees, None if base is None else base.root.id, update)
        return Proposal.on(
            base,
            key,
            Edited(tree.root, (*tree.blocks, *blocks)),
            head,
            execution=execution_id,
            segment=segment_id,
            message=message,
            metadata=wire,
            idempotency_key=idempotency_key,
            fingerprint=fingerprint,
        )

    return kernel._commits.commit_next(key, expected, propose, (idempotency_key, fingerprint))


def apply_update(trees: Trees, root: BlockId | None, update: DeltaUpdate) -> Edited:
    """The tree after the changes to the one at `root` (None: to an empty state); Invalid if they do not fit it."""
    try:
        edited = _edit_empty(trees, update) if root is None else trees.edit(root, update.operations)
    except NotFound as exc:
        raise Invalid(
            f"the delta cannot be applied: {exc.message}",
            hint="what a pointer goes through must exist",
            pointer=exc.facts.get("pointer"),
        ) from exc
    if edited.root.kind != "map":
        raise Invalid("the delta puts something else in the place of the state", hint="a state is a dict of fields")
    return edited


def empty_state(trees: Trees) -> tuple[Trees, Edited]:
    """The tree of a state without fields, and trees that have it."""
    empty = trees.build({})
    return trees.over(empty.by_id), empty


def _edit_empty(trees: Trees, update: DeltaUpdate) -> Edited:
    # A whole state would fill the cache of nodes, which is for those of edits.
    trees, empty = empty_state(replace(trees, nodes=None))
    edited = trees.edit(empty.root.id, update.operations)
    return edited if edited.blocks else empty


def fingerprint_of(kernel: Kernel, key: BranchKey, update: DeltaUpdate, *parts: Any) -> bytes:
    request: list[Any] = [
        [key.owner, key.workflow, key.branch],
        [[op, list(path), value] for op, path, value in update.operations],
        [repr(part) if isinstance(part, CurrentHead) else part for part in parts],
    ]
    try:
        return sha256(b"request" + kernel._trees.build(request).root.id).digest()
    except Invalid:
        # With a request around it, a value can be nested deeper than anything that is stored; or it cannot be
        # stored anywhere, and is refused by the place that it would have in the state.
        request[1] = [[op, list(path), digest(kernel, value, path)] for op, path, value in update.operations]
        request[2] = [digest(kernel, part, ()) for part in request[2]]
        return sha256(b"deep request" + kernel._trees.build(request).root.id).digest()


def digest(kernel: Kernel, value: Any, path: Path) -> bytes:
    """A hash of a value as it would be stored at this path; Invalid, with the pointer, if it cannot be."""
    check_path(path)
    return sha256(Packer(kernel._trees.registry, lambda *_: None).pack(value, at=path).data).digest()


def _parse_previous(previous: str | CurrentHead | None) -> BlockId | CurrentHead | None:
    return previous if previous is None or isinstance(previous, CurrentHead) else parse_block_id(previous)


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
