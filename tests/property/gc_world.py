"""A small store in which everything that can happen to blocks happens in an order that a seed chooses, one step at a
time: saves with shared parts, stalled writers, forks, merges, expiry, tags, payloads, archives, checkpoints, versions
of entities, runs that go on later, and passes that are interrupted, doubled, overtaken and abandoned. After it,
everything must read back, and two passes must leave nothing else."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from analemma import App, Flow, Tenant
from analemma.errors import Conflict, Denied, Expired, Invalid, NotFound
from analemma.testing import failpoints

OWNER = "ann"
BRANCHES = ("main", "side")
PLACE: dict[str, Any] = {"owner_id": OWNER, "workflow_id": "w"}
EXPECTED = (Conflict, Expired, NotFound, Invalid, Denied)
"""How a verb may refuse: somebody was first, or what it names is gone or not there yet."""

SETTINGS: dict[str, Any] = {
    "pack_threshold_bytes": 2000,
    "cache_bytes": 0,
    "tenant": "interleavings",
    "gc_lease_s": 10,
    "gc_object_delay_s": 0,
    "gc_upload_age_s": 86_400,
    "gc_session_idle_s": 31_536_000,
    # A pass that finds sessions too old is a year ahead: leases that nobody used are not to end by that.
    "payload_lease_s": 315_360_000,
    "archive_format": "blocks",
    "archive_gc_delay_s": 0,
}
MINUTE_US = 60 * 1_000_000
DAY_US = 86_400 * 1_000_000


def text(number: int) -> str:
    """Large enough to be a block of its own; few of them, so that versions share them."""
    return "".join(hashlib.sha256(b"%d %d" % (number, line)).hexdigest() for line in range(36))


TEXTS = [text(number) for number in range(4)]


def _line(book: int, chapter: int, line: int) -> Any:
    words = hashlib.sha256(b"%d %d %d" % (book, chapter, line)).hexdigest()
    return {"words": words, "picture": text(1000 * book + line)} if line % 100 == 99 else words


def book(number: int) -> dict[str, Any]:
    """About 150 KB in which links lead further, level by level: chapters in trees of their own, with lists that take
    several nodes, and texts below those."""
    return {
        f"chapter {chapter}": {
            "lines": [_line(number, chapter, line) for line in range(400)],
            "notes": [{"text": TEXTS[(number + chapter) % 4]}, {"text": text(100 * number + chapter)}],
        }
        for chapter in range(4)
    }


LONG_ANSWER = [text(number) for number in range(10, 14)]
"""So large that what came of an effect is kept apart from its row."""
BOOKS = [book(number) for number in range(2)]

_PART: dict[str, Any] = {"version": "1.0.0", "status": "ACTIVE", "entityType": "PART"}
CONTRACTS: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.part",
        **_PART,
        "fields": [{"name": "unused", "type": "string"}],
        "additionalFields": "keep",
    },
    {
        "kind": "RULESET",
        "id": "ruleset.part",
        **_PART,
        "slices": [{"type": name, "buildRules": [{"type": "PassThrough", "fields": [name.lower()]}]} for name in "ABC"],
    },
]


class Clock:
    """What the collectors of a store go by. Each pass begins when the lease of the one before has run out."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def next_pass(self) -> Callable[[object], int]:
        self.ahead_us += MINUTE_US
        return self._clock(self.ahead_us)

    def after_days(self, days: int) -> Callable[[object], int]:
        return self._clock(self.ahead_us + days * DAY_US)

    def _clock(self, ahead_us: int) -> Callable[[object], int]:
        return lambda _: time.time_ns() // 1000 + ahead_us


class Pass:
    """A run of the collector that stands still after each of its steps; the first of them is that it has the lease."""

    def __init__(self, run: Callable[[Callable[[str, int], None]], Any]) -> None:
        self._run = run
        self._mine = threading.Semaphore(0)
        self._theirs = threading.Semaphore(0)
        self._left = 0
        self._given_up = False
        self._stages: list[str] = []
        self._error: BaseException | None = None
        self.report: Any = None
        self._thread = threading.Thread(target=self._go, daemon=True)

    def start(self) -> None:
        """Take the lease."""
        self._left = 1
        failpoints.arm("gc.after_lease", lambda: self._stand("lease"))
        self._thread.start()
        self._theirs.acquire()
        failpoints.arm(None)

    def advance(self, most: int | None = None) -> list[str]:
        """So many steps more, or all that are left; which they were."""
        if self.report is not None:
            return []
        self._stages = []
        self._left = most or 1_000_000
        self._mine.release()
        self._theirs.acquire()
        if self._error is not None:
            raise self._error
        return self._stages

    def give_up(self) -> None:
        """It ends where it stands."""
        if self._thread.is_alive():
            self._given_up = True
            self._mine.release()
            self._thread.join()

    def _go(self) -> None:
        try:
            self.report = self._run(lambda stage, _: self._stand(stage))
        except BaseException as exc:
            self._error = exc
        finally:
            self._theirs.release()

    def _stand(self, stage: str) -> None:
        self._stages.append(stage)
        self._left -= 1
        if self._left == 0:
            self._theirs.release()
            self._mine.acquire()
            if self._given_up:
                raise _GivenUp


