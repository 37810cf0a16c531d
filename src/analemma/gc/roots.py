"""Which tables keep blocks alive. A package that adds one adds it here, with a migration that adds 1 to the pass in
`gc`.

Every column of the catalog that can hold a block's id, or anything else of bytes, is listed below as a root, or in the
test that compares both lists with the schema (`tests/core/gc/test_roots.py`) with the reason why it is none."""

from __future__ import annotations

from typing import NamedTuple


class RootTable(NamedTuple):
    """A table whose rows keep blocks. Its statement takes tenant, after and limit, and answers pages of (key, root),
    by key; a root may be NULL."""

    table: str
    statement: str
    start: bytes | int = b""
    """What comes before every key."""


MANIFESTS = RootTable("manifest", "manifest_roots")
LEASES = RootTable("payload", "lease_roots")  # guard: gc.root.payload
CHECKPOINTS = RootTable("thread_checkpoint", "thread_roots")  # guard: gc.root.checkpoint
RAWS = RootTable("raw", "raw_roots", start=0)  # guard: gc.root.raw
SLICES = RootTable("slice", "slice_roots", start=0)  # guard: gc.root.slice
ARCHIVES = RootTable("archive_unit", "unit_roots", start=0)  # guard: gc.root.archive
EFFECTS = RootTable("effect", "effect_roots", start=0)  # guard: gc.root.effect
TASKS = RootTable("run_task", "task_roots", start=0)  # guard: gc.root.task

ROOTS: tuple[RootTable, ...] = (MANIFESTS, LEASES, CHECKPOINTS, RAWS, SLICES, ARCHIVES, EFFECTS, TASKS)
"""What every snapshot reads."""

ROOT_COLUMNS: dict[str, str] = {
    "manifest.id": "a version: its block leads to state, configuration, segments and metadata",
    "payload.root": "the tree of a lease, until that is released",
    "thread_checkpoint.manifest": "the version that a checkpoint is, also after the version's own row expired",
    "raw.root": "a version of an entity as it came",
    "slice.root": "a slice; one that is copied to a later version is copied under the lock of its entity",
    "archive_unit.root": "the index of an archive in blocks, until the collector claims the archive",
    "effect.result": "what came of an effect, if it is too large for its row, until its run is forgotten",
    "run_task.root": "what a branch or an item of a run came to, until its run is forgotten",
}
