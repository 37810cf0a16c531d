"""What runs ask of the kernel: versions that are committed together with where a run stands."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from analemma.bag.bag import BagKernel
from analemma.canon.nodes import Block, BlockId
from analemma.canon.pointer import format_pointer
from analemma.canon.trees import Edited, Trees
from analemma.catalog.port import BranchKey, Head, OutboxEvent, RowChange
from analemma.catalog.runs.runs import FencedOut
from analemma.errors import Conflict, Denied, Expired, Invalid, NotFound
from analemma.flows.document import Workflow
from analemma.flows.partitioning import iteration_limit, partition
from analemma.flows.segment_running import ReadyNode, ready_nodes
from analemma.flows.segments import Plan, Segment, plan_of
from analemma.flows.walking import Position
from analemma.flows.working_state import WorkingState
from analemma.state.arguments import CURRENT_HEAD, DeltaUpdate, place
from analemma.state.commits import Proposal
from analemma.state.contents import apply_update
from analemma.state.records import CONFIGURED, FORKED, ROLLED_BACK, Commit, Manifest
from analemma.state.segments import all_segments, make_list, packed_segment, read_segments

CACHED_PLANS: Final = 100
CACHED_S: Final = 300.0

RUN_STATEMENTS: Final = frozenset({"advance_run", "put_run_segment", "move_run"})
"""That find no row where a run is somebody else's."""

Rows = Callable[[BlockId], Sequence[RowChange]]
"""What is written beside a version, once its manifest is known."""


@dataclass(frozen=True, slots=True)
class PreparedWorkflow:
    """A workflow as manifests hold it: built once, used for every run of it."""

    workflow: Workflow
    plan: Plan
    config: BlockId
    segments: BlockId
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """A version that a run stands on: its state, and what it runs."""

    state: WorkingState
    config: BlockId
    """The document."""
    segments: BlockId
    """The list of its segments."""
    source: BlockId
    """A version that has both."""


class ReadyPlan:
    """A plan whose segments were verified, and the nodes of those that were asked for. Safe to share between threads:
    what two of them read at once is the same."""

    def __init__(self, plan: Plan, max_parallel: int | None = None, timeout_s: float | None = None) -> None:
        self.plan = plan
        self.timeout_s = timeout_s
        """How long a run as a whole may take, if the document says."""
        self.max_parallel = max_parallel
        """How many tasks of a group may run at a time, if the document says."""
        self._nodes: dict[str, tuple[ReadyNode, ...]] = {}

    def nodes_of(self, segment: Segment) -> tuple[ReadyNode, ...]:
        """The nodes of a segment, read once."""
        found = self._nodes.get(segment.id)
        if found is None:
            found = self._nodes[segment.id] = ready_nodes(segment)
        return found


@dataclass(frozen=True, slots=True)
class SegmentCommit:
    """What goes with a version that a run makes."""

    execution: str
    segment: int
    rows: Rows
    message: str | None = None
    events: tuple[OutboxEvent, ...] = ()
    last: bool = False
    """Whether the run is over with it."""


class SegmentsInjected(Conflict):
    """A run is not over: a segment was injected behind what was its last."""


