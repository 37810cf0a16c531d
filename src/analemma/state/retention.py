"""Which versions to keep, and removing the others. Only manifests are removed; bytes go by collection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import orjson

from analemma.canon.identity import BlockId
from analemma.canon.read import MISSING, Nodes
from analemma.catalog.langgraph.threads import CheckpointRow
from analemma.catalog.port import BranchKey, Pin, Tag, Version
from analemma.clock import attempts
from analemma.errors import AnalemmaError, Conflict, Corrupt, Expired, Invalid, NotFound
from analemma.state.arguments import MAIN, branch_key, check_name, place
from analemma.state.records import EXPIRED, Note
from analemma.state.workflows import branches_of

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
WEEK_US = 7 * DAY_US
FIRST_MONDAY_US = 4 * DAY_US
"""1970-01-05: weeks begin on Monday, in UTC."""

OWNER_WIDE = ""
"""Stands for the workflow in the row of a policy for all workflows of an owner; no workflow is called that."""
PAGE = 1000
BATCH = 500
"""Versions per transaction: commits on the branch wait while one runs."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which versions to keep; one rule that keeps a version is enough, and without any rule all are kept."""

    keep_last: int | None = None
    keep_newer_than_s: int | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None


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
    whose = {"tenant": kernel._tenant, "owner": owner_id, "workflow": workflow_id or OWNER_WIDE}
    kernel._context.engine.execute("set_retention", **whose, **asdict(policy))
    return policy


def get_retention(kernel: Kernel, *, owner_id: str, workflow_id: str | None = None) -> RetentionPolicy:
    """The policy that applies to a workflow (its own, or else the owner's); without `workflow_id`, the owner's."""
    check_name(owner_id, "owner")
    if workflow_id is not None:
        check_name(workflow_id, "workflow")
    whose = {"tenant": kernel._tenant, "owner": owner_id, "workflow": workflow_id or OWNER_WIDE}
    return kernel._context.engine.row(RetentionPolicy, "retention", **whose) or RetentionPolicy()


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
    engine, tenant = kernel._context.engine, kernel._tenant
    behind = {"after_owner": "", "after_workflow": OWNER_WIDE}
    pages = engine.pages("retention_policies", behind, tenant=tenant, limit=PAGE)
    policies = {(owner, workflow): rules for page in pages for owner, workflow, *rules in page}
    for (owner, chosen), rules in policies.items():
        if not any(rules):
            continue
        workflows = [chosen]
        if chosen == OWNER_WIDE:
            asked = {"tenant": tenant, "owner": owner, "name_prefix": "", "status": None}
            found = engine.pages("workflows", {"after": ""}, **asked, limit=PAGE)
            # One with a policy of its own has its turn with that.
            workflows = [row[0] for page in found for row in page if (owner, row[0]) not in policies]
        for workflow in workflows:
            for branch in branches_of(kernel, owner, workflow):
                yield BranchKey(owner, workflow, branch.name)


def _plan_expiry(kernel: Kernel, key: BranchKey, policy: RetentionPolicy, now_us: int) -> ExpiryPlan:
    head = kernel._commits.head(key)
    whose = {"tenant": kernel._tenant, "owner": key.owner, "workflow": key.workflow}
    refs = kernel._catalog.refs(kernel._tenant, key.owner, key.workflow)
    tagged, pinned = ({ref.manifest for ref in refs if isinstance(ref, kind)} for kind in (Tag, Pin))
    # Versions of runs that are not over stay, and what those stand on that failed, so that they can be resumed.
    running, resumable = (
        {row[0] for row in kernel._context.engine.all(name, **whose)}
        for name in ("running_executions", "resumable_heads")
    )
    versions = list(kernel._catalog.every_version(kernel._tenant, key))
    rows = list(kernel._catalog.threads(kernel._tenant, key.owner).every(key.workflow, key.branch))
    own = {version.id for version in versions}
    rules: list[Rule] = [
        ("head", lambda row: row.id == head.manifest),
        ("tagged", lambda row: row.id in tagged),
        ("pinned", lambda row: row.id in pinned),
        ("running", lambda row: row.execution in running),
        ("resumable", lambda row: row.id in resumable),
        *_rules(policy, now_us),
    ]
    expired: list[Version] = []
    kept: list[Kept] = []
    for row in [*versions, *_others(kernel, rows, own)]:
        reasons = tuple([reason for reason, keeps in rules if keeps(row)])
        if reasons:
            kept.append(Kept(row, reasons))
        else:
            expired.append(row)
    plan = ExpiryPlan(tuple(expired), tuple(kept))
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
    facts = {"manifests": [row.manifest_id for row in batch], "versions": [row.version for row in batch]}
    note = Note(EXPIRED, None, facts, "expire_versions", {"expired": batch})
    kernel._commits.record(key, lambda: note, again_on_conflict=False)


def _check_time(now_us: int) -> int:
    if type(now_us) is not int:
        raise Invalid(f"now_us is {now_us!r}", hint="give whole microseconds since 1970")
    return now_us


Rule = tuple[str, Callable[[Version], bool]]
"""Why versions stay, and what tells whether one does: asked of each in turn, the newest first."""


def _rules(policy: RetentionPolicy, now_us: int) -> Iterator[Rule]:
    """Those of a policy."""
    if not any(asdict(policy).values()):
        yield "no rule", lambda row: True
    if policy.keep_last is not None:
        places, last = count(), policy.keep_last
        yield "last", lambda row: next(places) < last  # guard: retention.last
    if policy.keep_newer_than_s is not None:
        since_us = now_us - policy.keep_newer_than_s * SECOND_US
        yield "newer", lambda row: row.created_at_us > since_us
    for period, length_us, most in (
        ("hourly", HOUR_US, policy.keep_hourly),
        ("daily", DAY_US, policy.keep_daily),
        ("weekly", WEEK_US, policy.keep_weekly),
    ):
        if most is not None:
            yield period, _newest_of_each(length_us, most)


def _newest_of_each(length_us: int, most: int) -> Callable[[Version], bool]:
    """What tells the newest version of each of the last so many hours, days or weeks that have any."""
    seen: set[int] = set()

    def keeps(row: Version) -> bool:
        number = (row.created_at_us - FIRST_MONDAY_US) // length_us
        if number in seen or len(seen) == most:
            return False
        seen.add(number)
        return True

    return keeps


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
