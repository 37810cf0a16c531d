"""A small store in which everything that can happen to blocks happens in an order that a seed chooses, one transaction
at a time: saves with shared parts, stalled writers, forks, merges, expiry, tags, leases, sessions, checkpoints,
versions of entities, and passes that are interrupted, doubled, overtaken and abandoned. After it, every root must be
whole, and two passes must leave nothing else."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

from analemma import App, BlockId, BranchKey, Proposal, Tenant, load_contracts
from analemma.canon.nodes import Block, block_links
from analemma.canon.tree import Edited
from analemma.catalog.bodies import emit_blocks
from analemma.catalog.collecting import Collecting, LeaseLost, Pass
from analemma.catalog.collecting_sessions import SessionId, Sessions
from analemma.catalog.collecting_uploads import CollectingUploads
from analemma.catalog.engine import Transaction
from analemma.catalog.payloads import Lease, LeaseId, LeaseRequest
from analemma.catalog.port import BlockRow, CommitRequest, UploadId
from analemma.errors import Conflict, Corrupt, Denied, Expired, Invalid, NotFound
from analemma.gc.roots import ROOTS
from analemma.gc.sweeping import Step, Sweep
from analemma.gc.uploads import UploadCollector
from analemma.slicing.tsid import Version, format_version
from tests.property.pipeline_world import open_pipeline

OWNER = "ann"
BRANCHES = ("main", "side")
EXPECTED = (Conflict, Expired, NotFound, Invalid, Denied)
"""How a verb may refuse: somebody was first, or what it names is gone or not there yet."""


def text(number: int) -> str:
    """Large enough to be a block of its own; few of them, so that versions share them."""
    return "".join(hashlib.sha256(b"%d %d" % (number, line)).hexdigest() for line in range(36))


TEXTS = [text(number) for number in range(4)]

_PART: dict[str, Any] = {"version": "1.0.0", "status": "ACTIVE", "entityType": "PART"}
CONTRACTS = load_contracts(
    [
        {"kind": "ENTITY_SCHEMA", "id": "entity.part", **_PART, "fields": [{"name": "unused", "type": "string"}]},
        {
            "kind": "RULESET",
            "id": "ruleset.part",
            **_PART,
            "slices": [
                {"type": name, "buildRules": [{"type": "PassThrough", "fields": [name.lower()]}]} for name in "ABC"
            ],
        },
    ]
)


class World:
    """One tenant of a store, and everybody who works on it."""

    def __init__(self, app: App, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.app = app
        self.tenant: Tenant = app.tenant(name)
        self.kernel = self.tenant.kernel
        self.collecting = Collecting(app.catalog.engine)
        self.sessions = Sessions(app.catalog.engine)
        assert app.objects is not None
        self.uploads = UploadCollector(CollectingUploads(app.catalog.engine), app.objects, age_s=-1, delay_s=0)
        self.passes: list[Iterator[Step]] = []
        self.stalled: list[CommitRequest] = []
        self.open_commits: list[tuple[ExitStack, Transaction]] = []
        self.leases = 0
        self.runs = ["run 0", "run 1"]
        self.open_sessions: list[tuple[SessionId, Edited, bool]] = []
        self.pipeline = open_pipeline(app, name, CONTRACTS)
        self.happened: Counter[str] = Counter()
        self.used: set[UploadId] = set()
        self._leave_garbage()

    def _leave_garbage(self) -> None:
        """Blocks that writers are going to emit lie around. Mostly they are doomed: the next pass may delete them."""
        for value in ({"leased": TEXTS[0]}, {"a": TEXTS[1], "b": [1, {"in": TEXTS[2]}, TEXTS[3]]}):
            tree = self.tenant.trees.build(value)
            rows = [self._inline(block) for block in sorted(tree.blocks)]
            self.app.catalog.engine.write(lambda tx, rows=rows: self._emit(tx, rows))  # type: ignore[misc]
        if self.random.random() < 0.75:
            self.begin_pass()
            self.finish_pass()
        self.happened.clear()

    def play(self, steps: int, *, may_hold_locks: bool = False) -> None:
        """So many steps. With `may_hold_locks`, commits may stay open while the collector goes on."""
        collector: list[tuple[int, Callable[[], object]]] = [
            (3, self.begin_pass),
            (9, self.advance_pass),
            (2, self.finish_pass),
            (1, self.crash_pass),
        ]
        subjects: list[list[tuple[int, Callable[[], object]]]] = [
            [(6, self.save), (2, self.stall), (2, self.wake), (1, self.collect_uploads), (1, self.drop_field)],
            [(3, self.session), (3, self.session_write), (3, self.session_commit), (1, self.save)],
            [
                (4, self.save),
                (1, self.roll_back),
                (1, self.fork),
                (1, self.merge),
                (2, self.expire),
                (1, self.tag),
                (1, self.untag),
            ],
            [(3, self.lease), (2, self.release), (1, self.checkpoint), (2, self.save), (1, self.expire)],
            [(4, self.overtake), (3, self.save), (1, self.release), (1, self.drop_field), (1, self.expire)],
            [(5, self.ingest), (5, self.compile), (1, self.save), (1, self.expire), (1, self.collect_uploads)],
        ]
        # Mostly one subject, so that the few steps have something to do with each other; sometimes all of them.
        subject = self.random.randrange(8)
        everything = [action for each in subjects for action in each] + [(1, self.abandon_session)]
        actions = (subjects[subject] if subject < len(subjects) else everything) + collector
        if may_hold_locks:
            actions += [(2, self.hold_commit), (2, self.end_commit)]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            action = self.random.choices(actions, weights)[0][1]
            if self.open_commits and action not in (
                self.advance_pass,
                self.finish_pass,
                self.begin_pass,
                self.end_commit,
                self.crash_pass,
            ):
                continue  # what may wait for an open commit would wait for ever: there is only one of us
            try:
                action()
            except EXPECTED:
                self.happened["refused"] += 1
            else:
                self.happened[action.__name__] += 1
        while self.open_commits:
            self.end_commit()

    # Writers.

    def key(self) -> BranchKey:
        return BranchKey(OWNER, "w", self.random.choice(BRANCHES))

    def value(self) -> Any:
        texts = self.random.sample(TEXTS, 2)
        return self.random.choice([texts[0], {"deep": texts[0]}, [1, {"in": texts[0]}, texts[1]], self.random.random()])

    def save(self) -> None:
        key = self.key()
        self.kernel.save_state_delta(
            {self.random.choice("abc"): self.value()}, owner_id=OWNER, workflow_id="w", branch=key.branch
        )

    def drop_field(self) -> None:
        self.kernel.save_state_delta({}, deleted=[self.random.choice("abc")], owner_id=OWNER, workflow_id="w")

    def draft(self) -> CommitRequest:
        key = self.key()
        head = self.tenant.head(key)
        tree = self.tenant.trees.build({"a": self.value(), "b": self.value()})
        return self.tenant.committer.draft(Proposal(key, tree, head)).request

    def stall(self) -> None:
        """Everything is ready for the commit, and the writer falls asleep."""
        self.stalled.append(self.draft())

    def wake(self) -> None:
        if self.stalled:
            self.app.catalog.commit(self.stalled.pop(self.random.randrange(len(self.stalled))))
            self.happened["woke"] += 1

    def hold_commit(self) -> None:
        """A commit that has written everything and is not over yet: it holds its rows."""
        if self.open_commits:
            return
        stack = ExitStack()
        request = self.draft()
        tx = stack.enter_context(self.app.catalog.engine.transaction(write=True))
        try:
            self.app.catalog.commit_in(tx, request)
        except EXPECTED as exc:
            stack.__exit__(type(exc), exc, None)
            raise
        self.open_commits.append((stack, tx))

    def end_commit(self) -> None:
        if self.open_commits:
            stack, _ = self.open_commits.pop()
            if self.random.random() < 0.8:
                stack.close()
            else:
                stack.__exit__(_Undone, _Undone(), None)

    def version(self) -> str:
        key = self.key()
        versions = self.kernel.history(owner_id=OWNER, workflow_id="w", branch=key.branch)
        return self.random.choice(versions).manifest_id

    def roll_back(self) -> None:
        versions = self.kernel.history(owner_id=OWNER, workflow_id="w")
        self.kernel.rollback_to_version(owner_id=OWNER, workflow_id="w", version=self.random.choice(versions).version)

    def fork(self) -> None:
        name = f"fork{self.random.randrange(3)}"
        self.kernel.fork(
            self.version(), owner_id=OWNER, **self.random.choice([{"workflow_id": name}, {"branch": name}])
        )

    def merge(self) -> None:
        self.kernel.merge(source="side", owner_id=OWNER, workflow_id="w")

    def expire(self) -> None:
        self.kernel.set_retention(owner_id=OWNER, keep_last=1)
        self.kernel.expire_all()

    def tag(self) -> None:
        self.kernel.tag(self.version(), self.random.choice("xy"), owner_id=OWNER)

    def untag(self) -> None:
        self.kernel.untag(self.random.choice("xy"), owner_id=OWNER, workflow_id="w")

    def checkpoint(self) -> None:
        self.kernel.checkpoint_async({"a": self.value()}, owner_id=OWNER, workflow_id="w")
        self.tenant.checkpoints.drain()

    # Roots that are not versions.

    def lease(self) -> None:
        tree = self.tenant.trees.build({"leased": self.value()})
        self.leases += 1
        prepared = self.tenant.blocks.prepare(tree.blocks, BranchKey(OWNER, "w"), None)
        lease = Lease(
            LeaseId(self.random.randbytes(16)), OWNER, "w", self.runs[self.leases % 2], tree.root.id, 1, None, 1
        )
        self.app.catalog.add_leases(LeaseRequest(self.tenant.id, (lease,), prepared.rows, prepared.uploads))

    def release(self) -> None:
        ending = self.random.randrange(2)
        self.app.catalog.release_leases(self.tenant.id, OWNER, "w", self.runs[ending])
        # What was released is over: the next leases are of another.
        self.runs[ending] += "'"

    def session(self) -> None:
        session = SessionId(self.random.randbytes(16))
        self.sessions.open(self.tenant.id, session)
        self.open_sessions.append((session, self.tenant.trees.build({"session": self.value()}), False))

    def session_write(self) -> None:
        """The session's blocks, which nothing leads to yet."""
        if not self.open_sessions:
            self.session()
        session, tree, _ = self.open_sessions.pop(0)
        rows = [self._inline(block) for block in sorted(tree.blocks)]

        def move(tx: Transaction) -> None:
            self.sessions.touch(tx, self.tenant.id, session)
            self._emit(tx, rows)

        self.app.catalog.engine.write(move)
        self.open_sessions.append((session, tree, True))

    def session_commit(self) -> None:
        """A version whose blocks the session wrote before: it emits nothing but its manifest."""
        ready = [each for each in self.open_sessions if each[2]]
        if not ready:
            return
        self.open_sessions.remove(ready[0])
        session, tree, _ = ready[0]
        key = BranchKey(OWNER, "imported", session.hex())
        request = self.tenant.committer.draft(Proposal(key, Edited(tree.root, ()), None)).request

        def move(tx: Transaction) -> None:
            self.sessions.close(tx, self.tenant.id, session)
            self.app.catalog.commit_in(tx, request)

        self.app.catalog.engine.write(move)
        self.happened["session committed"] += 1

    def abandon_session(self) -> None:
        self.sessions.abandon(-1)

    def _inline(self, block: Block) -> BlockRow:
        return BlockRow(block.id, len(block.data), 0, block.data, links=b"" if block.links else None)

    def _emit(self, tx: Transaction, rows: list[BlockRow]) -> None:
        emit_blocks(tx, self.tenant.id, rows)

    # The collector.

    def begin_pass(self) -> None:
        """Whoever is at a pass loses the lease to this one, and does not know."""
        if len(self.passes) < 2:
            self.passes.append(self._pass())

    def _pass(self) -> Iterator[Step]:
        begun: Pass = self.collecting.begin("me", 300, store_id=self.app.catalog.store_id())
        return self._steps(begun)

    def _steps(self, begun: Pass) -> Iterator[Step]:
        read = self.tenant.blocks.read_uncached
        try:
            yield from Sweep(self.collecting, begun, self.tenant.id, read, force=True, batch=2).steps()
        except Corrupt:
            # Nothing that a pass has yet to read is deleted while it holds the lease: so this one must have lost it.
            begun.renew()
            raise

    def advance_pass(self) -> None:
        if self.passes:
            chosen = self.random.choice(self.passes)
            if not self._advance(chosen, 1):
                self.passes.remove(chosen)

    def finish_pass(self) -> None:
        if not self.passes:
            self.begin_pass()
        if self.passes:
            self._advance(self.passes.pop())

    def overtake(self) -> None:
        """A collector stalls somewhere in its pass, and another takes the lease. Somebody writes when that one has its
        snapshot; then the first goes on for a while, and the second to its end."""
        first = self._pass()
        self._advance(first, self.random.randrange(1, 7))
        second = self._pass()
        self._advance(second, self.random.randrange(1, 4))
        try:
            self.random.choice((self.save, self.lease))()
        except EXPECTED:
            self.happened["refused"] += 1
        self._advance(first, self.random.randrange(1, 5))
        self._advance(second)

    def _advance(self, steps: Iterator[Step], most: int | None = None) -> bool:
        """So many steps of a pass, or all that are left; whether there may be more."""
        try:
            stages = [stage for stage, _ in islice(steps, most)]
        except LeaseLost:
            self.happened["lease lost"] += 1
            return False
        self.happened.update(stages)
        return len(stages) == most

    def crash_pass(self) -> None:
        if self.passes:
            self.passes.pop()

    def collect_uploads(self) -> None:
        """Every upload whose commit has not come looks abandoned, however young."""
        self.happened["claimed"] += self.uploads.claim([self.tenant.id], None)
        self.uploads.delete(0)

    # The pipeline.

    def ingest(self) -> None:
        """A version of one of two entities, below the newest one at times; or that it is no more."""
        entity = self.random.choice("12")
        named = format_version(Version(self.random.randrange(1, 1000))) if self.random.random() < 0.3 else None
        if self.random.random() < 0.15:
            self.pipeline.ingest.delete("PART", entity, version=named)
            return
        document = {name: self.value() for name in "abc" if self.random.random() < 0.8}
        self.pipeline.ingest.execute("PART", entity, document, version=named)

    def compile(self) -> None:
        self.pipeline.slicing.execute_auto("PART", self.random.choice("12"))

    # What must hold.

    def check(self) -> set[BlockId]:
        """Every block that a root leads to is stored, and every object that a block lies in exists; these blocks. And
        no doom waits for a block to be stored."""
        collecting = Collecting(self.app.catalog.engine)
        doomed = {block for block, _ in collecting.scan_doomed(self.tenant.id)}
        assert doomed <= set(collecting.scan(self.tenant.id))
        reachable = self.reachable()
        rows = self.app.catalog.read_blocks(self.tenant.id, list(reachable))
        missing = [block.hex()[:8] for block in reachable if block not in rows]
        assert not missing, f"lost {missing}"
        assert self.app.objects is not None
        self.used = {row.upload for row in rows.values() if row.upload is not None}
        for upload in self.used:
            found = self.app.catalog.upload(self.tenant.id, upload)
            assert found is not None and found.state == "ready"
            assert self.app.objects.head(found.object_key) is not None, f"lost object {found.object_key}"
        return reachable

    def check_quiet(self) -> None:
        """Two passes alone leave exactly what roots lead to, and the objects in which that lies."""
        self.passes.clear()
        self.open_sessions.clear()
        self.sessions.abandon(-1)
        for _ in range(2):
            self.begin_pass()
            self.finish_pass()
        self.collect_uploads()
        assert set(self.collecting.scan(self.tenant.id)) == self.check()
        assert list(self.collecting.scan_doomed(self.tenant.id)) == []
        rows = self.app.catalog.engine.all("ready_uploads", tenant=self.tenant.id, after=b"", limit=1000)
        assert {row[0] for row in rows} == self.used

    def reachable(self) -> set[BlockId]:
        """By a walk of its own, over every block's bytes."""
        waiting = self.roots()
        seen = set(waiting)
        while waiting:
            found = self.tenant.blocks.audit(waiting)[0]
            waiting = []
            for data in found.values():
                for target in block_links(data):
                    if target not in seen:
                        seen.add(target)
                        waiting.append(target)
        return seen

    def roots(self) -> list[BlockId]:
        engine = self.app.catalog.engine
        tables = [
            engine.all(each.statement, tenant=self.tenant.id, after=each.start, limit=1_000_000) for each in ROOTS
        ]
        return [BlockId(row[1]) for rows in tables for row in rows if row[1] is not None]


class _Undone(Exception):
    """Why a commit was rolled back."""
