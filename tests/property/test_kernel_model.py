"""The kernel against a plain dict: random saves, edits, conflicts, rollbacks, forks, second writers and reopened
stores."""

from __future__ import annotations

import itertools
import pickle
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from analemma import App, Commit
from analemma.errors import Conflict, Expired, HeadMoved, Invalid, NotFound
from analemma.testing.strategies import scalars, shown
from tests.depth import count
from tests.stores import Store

OWNERS = itertools.count(1)
FIELDS = ["a", "b", "", "/slash", "~", "list", "large"]
LARGE = [{"n": number, "text": "word " * 12} for number in range(300)]


def copied(value: Any) -> Any:
    """What `copy.deepcopy` makes of plain data, in a tenth of the time."""
    return pickle.loads(pickle.dumps(value))


values = st.one_of(
    scalars(),
    st.lists(scalars(), max_size=4),
    st.dictionaries(st.sampled_from(["x", "y", ""]), scalars(), max_size=3),
    st.just(LARGE).map(copied),
)


def pointer(field: str) -> str:
    return "/" + field.replace("~", "~0").replace("/", "~1")


class Line:
    """What one branch should look like: the state of each version, by number, and the commit that made it."""

    def __init__(self, workflow: str, branch: str) -> None:
        self.workflow = workflow
        self.branch = branch
        self.states: dict[int, dict[str, Any]] = {}
        self.shown: dict[int, str] = {}
        """Each state in the form in which states are compared, made once: they are compared after every step."""
        self.commits: dict[int, Commit] = {}
        self.held: set[int] = set()
        """Tagged or pinned, so never expired."""
        self.expired: set[int] = set()
        self.decided: dict[int, str] = {}

    @property
    def there(self) -> list[int]:
        """The versions that can still be read."""
        return sorted(set(self.states) - self.expired)

    @property
    def newest(self) -> int:
        return max(self.states)

    def add(self, commit: Commit, state: dict[str, Any]) -> None:
        assert commit.version not in self.states, "a version was given twice"
        assert not self.states or commit.version == self.newest + 1, "a version was skipped"
        self.states[commit.version] = copied(state)
        self.shown[commit.version] = shown(state)
        self.commits[commit.version] = commit


