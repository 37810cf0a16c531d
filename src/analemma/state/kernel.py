"""The kernel: its verbs by name, and how they find versions."""

from __future__ import annotations

from analemma.canon.nodes import BlockId, parse_block_id
from analemma.catalog.port import ASIDE, BranchKey, Version
from analemma.context import Context
from analemma.errors import NotFound
from analemma.state import (
    checkpoints,
    contents,
    history,
    removal,
    segments,
    workflows,
)
from analemma.state.arguments import check_version, expired, place
from analemma.state.commits import Commits
from analemma.state.merge import histories
from analemma.state.segments import PlaceSegment, SegmentList


class Kernel:
    """State of one tenant's workflows. A workflow is (owner, workflow id); it has branches, and a branch has versions.

    >>> import analemma
    >>> app = analemma.open("sqlite:///:memory:")
    >>> first = app.kernel.save_state_delta({"n": 1, "plan": ["a"]}, workflow_id="trip", owner_id="ann")
    >>> second = app.kernel.save_state_delta({"/plan/0": "b"}, workflow_id="trip", owner_id="ann")
    >>> app.kernel.diff(first.manifest_id, second.manifest_id)
    [{'op': 'replace', 'path': '/plan/0', 'value': 'b'}]
    >>> app.kernel.rollback_to_version(workflow_id="trip", owner_id="ann", version=1).version
    3
    >>> app.close()
    """

    save_state_delta = contents.save_state_delta
    load_fields = contents.load_fields
    diff = history.diff
    blame = history.blame
    watch = history.watch
    verify = history.verify
    verify_manifest_integrity = history.verify_manifest_integrity
    rollback_to_version = history.rollback_to_version
    last_safe_manifest = history.last_safe_manifest
    rollback_to_last_safe = history.rollback_to_last_safe
    fork = history.fork
    history = history.history
    checkpoint_async = checkpoints.checkpoint_async
    ticket = checkpoints.ticket
    wait_for = checkpoints.wait_for
    load_state_with_consistency = checkpoints.load_state_with_consistency
    merge = histories.merge
    create_manifest = segments.create_manifest
    get_manifest = segments.get_manifest
    load_workflow_config = segments.load_workflow_config
    load_segment_manifest = segments.load_segment_manifest
    verify_segment_config = segments.verify_segment_config
    inject_dynamic_segment = segments.inject_dynamic_segment
    tag = workflows.tag
    untag = workflows.untag
    tags = workflows.tags
    pin = workflows.pin
    unpin = workflows.unpin
    pins = workflows.pins
    decide = workflows.decide
    decisions = workflows.decisions
    list_workflows = workflows.list_workflows
    get_workflow = workflows.get_workflow
    set_workflow = workflows.set_workflow
    branches = workflows.branches
    children = workflows.children
    set_retention = removal.set_retention
    get_retention = removal.get_retention
    expire = removal.expire
    expire_all = removal.expire_all
    delete = removal.delete
    undelete = removal.undelete
    deleted = removal.deleted

    def __init__(
        self,
        context: Context,
        commits: Commits,
        place_segment: PlaceSegment | None = None,
    ) -> None:
        self._context = context
        self._catalog = context.catalog
        self._tenant = context.tenant
        self._blocks = context.blocks
        self._trees = context.trees
        self._clock = context.clock
        self._commits = commits
        self._place_segment = place_segment
        self._lists: dict[BlockId, SegmentList] = {}

    def _row(self, manifest_id: str, owner_id: str | None) -> Version:
        manifest = parse_block_id(manifest_id)
        row = self._catalog.manifest(self._tenant, manifest)
        if row is not None and row.key.owner.startswith(ASIDE) and not removal.is_inherited(self, row):
            row = None  # guard: deleted.id
        elif row is None:
            gone = self._catalog.expired(self._tenant, manifest)
            if gone is not None and owner_id in (None, gone.key.owner) and not gone.key.owner.startswith(ASIDE):
                raise expired(gone)
        if row is None or (owner_id is not None and row.owner_id != owner_id):
            raise NotFound(f"there is no manifest {manifest_id}", manifest=manifest_id)
        return row

    def _version_row(self, key: BranchKey, version: int) -> Version:
        check_version(version)
        rows = self._catalog.history(self._tenant, key, before_version=version + 1, limit=1)
        if not rows or rows[0].version != version:
            gone = self._catalog.expired_version(self._tenant, key, version)
            if gone is not None:
                raise expired(gone)
            newest = self._commits.head(key).version
            raise NotFound(f"{place(key)} has no version {version}", hint=f"its newest is {newest}", version=version)
        return rows[0]