class _GivenUp(BaseException):
    """Why a pass ends in the middle."""


class World:
    """One tenant of a store, and everybody who works on it. `reader` is another opener, who has read nothing yet."""

    def __init__(self, app: App, reader: App, clock: Clock, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.app = app
        self.name = f"seed{seed}"
        self.tenant: Tenant = app.tenant(self.name)
        self.reader: Tenant = reader.tenant(self.name)
        self.kernel = self.tenant.kernel
        self.clock = clock
        self.folder = folder / self.name
        self.has_books = self.random.random() < 0.08
        self.passes: list[Pass] = []
        self.dead_passes: list[Pass] = []
        self.stalled: list[tuple[ExitStack, failpoints.Paused[Any]]] = []
        self.held: list[tuple[ExitStack, failpoints.Paused[Any]]] = []
        self.sent: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        """By execution that is not over: what was sent, and the value in it."""
        self.executions = ["run 0", "run 1"]
        self.archiving: dict[str, tuple[ExitStack, failpoints.Paused[Any], str]] = {}
        self.archived: dict[str, str] = {}
        self.entity_versions: set[tuple[str, str]] = set()
        self.runs: dict[str, Any] = {}
        """By execution: what its state is to be in the end."""
        self.flow: Flow | None = None
        self.happened: Counter[str] = Counter()
        self._leave_garbage()

    def _leave_garbage(self) -> None:
        """Blocks that writers are going to emit lie around. Mostly they are doomed: the next pass may delete them."""
        value: dict[str, Any] = {"a": TEXTS[1], "b": [1, {"in": TEXTS[2]}, TEXTS[3]], "leased": TEXTS[0]}
        if self.has_books:
            value["book"] = BOOKS[0]
        self.tenant.payloads.dehydrate(value, execution_id="before", force_offload_fields=list(value), **PLACE)
        self.tenant.payloads.release(execution_id="before", **PLACE)
        if self.random.random() < 0.75:
            self.finish_pass()
        self.happened.clear()

    def play(self, steps: int, *, may_hold_locks: bool = False) -> None:
        """So many steps. With `may_hold_locks`, a transaction may stay open while the collector goes on."""
        collector: list[tuple[int, Callable[[], object]]] = [
            (3, self.begin_pass),
            (9, self.advance_pass),
            (2, self.finish_pass),
            (1, self.crash_pass),
        ]
        subjects: list[list[tuple[int, Callable[[], object]]]] = [
            [(4, self.save), (3, self.stall), (3, self.wake), (2, self.collect_uploads), (1, self.drop_field)],
            [
                (4, self.save),
                (1, self.roll_back),
                (1, self.fork),
                (1, self.merge),
                (2, self.expire),
                (1, self.tag),
                (1, self.untag),
            ],
            [(3, self.send), (2, self.release), (1, self.checkpoint), (2, self.save), (1, self.expire)],
            [(4, self.overtake), (3, self.save), (1, self.release), (1, self.drop_field), (1, self.expire)],
            [(5, self.ingest), (5, self.compile), (1, self.save), (1, self.expire), (1, self.collect_uploads)],
            [(3, self.begin_archive), (2, self.end_archive), (3, self.finish_pass), (1, self.save)],
            [(3, self.begin_run), (4, self.resume_run), (1, self.save), (1, self.expire)],
        ]
        # Mostly one subject, so that the few steps have something to do with each other; sometimes all of them.
        everything = [action for each in subjects for action in each] + [(1, self.give_sessions_up)]
        turns = [*subjects[:5] * 3, *subjects[5:], *[everything] * 3]
        actions = turns[self.seed % len(turns)] + collector
        if may_hold_locks:
            actions += [(2, self.hold_transaction), (2, self.end_transaction)]
        for _ in range(steps):
            action = self.random.choices([each for _, each in actions], [weight for weight, _ in actions])[0]
            if self.held and action not in (
                self.advance_pass,
                self.finish_pass,
                self.begin_pass,
                self.end_transaction,
                self.crash_pass,
            ):
                continue  # what may wait for an open transaction would wait for ever: there is only one of us
            try:
                action()
            except EXPECTED:
                self.happened["refused"] += 1
            else:
                self.happened[action.__name__] += 1
        while self.held:
            try:
                self.end_transaction()
            except EXPECTED:
                self.happened["refused"] += 1

    def close(self) -> None:
        """Let go of everybody who still stands somewhere."""
        for each in self.passes + self.dead_passes:
            each.give_up()
        for stack, _ in self.stalled + self.held:
            stack.close()
        for archiving, *_ in self.archiving.values():
            archiving.close()
        self.tenant.checkpoints.close(0)
        shutil.rmtree(self.folder, ignore_errors=True)

    # Writers.

    def branch(self) -> str:
        return self.random.choice(BRANCHES)

    def value(self) -> Any:
        texts = self.random.sample(TEXTS, 2)
        if self.has_books and self.random.random() < 0.5:
            return self.random.choice([BOOKS[0], {**BOOKS[1], "more": texts[0]}])
        return self.random.choice([texts[0], {"deep": texts[0]}, [1, {"in": texts[0]}, texts[1]], self.random.random()])

    def save(self) -> None:
        branch = self.branch()
        self.kernel.save_state_delta({self.random.choice("abc"): self.value()}, **PLACE, branch=branch)

    def drop_field(self) -> None:
        self.kernel.save_state_delta({}, deleted=[self.random.choice("abc")], **PLACE)

    def stall(self) -> None:
        """Everything is ready for the commit, and the writer falls asleep. Mostly nobody else moves its head."""
        state = {"a": self.value(), "b": self.value()}
        workflow = self.random.choice(["w", "late 1", "late 2"])
        save = lambda: self.kernel.save_state_delta(state, owner_id=OWNER, workflow_id=workflow)  # noqa: E731
        stack = ExitStack()
        self.stalled.append((stack, stack.enter_context(failpoints.paused("commit.before_transaction", save))))

    def wake(self) -> None:
        if self.stalled:
            self.happened["woke"] += 1
            self._go_on(*self.stalled.pop(self.random.randrange(len(self.stalled))))

    def hold_transaction(self) -> None:
        """A payload whose blocks and leases are written, and not committed yet: it holds its rows."""
        if self.held:
            return
        value = {"leased": self.value()}
        execution = self.executions[0]
        stack = ExitStack()
        send = lambda: self._send(execution, value)  # noqa: E731
        self.held.append((stack, stack.enter_context(failpoints.paused("payload.before_commit", send))))

    def end_transaction(self) -> None:
        if self.held:
            self._go_on(*self.held.pop())

    def _go_on(self, stack: ExitStack, held: failpoints.Paused[Any]) -> None:
        with stack:
            held.go_on()

    def version(self) -> str:
        versions = self.kernel.history(**PLACE, branch=self.branch())
        return self.random.choice(versions).manifest_id

    def roll_back(self) -> None:
        versions = self.kernel.history(**PLACE)
        self.kernel.rollback_to_version(**PLACE, version=self.random.choice(versions).version)

    def fork(self) -> None:
        name = f"fork{self.random.randrange(3)}"
        to = self.random.choice([{"workflow_id": name}, {"branch": name}])
        self.kernel.fork(self.version(), owner_id=OWNER, **to)

    def merge(self) -> None:
        self.kernel.merge(source="side", **PLACE)

    def expire(self) -> None:
        self.kernel.set_retention(owner_id=OWNER, keep_last=1)
        self.kernel.expire_all()

    def tag(self) -> None:
        self.kernel.tag(self.version(), self.random.choice("xy"), owner_id=OWNER)

    def untag(self) -> None:
        self.kernel.untag(self.random.choice("xy"), **PLACE)

    def checkpoint(self) -> None:
        self.kernel.checkpoint_async({"a": self.value()}, **PLACE)
        self.tenant.checkpoints.drain()

    # Roots that are not versions.

    def send(self) -> None:
        self._send(self.random.choice(self.executions), {"leased": self.value()})

    def _send(self, execution: str, value: dict[str, Any]) -> None:
        sent = self.tenant.payloads.dehydrate(value, execution_id=execution, force_offload_fields=["leased"], **PLACE)
        self.sent.setdefault(execution, []).append((sent, value["leased"]))

    def release(self) -> None:
        ending = self.random.randrange(2)
        self.tenant.payloads.release(execution_id=self.executions[ending], **PLACE)
        self.sent.pop(self.executions[ending], None)
        # What was released is over: what is sent next is of another.
        self.executions[ending] += "'"

    def begin_archive(self) -> None:
        """Files become blocks that nothing leads to yet, which a session keeps; whoever archives falls asleep."""
        content = "".join(self.random.sample(TEXTS, 3))
        workspace = f"home{len(self.archiving) + len(self.archived)}-{self.random.randrange(1_000_000)}"
        volume = self.folder / workspace
        volume.mkdir(parents=True)
        self.tenant.archives.create(workspace, owner_id=OWNER, volume=volume)
        (volume / "file").write_text(content)
        point = self.random.choice(["archive.after_data", "archive.after_verify", "archive.after_meta"])
        archive = lambda: self.tenant.archives.archive(workspace)  # noqa: E731
        stack = ExitStack()
        self.archiving[workspace] = (stack, stack.enter_context(failpoints.paused(point, archive)), content)

    def end_archive(self) -> None:
        """The version of a workspace whose blocks the session wrote before."""
        if self.archiving:
            workspace = self.random.choice(sorted(self.archiving))
            stack, held, content = self.archiving.pop(workspace)
            self._go_on(stack, held)
            self.archived[workspace] = content
            self.happened["archived"] += 1

    def give_sessions_up(self) -> None:
        """Whoever archives is found to have been silent for too long."""
        self._complete(self._pass(self.clock.after_days(366)))

    def begin_run(self) -> None:
        """It fails after an effect, and will fail again in the middle of a group: what came of them is for later."""
        value = self.random.choice([*TEXTS, BOOKS[0]] if self.has_books else TEXTS)
        workflow = f"flow{len(self.runs)}"
        if self.flow is None:
            self.flow = _flow()
        run = self.tenant.flows.run(
            self.flow, {"value": value, "items": [1, 2, 3]}, owner_id=OWNER, workflow_id=workflow
        )
        assert run.error is not None and run.error.message == "asked"
        self.runs[run.execution_id] = (value, 0)

    def resume_run(self) -> None:
        waiting = [execution for execution, (_, times) in self.runs.items() if times < 2]
        if waiting:
            self._resume(self.tenant, self.random.choice(waiting))

    def _resume(self, tenant: Tenant, execution: str) -> None:
        value, times = self.runs[execution]
        run = tenant.flows.resume(execution)
        assert (run.error and run.error.message) == ("answered", None)[times]
        self.runs[execution] = (value, times + 1)
        self.happened["resumed"] += 1
        if times:
            assert run.state["answer"] == value
            assert run.state["answers"] == [[number, value] for number in (1, 2, 3)]

    # The collector.

    def begin_pass(self) -> None:
        """Whoever is at a pass loses the lease to this one, and does not know."""
        if len(self.passes) < 2:
            self.passes.append(self._pass())

    def _pass(self, clock: Callable[[object], int] | None = None, *, expire: bool | None = None) -> Pass:
        collector = self.app.collector(database_clock=clock or self.clock.next_pass())
        if expire is None:
            expire = self.random.random() < 0.1
        begun = Pass(
            lambda progress: collector.run(tenant=self.name, grace_s=0, expire=expire, force=True, progress=progress)
        )
        begun.start()
        return begun

    def advance_pass(self) -> None:
        if self.passes:
            chosen = self.random.choice(self.passes)
            self._advance(chosen, 1)
            if chosen.report is not None:
                self.passes.remove(chosen)

    def finish_pass(self) -> None:
        if not self.passes:
            self.begin_pass()
        self._complete(self.passes.pop())

    def _complete(self, begun: Pass) -> None:
        while begun.report is None:
            self._advance(begun)

    def overtake(self) -> None:
        """A collector stalls somewhere in its pass, and another takes the lease. Somebody writes when that one has its
        snapshot; then the first goes on for a while, and the second to its end."""
        first = self._pass()
        self._advance(first, self.random.randrange(1, 6))
        second = self._pass()
        self._advance(second, self.random.randrange(1, 4))
        try:
            self.random.choice((self.save, self.send))()
        except EXPECTED:
            self.happened["refused"] += 1
        self._advance(first, self.random.randrange(1, 5))
        self._complete(second)
        self.dead_passes.append(first)

    def _advance(self, begun: Pass, most: int | None = None) -> None:
        self.happened.update(begun.advance(most))
        if begun.report is None:
            return
        self.happened["claimed"] += begun.report.claimed
        if not begun.report.ok:
            # Nothing that a pass has yet to read is deleted while it holds the lease: it must have lost it.
            assert all("lost its lease" in each for each in begun.report.problems), begun.report.problems
            self.happened["lease lost"] += 1

    def crash_pass(self) -> None:
        if self.passes:
            self.dead_passes.append(self.passes.pop())

    def collect_uploads(self) -> None:
        """Every upload whose commit has not come looks abandoned, however young."""
        self._complete(self._pass(self.clock.after_days(2)))

    # The pipeline.

    def ingest(self) -> None:
        """A version of one of two entities, below the newest one at times; or that it is no more."""
        entity = self.random.choice("12")
        named = f"{self.random.randrange(1, 1000):013}" if self.random.random() < 0.3 else None
        if self.random.random() < 0.15:
            self.tenant.delete("PART", entity, version=named)
            return
        document = {name: self.value() for name in "abc" if self.random.random() < 0.8}
        self.tenant.ingest("PART", entity, document, version=named)

    def compile(self) -> None:
        entity = self.random.choice("12")
        self.entity_versions.add((entity, self.tenant.compile("PART", entity).version))

    # What must hold.

    def settle(self) -> None:
        """Whoever sleeps goes on to the end."""
        for going_on, waiting in ((self.wake, self.stalled), (self.end_archive, self.archiving)):
            while waiting:
                try:
                    going_on()
                except EXPECTED:
                    self.happened["refused"] += 1

    def check(self) -> None:
        """Everything that was stored and not let go reads back, by somebody who has not read any of it yet."""
        self.settle()
        kernel = self.reader.kernel
        for workflow in _pages(lambda cursor: kernel.list_workflows(owner_id=OWNER, cursor=cursor)):
            for branch in kernel.branches(owner_id=OWNER, workflow_id=workflow):
                report = kernel.verify(owner_id=OWNER, workflow_id=workflow, branch=branch.name)
                assert report.ok, report.problems
        for execution, sent in self.sent.items():
            for message, value in sent:
                assert self.reader.payloads.hydrate(message)["leased"] == value, execution
        for entity, version in sorted(self.entity_versions):
            self.reader.slices("PART", entity, version)
            self.reader.compile("PART", entity, version, mode="full")
        for workspace, content in self.archived.items():
            copy = self.folder / f"copy of {workspace}"
            self.reader.archives.restore(workspace, copy)
            assert (copy / "file").read_text() == content
            shutil.rmtree(copy)
        if self.flow is not None:
            self.reader.flows.register(self.flow)
        for execution, (_, times) in list(self.runs.items()):
            for _ in range(2 - times):
                self._resume(self.reader, execution)

    def check_quiet(self) -> None:
        """Two passes alone leave exactly what is needed."""
        self.settle()
        self.dead_passes += self.passes
        self.passes = []
        for _ in range(2):
            self._complete(self._pass(expire=False))
        self._complete(self._pass(self.clock.after_days(2), expire=False))
        plan = self.app.collector(database_clock=self.clock.after_days(2)).plan(self.name, 0, expire=False)
        (found,) = plan.tenants
        assert (found.total, found.waiting, plan.uploads) == (found.referenced, 0, 0), plan
        self.check()


def _pages(page: Callable[[str | None], Any]) -> Iterator[str]:
    cursor = None
    while True:
        found = page(cursor)
        yield from [each.workflow_id for each in found.items]
        cursor = found.cursor
        if cursor is None:
            return


def _flow() -> Flow:
    """Asks once, then each of its items; fails after the first answer, and in the middle of the items."""
    flow = Flow("asking", checkpoints="node")
    failed: set[tuple[str, str]] = set()

    def fail_once(execution: str, what: str) -> None:
        if (execution, what) not in failed:
            failed.add((execution, what))
            raise ValueError(what)

    @flow.step(reads=["value"], writes=["answer"])
    def ask(state: Any, ctx: Any) -> None:
        state["answer"] = ctx.once("ask", lambda _: [state["value"], LONG_ANSWER])[0]
        fail_once(ctx.execution_id, "asked")

    @flow.step(reads=["item", "value"], writes=["answered"])
    def answer(state: Any, ctx: Any) -> None:
        if state["item"] == 3:
            fail_once(ctx.execution_id, "answered")
        state["answered"] = [state["item"], state["value"]]

    flow.for_each("each", over="items", step=answer, result="answered", into="answers", max_parallel=1)
    return flow