class KernelMachine(RuleBasedStateMachine):
    """Every rule does the same to the kernel and to the model."""

    store: Store
    lines = Bundle("lines")

    def __init__(self) -> None:
        super().__init__()
        self.owner = f"owner {next(OWNERS)}"
        self.apps: list[App] = [self.store.open(), self.store.open()]
        self.names = itertools.count(1)
        self.known: list[Line] = []
        self.wandering: dict[str, tuple[Line, int]] = {}
        """Where each workflow's tag is that moves from version to version and from branch to branch."""

    def teardown(self) -> None:
        try:
            for line in self.known:
                report = self.apps[0].kernel.verify(
                    workflow_id=line.workflow,
                    owner_id=self.owner,
                    branch=line.branch,
                    expect=line.commits[line.newest].receipt,
                )
                assert report.problems == []
        finally:
            for app in self.apps:
                app.close()

    def save(self, line: Line, writer: int, delta: dict[str, Any], **options: Any) -> Commit:
        kernel = self.apps[writer].kernel
        return kernel.save_state_delta(
            delta, workflow_id=line.workflow, owner_id=self.owner, branch=line.branch, **options
        )

    @initialize(target=lines, value=values)
    def first(self, value: Any) -> Line:
        return self._new_workflow(value)

    @rule(target=lines, value=values)
    def begin(self, value: Any) -> Line:
        return self._new_workflow(value)

    def _new_workflow(self, value: Any) -> Line:
        line = Line(f"workflow {next(self.names)}", "main")
        line.add(self.save(line, 0, {"a": value}, previous_manifest_id=None), {"a": value})
        self.known.append(line)
        return line

    @rule(
        line=lines,
        writer=st.integers(0, 1),
        delta=st.dictionaries(st.sampled_from(FIELDS), values, max_size=3),
        deleted=st.lists(st.sampled_from(FIELDS), max_size=2, unique=True),
        stated=st.booleans(),
    )
    def save_fields(self, line: Line, writer: int, delta: dict[str, Any], deleted: list[str], stated: bool) -> None:
        options = {"previous_manifest_id": line.commits[line.newest].manifest_id} if stated else {}
        request = {(pointer(field) if field.startswith("/") else field): value for field, value in delta.items()}
        gone = [pointer(field) if field.startswith("/") else field for field in deleted]
        if set(delta) & set(deleted):
            with pytest.raises(Invalid):
                self.save(line, writer, request, deleted=gone, **options)
            return
        state = {**line.states[line.newest], **delta}
        for field in deleted:
            state.pop(field, None)
        line.add(self.save(line, writer, request, deleted=gone, **options), state)

    @rule(line=lines, writer=st.integers(0, 1), field=st.sampled_from(FIELDS), value=scalars(), place=st.integers(0, 5))
    def save_path(self, line: Line, writer: int, field: str, value: Any, place: int) -> None:
        state = copied(line.states[line.newest])
        container = state.get(field)
        path = f"{pointer(field)}/{place}"
        if isinstance(container, list) and place < len(container):
            container[place] = value
        elif isinstance(container, list):
            path = f"{pointer(field)}/-"
            container.append(value)
        elif isinstance(container, dict):
            container[str(place)] = value
        else:
            with pytest.raises(Invalid):
                self.save(line, writer, {path: value})
            return
        line.add(self.save(line, writer, {path: value}), state)

    @rule(line=lines, writer=st.integers(0, 1), value=scalars())
    def save_on_a_version_that_is_not_the_newest(self, line: Line, writer: int, value: Any) -> None:
        if line.newest not in (min(line.states),):
            stale = line.commits[line.newest - 1].manifest_id
            with pytest.raises(HeadMoved):
                self.save(line, writer, {"a": value}, previous_manifest_id=stale)
        with pytest.raises(HeadMoved):
            self.save(line, writer, {"a": value}, previous_manifest_id=None)

    @rule(line=lines, value=values, number=st.integers(0, 3))
    def save_twice_under_one_key(self, line: Line, value: Any, number: int) -> None:
        name = f"{line.workflow}-{line.branch}-{line.newest}-{number}"
        commit = self.save(line, 0, {"b": value}, idempotency_key=name)
        line.add(commit, {**line.states[line.newest], "b": value})
        assert self.save(line, 1, {"b": value}, idempotency_key=name) == commit
        with pytest.raises(Conflict):
            self.save(line, 1, {"b": [value, "another"]}, idempotency_key=name)

    @rule(line=lines, writer=st.integers(0, 1), choice=st.integers(0, 1000))
    def roll_back(self, line: Line, writer: int, choice: int) -> None:
        version = line.there[choice % len(line.there)]
        commit = self.apps[writer].kernel.rollback_to_version(
            workflow_id=line.workflow, owner_id=self.owner, branch=line.branch, version=version
        )
        assert commit.root_hash == line.commits[version].root_hash
        line.add(commit, line.states[version])

    @rule(target=lines, line=lines, choice=st.integers(0, 1000), new_workflow=st.booleans())
    def fork(self, line: Line, choice: int, new_workflow: bool) -> Line:
        version = line.there[choice % len(line.there)]
        source = line.commits[version]
        kernel = self.apps[0].kernel
        if new_workflow:
            fork = Line(f"workflow {next(self.names)}", "main")
            commit = kernel.fork(source.manifest_id, owner_id=self.owner, workflow_id=fork.workflow)
            assert commit.version == 1
        else:
            fork = Line(line.workflow, f"branch {next(self.names)}")
            commit = kernel.fork(source.manifest_id, owner_id=self.owner, branch=fork.branch)
            assert commit.version == version + 1
        assert commit.parent_id == source.manifest_id
        fork.add(commit, line.states[version])
        self.known.append(fork)
        return fork

    @rule(line=lines, choice=st.integers(0, 1000), number=st.integers(0, 9), pinned=st.booleans())
    def hold(self, line: Line, choice: int, number: int, pinned: bool) -> None:
        version = line.there[choice % len(line.there)]
        manifest = line.commits[version].manifest_id
        kernel = self.apps[1].kernel
        if pinned:
            kernel.pin(manifest, owner_id=self.owner, reason="kept")
        else:
            kernel.tag(manifest, f"tag-{line.branch.replace(' ', '-')}-{version}-{number}", owner_id=self.owner)
        line.held.add(version)

    @rule(line=lines, choice=st.integers(0, 1000), decision=st.sampled_from(["approved", "rejected"]))
    def decide(self, line: Line, choice: int, decision: Literal["approved", "rejected"]) -> None:
        version = line.there[choice % len(line.there)]
        kernel = self.apps[0].kernel
        kernel.decide(line.commits[version].manifest_id, decision, actor="ann", score=0.5)
        assert kernel.decisions(line.commits[version].manifest_id)[-1].decision == decision
        line.decided[version] = decision
        listed = self.apps[1].kernel.history(
            workflow_id=line.workflow,
            owner_id=self.owner,
            branch=line.branch,
            decision=decision,
            limit=1000,
            forks=False,
        )
        expected = [number for number in line.there[::-1] if line.decided.get(number) == decision]
        assert [each.version for each in listed] == expected

    @rule(line=lines, choice=st.integers(0, 1000), away=st.booleans())
    def move_the_tag(self, line: Line, choice: int, away: bool) -> None:
        kernel = self.apps[choice % 2].kernel
        if away and line.workflow in self.wandering:
            kernel.untag("wandering", workflow_id=line.workflow, owner_id=self.owner)
            del self.wandering[line.workflow]
            return
        version = line.there[choice % len(line.there)]
        kernel.tag(line.commits[version].manifest_id, "wandering", owner_id=self.owner, force=True)
        self.wandering[line.workflow] = (line, version)

    @rule(line=lines, keep=st.integers(1, 6))
    def expire(self, line: Line, keep: int) -> None:
        kernel = self.apps[0].kernel
        kernel.set_retention(owner_id=self.owner, workflow_id=line.workflow, keep_last=keep)
        plan = kernel.expire(workflow_id=line.workflow, owner_id=self.owner, branch=line.branch)
        tagged, on = self.wandering.get(line.workflow, (None, None))
        held = line.held | ({on} if tagged is line else set())
        gone = {version for version in line.there[:-keep] if version not in held}
        assert {version.version for version in plan.expired} == gone
        line.expired |= gone
        listed = kernel.history(
            workflow_id=line.workflow, owner_id=self.owner, branch=line.branch, limit=1000, forks=False
        )
        assert [version.version for version in listed] == line.there[::-1]
        for version in list(gone)[:1]:
            with pytest.raises(Expired):
                kernel.load_state(line.commits[version].manifest_id)

    @rule(line=lines, ours=scalars(), theirs=scalars())
    def branch_off_and_merge(self, line: Line, ours: Any, theirs: Any) -> None:
        kernel = self.apps[0].kernel
        side = Line(line.workflow, f"side {next(self.names)}")
        base = line.states[line.newest]
        fork = kernel.fork(line.commits[line.newest].manifest_id, owner_id=self.owner, branch=side.branch)
        side.add(fork, base)
        side.add(self.save(side, 1, {"theirs": [theirs]}), {**base, "theirs": [theirs]})
        self.known.append(side)
        line.add(self.save(line, 0, {"ours": [ours]}), {**base, "ours": [ours]})
        merged = kernel.merge(workflow_id=line.workflow, owner_id=self.owner, source=side.branch, into=line.branch)
        if merged.commit is None:
            # Nothing that the side holds is new to this line.
            assert shown(base.get("theirs")) == shown([theirs])
        else:
            line.add(merged.commit, {**base, "ours": [ours], "theirs": [theirs]})

    @rule(writer=st.integers(0, 1))
    def reopen(self, writer: int) -> None:
        self.apps[writer].close()
        self.apps[writer] = self.store.open()

    @rule(line=lines, choice=st.integers(0, 1000))
    def read_any_version(self, line: Line, choice: int) -> None:
        version = line.there[choice % len(line.there)]
        kernel = self.apps[1].kernel
        manifest = line.commits[version].manifest_id
        assert shown(kernel.load_state(manifest)) == line.shown[version]
        found = kernel.load_fields(manifest, ["a", "missing", "/list/0"])
        assert shown(found.get("a")) == shown(line.states[version].get("a")) and "missing" not in found

    @rule(line=lines, one=st.integers(0, 1000), other=st.integers(0, 1000))
    def compare_any_two(self, line: Line, one: int, other: int) -> None:
        versions = line.there
        old, new = versions[one % len(versions)], versions[other % len(versions)]
        changes = self.apps[1].kernel.diff(line.commits[old].manifest_id, line.commits[new].manifest_id)
        assert (changes == []) == (line.shown[old] == line.shown[new])

    @rule(line=lines)
    def ask_for_what_is_not_there(self, line: Line) -> None:
        kernel = self.apps[1].kernel
        with pytest.raises(NotFound):
            kernel.load_latest_state(workflow_id=line.workflow, owner_id="nobody")
        with pytest.raises(NotFound):
            kernel.load_state("0" * 64)
        with pytest.raises(NotFound):
            kernel.load_state(line.commits[line.newest].manifest_id, owner_id="nobody")

    @invariant()
    def newest_states_are_the_models(self) -> None:
        for line in self.known[-2:]:
            kernel = self.apps[1].kernel
            state = kernel.load_latest_state(workflow_id=line.workflow, owner_id=self.owner, branch=line.branch)
            assert shown(state) == line.shown[line.newest]


def run_machine(store: Store, examples: int, steps: int, number: int | None = None) -> None:
    """Programs of steps at random, or those of a number."""
    machine = type("Machine", (KernelMachine,), {"store": store})
    run_state_machine_as_test(
        machine if number is None else seed(number)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=False,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("part", range(count(test=2, deep=10)))
def test_kernel_behaves_like_a_dict_with_a_history(store: Store, part: int) -> None:
    run_machine(store, examples=count(test=6, deep=20), steps=count(test=40, deep=75), number=part)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_kernel_behaves_like_a_dict_with_a_history_at_length(store: Store, part: int) -> None:
    run_machine(store, examples=50, steps=500)
