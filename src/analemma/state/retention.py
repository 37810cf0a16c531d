"""Which versions to keep, and removing the others. Only manifests are removed; bytes go by collection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import orjson

from analemma.canon.identity import BlockId
from analemma.canon.read import MISSING, Nodes
from analemma.catalog.kernel.versions import RetentionPolicy
from analemma.catalog.langgraph.threads import CheckpointRow
from analemma.catalog.port import BranchKey, ExpiringVersion, Pin, Tag, Version
from analemma.clock import attempts
from analemma.errors import AnalemmaError, Conflict, Corrupt, Expired, Invalid, NotFound
from analemma.state.arguments import MAIN, branch_key, check_name, place
from analemma.state.records import EXPIRED, Note

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
WEEK_US = 7 * DAY_US
FIRST_MONDAY_US = 4 * DAY_US
"""1970-01-05: weeks begin on Monday, in UTC."""

READ_PAGE = 1000
BATCH = 500
"""Versions per transaction: commits on the branch wait while one runs."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A version that stays, and every rule by which it does."""

    version: Version
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What goes and what stays, each newest first."""

    expired: tuple[Version, ...]
    kept: tuple[Kept, ...]
    rows: tuple[CheckpointRow, ...] = ()
    """Checkpoints of a thread that go with their versions; none once it is done."""


@dataclass(frozen=True, slots=True)
class BranchExpiry:
    """What expiry did on one branch of a tenant."""

    owner_id: str
    workflow_id: str
    branch: str
    expired: int
    """How many versions went, or would go."""
    problem: str | None = None
    """Why it went no further; the other branches were done all the same."""


def set_retention(
    kernel: Kernel,
    *,
    owner_id: str,
    workflow_id: str | None = None,
    keep_last: int | None = None,
    keep_newer_than_s: int | None = None,
    keep_tagged: bool = True,
    keep_hourly: int | None = None,
    keep_daily: int | None = None,
    keep_weekly: int | None = None,
) -> RetentionPolicy:
    """Say which versions `expire` keeps: of one workflow, or of all of the owner's that have no policy of their
    own.

    `keep_last`: that many newest versions. `keep_newer_than_s`: those younger than that. `keep_hourly`,
    `keep_daily`, `keep_weekly`: the newest version of each of the last so many hours, days or weeks (UTC) that have
    any. One rule is enough to keep a version. The head, tagged and pinned versions always stay."""
    if not keep_tagged:
        raise Invalid("tagged versions are always kept", hint="untag what may expire")
    check_name(owner_id, "owner")
    if workflow_id is not None:
        check_name(workflow_id, "workflow")
    policy = RetentionPolicy(keep_last, keep_newer_than_s, keep_hourly, keep_daily, keep_weekly)
    for name, value in asdict(policy).items():
        if value is not None and (type(value) is not int or value < 1):
            raise Invalid(
                f"{name} is {value!r}", hint="rules are whole numbers from 1 on; leave out those you do not want"
            )
    kernel._catalog.set_retention(kernel._tenant, owner_id, workflow_id, policy)
    return policy


def get_retention(kernel: Kernel, *, owner_id: str, workflow_id: str | None = None) -> RetentionPolicy:
    """The policy that applies to a workflow (its own, or else the owner's); without `workflow_id`, the owner's."""
    check_name(owner_id, "owner")
    if workflow_id is not None:
        check_name(workflow_id, "workflow")
    row = kernel._catalog.retention(kernel._tenant, owner_id, workflow_id)
    return row or RetentionPolicy()


def expire(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    dry_run: bool = False,
    now_us: int | None = None,
) -> ExpiryPlan:
    """Remove the versions of a branch that its policy does not keep, and journal their removal; with `dry_run`,
    only say which. What was removed is `Expired` from then on. Ages end at `now_us` (microseconds since 1970), or
    now by this program's clock."""
    key = branch_key(owner_id, workflow_id, branch)
    policy = kernel.get_retention(owner_id=owner_id, workflow_id=workflow_id)
    now_us = kernel._clock.now_us() if now_us is None else _check_time(now_us)
    gone: list[Version] = []
    trouble = f"{place(key)} is tagged and pinned too fast to expire anything"
    for _ in attempts(kernel._clock, trouble, hint="try again later"):
        plan = _plan_expiry(kernel, key, policy, now_us)
        if dry_run:
            return plan
        try:
            for start in range(0, len(plan.expired), BATCH):
                batch = plan.expired[start : start + BATCH]
                expire_batch(kernel, key, batch)
                gone += batch
            # After the versions: stopped between the two, the next one takes what is left.
            for start in range(0, len(plan.rows), BATCH):
                kernel._catalog.threads(kernel._tenant, key.owner).drop(plan.rows[start : start + BATCH])
            return ExpiryPlan(tuple(gone), plan.kept)
        except Conflict:
            # A version was tagged, pinned or expired since we looked.
            continue
    raise AssertionError("unreachable")


def expire_all(kernel: Kernel, *, dry_run: bool = False, now_us: int | None = None) -> list[BranchExpiry]:
    """Do `expire` on every branch of every workflow of the tenant that has a policy, or whose owner has one; tells
    of the branches where something expired or could not. To be run again and again, by whoever keeps the store."""
    found = [
        BranchExpiry(key.owner, key.workflow, key.branch, 0, str(done))
        if isinstance(done, AnalemmaError)
        else BranchExpiry(key.owner, key.workflow, key.branch, len(done.expired))
        for key, done in expire_branches(kernel, dry_run=dry_run, now_us=now_us)
    ]
    return [each for each in found if each.expired or each.problem]


def expire_branches(
    kernel: Kernel, *, dry_run: bool, now_us: int | None
) -> Iterator[tuple[BranchKey, ExpiryPlan | AnalemmaError]]:
    """The same branch by branch: what expired there, or why it went no further."""
    if now_us is not None:
        _check_time(now_us)
    for key in _branches_with_rules(kernel):
        place = {"workflow_id": key.workflow, "owner_id": key.owner, "branch": key.branch}
        try:
            yield key, kernel.expire(**place, dry_run=dry_run, now_us=now_us)
        except (Conflict, Corrupt, Expired, NotFound) as exc:
            yield key, exc


def _branches_with_rules(kernel: Kernel) -> Iterator[BranchKey]:
    """Every branch to which a policy with a rule applies, once."""
    rows = kernel._catalog.retention_policies(kernel._tenant)
    policies = {(row.owner, row.workflow): row.policy for row in rows}
    for (owner, chosen), policy in policies.items():
        if not any(asdict(policy).values()):
            continue
        for workflow in kernel._catalog.workflow_ids(kernel._tenant, owner) if chosen is None else [chosen]:
            # Under its owner's policy, one with a policy of its own has its turn with that.
            if chosen is not None or (owner, workflow) not in policies:
                for row in kernel._catalog.branches(kernel._tenant, owner, workflow):
                    yield BranchKey(owner, workflow, row.name)


def _plan_expiry(kernel: Kernel, key: BranchKey, policy: RetentionPolicy, now_us: int) -> ExpiryPlan:
    head = kernel._commits.head(key)
    refs = kernel._catalog.refs(kernel._tenant, key.owner, key.workflow)
    tagged, pinned = ({ref.manifest for ref in refs if isinstance(ref, kind)} for kind in (Tag, Pin))
    running = set(kernel._catalog.running_executions(kernel._tenant, key.owner, key.workflow))
    resumable = set(kernel._catalog.resumable_heads(kernel._tenant, key.owner, key.workflow))
    versions = list(kernel._catalog.every_version(kernel._tenant, key))
    rows = list(kernel._catalog.threads(kernel._tenant, key.owner).every(key.workflow, key.branch))
    own = {version.id for version in versions}
    plan = plan_expiry(
        [*versions, *_others(kernel, rows, own)],
        policy,
        head.manifest,
        tagged,
        pinned,
        now_us=now_us,
        running=running,
        resumable=resumable,
    )
    return _without_checkpoints(kernel, plan, rows, own, head.manifest) if rows else plan


def _others(kernel: Kernel, rows: Iterable[CheckpointRow], own: Collection[BlockId]) -> Iterator[Version]:
    """Versions that only checkpoints keep: they have expired before, or are those of another thread."""
    for manifest in dict.fromkeys(row.manifest for row in rows):
        if manifest not in own:
            try:
                yield kernel._commits.manifest(manifest).row(manifest)
            except (Corrupt, Expired):
                # Nobody knows how old it is: it stays.
                continue


def _without_checkpoints(
    kernel: Kernel, plan: ExpiryPlan, rows: Sequence[CheckpointRow], own: Collection[BlockId], head: BlockId
) -> ExpiryPlan:
    """The same without the checkpoints that have to stay, and with those that go."""
    going = {version.id: version for version in plan.expired}
    kept = [row for row in rows if row is rows[0] or row.manifest not in going]
    needed = needed_by([*kept, *_unnamed(kernel, head, rows)], rows, partial(held_channels, kernel))
    reasons = {row.manifest: "needed" for row in rows if row.checkpoint in needed}
    reasons[rows[0].manifest] = "newest"
    staying = [Kept(going[name], (reason,)) for name, reason in reasons.items() if name in going]
    return ExpiryPlan(
        tuple(each for each in plan.expired if each.id in own and each.id not in reasons),
        tuple(each for each in (*plan.kept, *staying) if each.version.id in own),
        tuple(row for row in rows if row.manifest in going and row.manifest not in reasons),
    )


def _unnamed(kernel: Kernel, head: BlockId, rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """The head, if it is no checkpoint yet: it becomes one, with the parent that it names, when the thread is next
    read."""
    if any(row.manifest == head for row in rows):
        return []
    parent = kernel._trees.get_many(kernel._commits.manifest(head).root.id, [("parent",)]).get(("parent",))
    return [rows[0]._replace(manifest=head, parent=parent)] if isinstance(parent, str) else []


def held_channels(kernel: Kernel, manifest: BlockId, channels: Collection[str]) -> list[str]:
    """Those of some channels that a checkpoint holds whole: only what leads to them is read."""
    names, root = sorted(channels), kernel._commits.manifest(manifest).root.id
    found = Nodes(kernel._trees.fetch).wires((root, ("channels", name)) for name in names)
    return [name for name, wire in zip(names, found, strict=True) if wire is not MISSING]


def expire_batch(kernel: Kernel, key: BranchKey, batch: tuple[Version, ...]) -> None:
    """Remove these in one transaction, which checks again that nothing has come to need them.

    A commit in between is no reason to plan anew: a rule that lets a version go still does so when there are newer
    versions."""
    facts = {
        "manifests": [version.manifest_id for version in batch],
        "versions": [version.version for version in batch],
    }
    expired = [ExpiringVersion(each.version, each.id) for each in batch]
    note = Note(EXPIRED, None, facts, "expire_versions", {"expired": expired})
    kernel._commits.record(key, lambda _: note, again_on_conflict=False)


def _check_time(now_us: int) -> int:
    if type(now_us) is not int:
        raise Invalid(f"now_us is {now_us!r}", hint="give whole microseconds since 1970")
    return now_us


def plan_expiry(
    versions: Iterable[Version],
    policy: RetentionPolicy,
    head: BlockId,
    tagged: Collection[BlockId],
    pinned: Collection[BlockId],
    *,
    now_us: int,
    running: Collection[str] = (),
    resumable: Collection[BlockId] = (),
) -> ExpiryPlan:
    """Which of a branch's versions, given newest first, no rule keeps. Decides; changes nothing."""
    rules = asdict(policy)
    keeps_everything = not any(rules.values())
    periods = [
        _Period(name, length_us, left)
        for name, length_us, left in (
            ("hourly", HOUR_US, policy.keep_hourly),
            ("daily", DAY_US, policy.keep_daily),
            ("weekly", WEEK_US, policy.keep_weekly),
        )
        if left is not None
    ]
    expired: list[Version] = []
    kept: list[Kept] = []
    for place_from_top, row in enumerate(versions):
        reasons = []
        if row.id == head:
            reasons.append("head")
        if row.id in tagged:
            reasons.append("tagged")
        if row.id in pinned:
            reasons.append("pinned")
        if row.execution in running:
            reasons.append("running")
        if row.id in resumable:
            reasons.append("resumable")
        if keeps_everything:
            reasons.append("no rule")
        if policy.keep_last is not None and place_from_top < policy.keep_last:  # guard: retention.last
            reasons.append("last")
        if policy.keep_newer_than_s is not None and row.created_at_us > now_us - policy.keep_newer_than_s * SECOND_US:
            reasons.append("newer")
        reasons += [period.name for period in periods if period.takes(row.created_at_us)]
        if reasons:
            kept.append(Kept(row, tuple(reasons)))
        else:
            expired.append(row)
    return ExpiryPlan(tuple(expired), tuple(kept))


@dataclass(slots=True)
class _Period:
    """Keeps the newest version of each of the last so many hours, days or weeks."""

    name: str
    length_us: int
    left: int
    current: int | None = None

    def takes(self, created_at_us: int) -> bool:
        number = (created_at_us - FIRST_MONDAY_US) // self.length_us
        if self.left == 0 or number == self.current:
            return False
        self.current = number
        self.left -= 1
        return True


READ_PAGE = 1000
EVERYTHING = "*"
"""Stands for the channels of a checkpoint of which it is not known which they are. No ancestor holds all of them."""

Held = Callable[[BlockId, Collection[str]], Collection[str]]
"""Those of some channels that a version holds whole."""


def needed_by(kept: Iterable[CheckpointRow], rows: Sequence[CheckpointRow], held: Held) -> set[str]:
    """The ancestors of some checkpoints without which their delta channels could not be put together."""
    names: set[str] = set()
    for row in rows:
        names.update([EVERYTHING] if row.deltas is None else orjson.loads(row.deltas))
    by_name = {row.checkpoint: row for row in rows}
    needed: dict[str, set[str]] = {}
    open_ends = [(row, set(names)) for row in kept] if names else []
    while open_ends:
        row, wanted = open_ends.pop()
        missing = wanted - set(held(row.manifest, wanted - {EVERYTHING}))
        parent = by_name.get(row.parent or "")
        if parent is None or not missing:
            continue
        known = needed.setdefault(parent.checkpoint, set())
        if missing - known:
            open_ends.append((parent, missing - known))
            known |= missing
    return set(needed)
