"""Which tables keep blocks alive. A package that adds one adds it here, with a migration that adds 1 to the pass in
`gc`.

Every column of the catalog that can hold a block's id, or anything else of bytes, is listed below as a root or with the
reason why it is none; a test compares that with the schema."""

from __future__ import annotations

from analemma.catalog.collecting.marks import RootTable

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

NO_ROOTS: dict[str, str] = {
    "block.id": "what is collected",
    "block.body": "the block itself",
    "block.links": "leads where the block does",
    "block.upload": "names an object",
    "doom.id": "names a block that is about to go",
    "upload.id": "names an object",
    "manifest.parent": "a parent is named, not kept",
    "manifest.root": "repeats what the manifest's block says",
    "head.manifest": "names a manifest, which is a root",
    "head.journal_tip": "a hash of a record",
    "journal.manifest": "tells of a manifest that was; records outlive versions",
    "journal.body": "a record; it names what it tells of and keeps nothing",
    "journal.hash": "a hash of a record",
    "idempotency.fingerprint": "a hash of a request",
    "deploy.fingerprint": "a hash of a request",
    "idempotency.manifest": "names a version, which may expire",
    "idempotency.receipt": "names a version, which may expire",
    "outbox.payload": "an event's own bytes",
    "branch.first_manifest": "names a version, which may expire",
    "branch.parent": "names a version, which may expire",
    "tag.manifest": "names a manifest, which is a root and which the key keeps from expiring",
    "pin.manifest": "names a manifest, which is a root and which the key keeps from expiring",
    "expired.manifest": "names a version that is gone",
    "decision.manifest": "names a manifest, and goes with it",
    "payload.id": "random",
    "ledger.secret": "random",
    "ledger.fingerprint": "a hash of a request",
    "ledger.digest": "a hash of the delta",
    "ledger.body": "a delta with all its blocks in it",
    "ticket.secret": "random",
    "ticket.receipt": "names a version, which may expire",
    "ticket.digest": "a hash of the delta",
    "ticket.body": "a delta with all its blocks in it",
    "session.id": "random; what a session wrote is kept by its number",
    "thread_checkpoint.metadata": "a checkpoint's own bytes",
    "thread_write.digest": "a hash of the write",
    "thread_write.body": "a task's own bytes",
    "removal.body": "tells of branches that are gone",
    "removal.hash": "a hash of the record",
    "gc_audit.upload": "names an object that is gone",
    "item_space.namespace": "the labels of a namespace",
    "item.value": "a value itself, as JSON",
    "item.vectors": "numbers",
    "contract.body": "a contract's own document",
    "entity.newest_hash": "a hash of a document",
    "raw.hash": "a hash of the document",
    "slice.hash": "a hash of the slice",
    "state_source.first_manifest": "names a version, which may expire",
    "run.document": "a hash of a document; the run's versions lead to it",
    "run.born": "names a version, which does not expire before the run is over",
    "run.head": "names a version, which does not expire before the run is over",
    "run.fingerprint": "a hash of a request",
    "run_segment.input": "names a version, which may expire once the run is over",
    "run_segment.output": "names a version, which may expire once the run is over",
    "effect.body": "a small result itself, behind its hash",
    "state_source.taken": "a hash of what was taken of a state",
}
"""Columns of bytes that keep nothing, and why."""