class RunKernel(BagKernel):
    """The kernel as runs use it."""

    def __init__(self, *arguments: Any, **parts: Any) -> None:
        super().__init__(*arguments, **parts)
        self._prepared: OrderedDict[str, PreparedWorkflow] = OrderedDict()
        self._plans: OrderedDict[tuple[BlockId, BlockId], tuple[float, ReadyPlan]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def trees(self) -> Trees:
        """Reads this tenant's trees."""
        return self._trees

    def prepare(self, workflow: Workflow) -> PreparedWorkflow:
        """A workflow's document and segments, hashed and ready to be stored."""
        with self._lock:
            known = self._prepared.get(workflow.hash)
            if known is not None:
                self._prepared.move_to_end(workflow.hash)
                return known
        plan = partition(workflow)
        config = self._trees.build(workflow.to_document())
        pieces = [packed_segment(self, entry, number) for number, entry in enumerate(plan.segment_manifest())]
        _, listed = make_list([segment for segment, _, _ in pieces])
        parts = [block for _, inner, outer in pieces for block in (*inner, *outer)]
        made = PreparedWorkflow(workflow, plan, config.root.id, listed[-1].id, (*config.blocks, *parts, *listed))
        with self._lock:
            self._prepared[workflow.hash] = made
            if len(self._prepared) > CACHED_PLANS:
                self._prepared.popitem(last=False)
        return made

    def begin(
        self, key: BranchKey, prepared: PreparedWorkflow, given: DeltaUpdate, execution: str, rows: Rows
    ) -> Standing:
        """The first version of a run: the state that the branch has, with the input applied over it, the document and
        its segments, and the run's row."""

        def propose(head: Head | None) -> Proposal:
            before = None if head is None else self._commits.manifest(head.manifest)
            state = apply_update(self._trees, None if before is None else before.root.id, given)
            return Proposal(
                key,
                Edited(state.root, (*state.blocks, *prepared.blocks)),
                head,
                execution=execution,
                config=prepared.config,
                segments=prepared.segments,
                kind=CONFIGURED,
                facts={"config": prepared.config.hex(), "segments": prepared.segments.hex()},
                rows=rows,
            )

        return self._standing(self._commits.commit_next(key, CURRENT_HEAD, propose))

    def stand_on(self, manifest: BlockId) -> Standing:
        """A version, to go on from; Denied if it does not say what is run."""
        found = self._commits.manifest(manifest)
        if found.config is None or found.segments is None:
            raise Denied(
                f"manifest {manifest.hex()} does not say what is to be run",
                hint="a run begins with a manifest that has a configuration and segments",
                manifest=manifest.hex(),
            )
        return Standing(self._working(manifest, found), found.config, found.segments, manifest)

    def newest(self, key: BranchKey, document: BlockId, own: BlockId) -> Standing:
        """Where a run goes on: the newest version of its branch, with what that runs if it is the run's document, and
        else with what the run's `own` last version has."""
        head = self._commits.head_after_pending(key)
        if head is None:
            raise NotFound(f"there is no {place(key)} any more", hint="its branch was removed")
        mine = self.stand_on(own)
        if mine.config != document:
            raise Denied(
                f"the manifest {own.hex()} is of another document than the run",
                hint="a run goes on with the document that it began with",
                manifest=own.hex(),
            )
        if head.manifest == own:
            return mine
        self._check_life(key, own)
        found = self._commits.manifest(head.manifest)
        state = self._working(head.manifest, found)
        if found.config == document and found.segments is not None:
            return Standing(state, document, found.segments, head.manifest)
        return Standing(state, document, mine.segments, own)

    def with_injected(self, standing: Standing) -> Standing:
        """The same place, with the segments that the newest version of the branch has by now."""
        head = self._catalog.head(self._tenant, standing.state.key)
        if head is None or head.manifest == standing.state.manifest:
            return standing
        found = self._commits.manifest(head.manifest)
        if found.config != standing.config or found.segments in (None, standing.segments):
            return standing
        return replace(standing, segments=found.segments, source=head.manifest)

    def stand_on_state(self, manifest: BlockId, document: BlockId, own: BlockId) -> Standing:
        """The state of a version, to be run with a document: that of the version itself, or of the run's `own`."""
        found = self._commits.manifest(self._row(manifest.hex(), None).id)
        state = self._working(manifest, found)
        if found.config == document and found.segments is not None:
            return Standing(state, document, found.segments, manifest)
        mine = self.stand_on(own)
        return Standing(state, mine.config, mine.segments, own)

    def state_of(self, manifest: BlockId) -> WorkingState:
        """The state of a version, to work on."""
        return self._working(manifest, self._commits.manifest(manifest))

    def version_manifest(self, key: BranchKey, version: int) -> BlockId:
        """Which manifest a version of a branch is."""
        return self._version_row(key, version).id

    def plan(self, standing: Standing) -> ReadyPlan:
        """The segments of a version, each verified against its hash; the newest hundred are kept for five minutes."""
        wanted, now = (standing.config, standing.segments), self._clock.monotonic()
        with self._lock:
            known = self._plans.get(wanted)
            if known is not None and now - known[0] < CACHED_S:
                self._plans.move_to_end(wanted)
                return known[1]
        manifest = standing.state.manifest
        listed = read_segments(self, manifest, standing.segments)
        # Found by their hashes and verified against them: what comes back is what the manifest says.
        configs, document = self._commits.guarded(
            manifest,
            lambda: (
                self._trees.read_many([each.config.id for each in all_segments(self._blocks.fetch, listed)]),
                self._trees.read(standing.config),
            ),
        )
        try:
            workflow = Workflow.model_validate(document)
            plan = plan_of(configs, 1, listed.hash_version)
        except (Invalid, ValueError) as exc:
            raise Denied(
                f"manifest {manifest.hex()} has segments that cannot be run: {exc}",
                hint="run it with a version of the program that knows them",
                manifest=manifest.hex(),
            ) from exc
        limit = workflow.limits.max_iterations or iteration_limit(plan.segments, workflow.by_id)
        made = ReadyPlan(replace(plan, iteration_limit=limit), workflow.limits.max_parallel, workflow.limits.timeout_s)
        with self._lock:
            self._plans[wanted] = (now, made)
            if len(self._plans) > CACHED_PLANS:
                self._plans.popitem(last=False)
        return made

    def check_config(self, standing: Standing, number: int, config: Mapping[str, Any]) -> None:
        """Denied unless this is exactly what a version carries for a segment."""
        if not self.verify_segment_config(config, standing.source.hex(), number):
            raise Denied(
                f"segment {number} is to be run with another configuration than its manifest has",
                hint="nothing was run",
                manifest=standing.state.manifest.hex(),
                segment=number,
            )

    def commit_segment(self, standing: Standing, commit: SegmentCommit) -> Standing:
        """Make what a segment did the newest version, with where the run stands and everything else that belongs to it.

        What others saved meanwhile stays, if it is in other fields; else Conflict. FencedOut if the run is somebody
        else's: then nothing is written."""
        state = standing.state

        def propose(head: Head | None) -> Proposal:
            if head is None:
                raise NotFound(f"there is no {place(state.key)} any more", hint="its branch was removed")
            tree, segments = state.tree(), standing.segments
            if head.manifest != state.manifest:
                self._check_life(state.key, state.manifest)
                found = self._commits.manifest(head.manifest)
                tree = self._rebased(state, found)
                if found.config == standing.config and found.segments not in (None, segments):
                    if commit.last:
                        raise SegmentsInjected("a segment was injected into the run meanwhile", hint="look again")
                    segments = found.segments
            return Proposal(
                state.key,
                tree,
                head,
                bases=() if standing.source == head.manifest else (standing.source,),
                execution=commit.execution,
                segment=commit.segment,
                message=commit.message,
                config=standing.config,
                segments=segments,
                events=commit.events,
                rows=commit.rows,
            )

        return self._standing(self._commit_run(state.key, propose))

    def roll_back(self, target: Standing, version: int, execution: str, rows: Rows) -> Standing:
        """Make the state of an earlier version the newest again, together with a run that goes on from it."""
        state = target.state

        def propose(head: Head | None) -> Proposal:
            self._check_life(state.key, state.manifest)
            return Proposal(
                state.key,
                Edited(state.root, ()),
                head,
                bases=(state.manifest, target.source),
                execution=execution,
                message=f"roll back to version {version}",
                config=target.config,
                segments=target.segments,
                kind=ROLLED_BACK,
                facts={"version": version},
                rows=rows,
            )

        return self._standing(self._commit_run(state.key, propose))

    def fork_run(self, source: Standing, key: BranchKey, execution: str, rows: Rows) -> Standing:
        """Begin a branch, or a workflow, with a version, together with a run that goes on from it there."""
        state = source.state
        if self._commits.head_after_pending(key) is not None:
            raise Conflict(f"{place(key)} exists already", hint="choose another name")
        proposal = Proposal(
            key,
            Edited(state.root, ()),
            None,
            bases=(state.manifest, source.source),
            parent=state.manifest,
            version=1 if key.workflow != state.key.workflow else state.version + 1,
            execution=execution,
            config=source.config,
            segments=source.segments,
            kind=FORKED,
            facts={"from": state.manifest.hex()},
            rows=rows,
        )
        return self._standing(self._commits.commit(proposal))

    def _check_life(self, key: BranchKey, own: BlockId) -> None:
        """NotFound unless a version was made in the life that a branch leads now. One of before, which was deleted, has
        another owner, or no row; after the branch was read, that is."""
        seen = self._catalog.manifest(self._tenant, own) or self._catalog.expired(self._tenant, own)
        if seen is None or seen.key != key:  # guard: run.life
            raise NotFound(
                f"{place(key)} was deleted since",
                hint="have it back first, if its name was not used again",
                manifest=own.hex(),
            )

    def _commit_run(self, key: BranchKey, propose: Callable[[Head | None], Proposal]) -> Commit:
        try:
            return self._commits.commit_next(key, CURRENT_HEAD, propose)
        except Conflict as exc:
            if exc.facts.get("statement") in RUN_STATEMENTS:
                raise FencedOut(
                    "the run is somebody else's by now, or was cancelled", hint="look at where it stands"
                ) from exc
            raise

    def _rebased(self, state: WorkingState, found: Manifest) -> Edited:
        """What a segment changed, on top of what others saved since it began."""
        if not state.is_changed:
            return Edited(found.root, ())
        try:
            theirs = self._trees.diff(state.base.id, found.root.id)
        except Expired as exc:
            raise Conflict("the version that the segment began with has expired", hint="resume the run") from exc
        mine = state.changes()
        fields = {operation.path[:1] for operation in theirs}
        for operation in mine:
            if operation.path[:1] in fields or () in fields:
                raise Conflict(
                    f"{format_pointer(operation.path[:1])} was changed beside the run while a segment changed it too",
                    hint="decide which is right, and resume the run",
                    pointer=format_pointer(operation.path),
                )
        return apply_update(self._trees, found.root.id, DeltaUpdate(tuple(mine)))

    def _standing(self, commit: Commit) -> Standing:
        manifest = commit.receipt.manifest
        found = self._commits.manifest(manifest)
        assert found.config is not None and found.segments is not None
        return Standing(self._working(manifest, found), found.config, found.segments, manifest)

    def _working(self, manifest: BlockId, found: Manifest) -> WorkingState:
        return WorkingState(
            self._trees, self._commits.guarded, key=found.key, manifest=manifest, version=found.version, root=found.root
        )


def check_place(plan: Plan, position: Position) -> None:
    """Denied if a plan does not have the place where a run stands."""
    named = {*position.marked, *(loop for loop, _ in position.iterations)}
    named |= set() if position.at is None else {position.at}
    missing = sorted(named - plan.numbers.keys())
    if missing:
        raise Denied(
            f"the run stands at {missing[0]}, which its manifest does not have",
            hint="the manifest is not that of the run",
            segment=missing[0],
        )
