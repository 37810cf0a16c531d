"""Deleting branches and workflows, and letting versions expire: having them back (`undelete`), removing them for good,
and which versions to keep. Each is one transaction. No block is read to delete: that is how one gets rid of what is
damaged. Only rows go; blocks do by collection.

A deletion gives all rows of its branches to an owner whom nobody can name (`catalog.port.ASIDE`), and bringing them
back is the same the other way. Journals stay, and end in the tombstone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from analemma.canon.nodes import BlockId
from analemma.canon.read import MISSING, Nodes
from analemma.catalog.engine.db import Transaction, send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.kernel.commits import Recorded, change_rows
from analemma.catalog.kernel.versions import branch_columns
from analemma.catalog.langgraph.threads import CheckpointRow
from analemma.catalog.outbox.lanes import in_lanes
from analemma.catalog.port import ASIDE, BranchKey, Head, JournalRow, Pin, RowChange, Tag, Version
from analemma.clock import attempts, moment
from analemma.errors import AnalemmaError, Conflict, Corrupt, Expired, HeadMoved, Invalid, NotFound
from analemma.failpoints import declare, hit
from analemma.state.arguments import MAIN, branch_key, check_name, place
from analemma.state.records import DELETED, EXPIRED, RESTORED, Note, next_record, write_failure
from analemma.state.workflows import branches_of

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

BEFORE_TRANSACTION = declare("remove.before_transaction", "branches were looked at, and none is deleted")
BEFORE_COMMIT = declare("remove.before_commit", "branches are deleted inside the transaction")
AFTER_COMMIT = declare("remove.after_commit", "branches are gone, but the caller does not know")

SECOND_US = 1_000_000
FOREVER = (1 << 63) - 1
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
class DeletedBranch:
    """A branch that is deleted, as it stood."""

    owner_id: str
    workflow_id: str
    branch: str
    version: int
    manifest_id: str
    deleted_at: dt.datetime
    until: dt.datetime
    """From then on the collector removes it, and it cannot be had back."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {**asdict(self), "deleted_at": self.deleted_at.isoformat(), "until": self.until.isoformat()}


class DeletedRow(NamedTuple):
    """A branch of a deletion, and where it stood."""

    aside: str
    owner: str
    workflow: str
    branch: str
    created_at_us: int
    deleted_at_us: int
    used_again: bool
    """Whether its name was used again since. Then it cannot be had back, for its journal went on."""
    manifest: BlockId | None
    """None, as all that follows: its grace is over, and only what others were forked from is left of it."""
    version: int
    journal_seq: int
    journal_tip: bytes

    @property
    def heads(self) -> list[Head]:
        """Where it stood, if it can be had back."""
        if self.manifest is None:
            return []
        key = BranchKey(self.aside, self.workflow, self.branch)
        return [Head(key, self.manifest, self.version, self.journal_seq, self.journal_tip)]


def delete(
    kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str | None = None, force: bool = False
) -> list[DeletedBranch]:
    """Delete a workflow with all its branches, or one of them: from now on nobody finds it, nor its versions, tags,
    pins, decisions, idempotency keys and policy. Until its grace is over, `undelete` brings all of that back. What was
    accepted for it and is no version yet will never be one. Its name can be used again, and versions go on counting;
    then what had it before cannot be had back any more.

    Reads no block, so it is the way out where some are lost. Conflict if a run goes on there; with `force`, that is
    cancelled."""
    key = branch_key(owner_id, workflow_id, branch or MAIN)
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be deleted", hint="stop its writers"):
        heads = [each for each in _heads(kernel, key) if branch in (None, each.key.branch)]
        if not heads:
            raise NotFound(f"there is no {place(key)}", hint="check the owner, the workflow and the branch")
        aside = f"{ASIDE}{kernel._context.entropy.random_bytes(8).hex()}/{owner_id}"
        with suppress(HeadMoved):
            _do(kernel, key, heads, owner_id, DELETED, target=aside, forced=force, whole=branch is None)
            rows = _deleted_rows(kernel, owner_id, workflow_id)
            return [_shown(kernel, row) for row in rows if row.aside == aside and row.heads]
    raise AssertionError("unreachable")


def undelete(kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str | None = None) -> list[DeletedBranch]:
    """Have back what the newest deletion of a workflow took, or one branch, as it was; what came back. Idempotency keys
    count again, but for those that were used again meanwhile; checkpoints that waited do not come back.

    NotFound if nothing is deleted there, or its grace is over and it was removed. Conflict if the name of a branch was
    used again since: that one cannot be had back any more, also if what has its name is deleted, but others that were
    deleted with it can, one by one. Conflict, too, if a tag is on another version by now, until it is untagged."""
    key = branch_key(owner_id, workflow_id, branch or MAIN)
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be had back", hint="try again"):
        rows = _deleted_rows(kernel, owner_id, workflow_id)
        rows = [row for row in rows if row.heads and branch in (None, row.branch)]
        if not rows:
            raise NotFound(f"no {place(key)} is deleted", hint="it is there, or was removed when its grace was over")
        rows = [row for row in rows if row.aside == rows[0].aside]
        heads = [head for row in rows for head in row.heads]
        with suppress(HeadMoved):
            _do(kernel, key, heads, rows[0].aside, RESTORED, target=owner_id)
            return [_shown(kernel, row) for row in rows]
    raise AssertionError("unreachable")


def deleted(kernel: Kernel, *, owner_id: str | None = None, workflow_id: str | None = None) -> list[DeletedBranch]:
    """What is deleted and can be had back, of everybody, an owner or a workflow: what was deleted last comes first. A
    branch whose name was used again since is not there."""
    owner = None if owner_id is None else check_name(owner_id, "owner")
    workflow = None if workflow_id is None else check_name(workflow_id, "workflow")
    rows = _deleted_rows(kernel, owner, workflow)
    return [_shown(kernel, row) for row in rows if row.heads and not row.used_again]


def is_inherited(kernel: Kernel, row: Version) -> bool:
    """Whether a version of a deleted branch is in the history of a branch that is there."""
    open_ends, seen = [(row.key, row.version)], {row.key}
    while open_ends:
        for fork in _forks_of(kernel, *open_ends.pop()):
            if not fork.owner.startswith(ASIDE):
                return True
            if fork not in seen:
                seen.add(fork)
                open_ends.append((fork, 0))
    return False


def _forks_of(kernel: Kernel, key: BranchKey, version: int) -> list[BranchKey]:
    """The branches that were forked from a version of a branch, or from one behind it."""
    asked = branch_columns(kernel._tenant, key)
    return kernel._context.engine.rows(BranchKey, "forks_of", **asked, version=version)


def remove_due(kernel: Kernel, *, before_us: int, dry_run: bool) -> Iterator[list[BlockId]]:
    """Remove for good what was deleted before a time, branch by branch: the versions that went, or would go. Versions
    that others were forked from stay for as long as those are there, with all before them."""
    engine, tenant = kernel._context.engine, kernel._tenant
    rows = _deleted_rows(kernel, before_us=before_us)
    # What was forked began behind what it was forked from.
    for row in sorted(rows, key=lambda row: row.created_at_us, reverse=True):
        own = BranchKey(row.aside, row.workflow, row.branch)
        versions = [BlockId(each[0]) for each in engine.all("removable_versions", **branch_columns(tenant, own))]
        if not row.heads and not versions and _forks_of(kernel, own, 0):
            continue
        if not dry_run:
            key = BranchKey(row.owner, row.workflow, row.branch)
            try:
                _do(kernel, key, row.heads, row.aside, left=[row.branch], stays=True)
            except HeadMoved:
                # Somebody had it back.
                continue
        yield versions


def remove_workflow(kernel: Kernel, owner: str, workflow: str, rows: Sequence[RowChange] = ()) -> int:
    """Remove a workflow with all its branches for good, and change other rows with them, in one transaction; how many
    branches there were."""
    key = BranchKey(owner, workflow)
    for _ in attempts(kernel._clock, f"{place(key)} changes too fast to be removed", hint="stop its writers"):
        heads = _heads(kernel, key)
        with suppress(HeadMoved):
            _do(kernel, key, heads, owner, DELETED, whole=True, rows=rows)
            return len(heads)
    raise AssertionError("unreachable")


def remove_branch(kernel: Kernel, head: Head, rows: Sequence[RowChange]) -> None:
    """Remove the branch that stands here for good, and change other rows with it, in one transaction. A workflow that
    has none left is gone. HeadMoved, with nothing changed, if it stands elsewhere by now, or a checkpoint waits."""
    _do(kernel, head.key, [head], head.key.owner, DELETED, stays=True, rows=rows)


class _Gone(NamedTuple):
    """A branch that is to go elsewhere, or away: where it stands, and what its journal says of that."""

    head: Head
    record: JournalRow | None


def _do(
    kernel: Kernel,
    key: BranchKey,
    heads: Sequence[Head],
    source: str,
    kind: str | None = None,
    *,
    target: str | None = None,
    left: Sequence[str] = (),
    stays: bool = False,
    forced: bool = False,
    whole: bool = False,
    rows: Sequence[RowChange] = (),
) -> None:
    """Give branches of one workflow, and all that is theirs, from one owner (`source`) to another (`target`) or,
    without one, remove them for good, and change other rows with that, durably: all of them, or none. Their journals
    are told the kind; without one, they say so already, and what others were forked from stays of those `left`.

    HeadMoved, with nothing changed, if one of them is elsewhere by now, if a `whole` workflow has others, or if a
    checkpoint waits and `stays`; Conflict if a name is used again, or a run goes on that is not `forced` to end."""
    engine, tenant, now_us = kernel._context.engine, kernel._tenant, kernel._clock.now_us()
    gone, records, after = [], [], []
    # In the order of their keys, as everyone locks them.
    for head in sorted(heads, key=lambda each: each.key):
        record, own = None, replace(head, key=head.key._replace(owner=key.owner))
        if kind is not None:
            facts = {"version": head.version}
            record = next_record(own.key, head, kind=kind, manifest=head.manifest, at_us=now_us, facts=facts)
            records.append(Recorded(own.key, record))
            after.append(replace(own, journal_seq=record.seq, journal_tip=record.hash))
        gone.append(_Gone(head, record))
    announcer = kernel._commits.announcer
    tell = announcer.removed if kind == DELETED else announcer.committed
    events = tell(after) if after else ()
    lanes, placed = in_lanes(events)
    told = NotFound(f"{place(BranchKey(key.owner, key.workflow))} was deleted", hint="save it anew, if it is needed")
    given = SimpleNamespace(
        tenant=tenant,
        owner=key.owner,
        workflow=key.workflow,
        now=now_us,
        source=source,
        whole=int(whole),
        forced=int(forced or target is None),
        failure="" if stays else write_failure(told),
        gone=gone,
        records=records,
        lanes=lanes,
        events=placed,
        target=target,
        deletions=[target] if kind == DELETED else [],
        left=left or [head.key.branch for head in heads],
        keeping=int(kind is None),
    )

    def move(tx: Transaction) -> bool:
        tx.call("remove_branches" if target is None else "move_branches", given)
        if given.forced and source == key.owner:
            _cancel_subflows(tx, [branch_columns(tenant, head.key) for head in heads], now_us)
        change_rows(tx, rows)
        hit(BEFORE_COMMIT)
        return True

    def found() -> bool | None:
        # A record's hash covers everything about it, and they come together.
        for head in after[:1]:
            row = engine.one("record_at", **branch_columns(tenant, head.key), seq=head.journal_seq)
            return (row is not None and row[0] == head.journal_tip) or None
        return None

    hit(BEFORE_TRANSACTION)
    try:
        send(lambda: engine.write(move), found=found)
    except Refused as refused:
        raise _refusal(key, gone[refused.row or 0].head if gone else None, refused.refusal) from None
    hit(AFTER_COMMIT)
    if events:
        announcer.wake()
    for head in heads:
        kernel._commits.forget(head.key)


def _cancel_subflows(tx: Transaction, branches: Sequence[dict[str, Any]], now_us: int) -> None:
    """End what runs that were just cancelled have begun in other workflows: nobody waits for it any more."""
    # Loaded by who deletes: every program has the verbs.
    from analemma.catalog.runs.runs import cancel_below

    parents = [row[0] for branch in branches for row in tx.all("cancelled_parents", **branch)]

    def idle(key: BranchKey) -> RowChange:
        said = {"owner": key.owner, "workflow": key.workflow, "name": None, "status": "IDLE", "now": now_us}
        return RowChange("set_workflow", {"tenant": branches[0]["tenant"], **said}, None)

    cancel_below(tx, parents, idle)


def _refusal(key: BranchKey, head: Head | None, refusal: str) -> Conflict:
    key = key if head is None else head.key._replace(owner=key.owner)
    name = f"branch {key.branch} of workflow {key.owner}/{key.workflow}"
    match refusal:
        case "run_goes_on":
            return Conflict(f"a run of {name} goes on", hint="cancel it, or delete with force", branch=key.branch)
        case "name_used":
            others = "other branches that were deleted with it come back by their names"
            return Conflict(f"{name} cannot be had back: its name was used again", hint=others, branch=key.branch)
        case "thread_used":
            return Conflict(f"the thread of {name} is used again", hint="delete that first", branch=key.branch)
        case "tag_used":
            return Conflict(f"a tag of {name} is on another version by now", hint="untag that first", branch=key.branch)
        case "branch_began":
            return HeadMoved(f"another branch of workflow {key.owner}/{key.workflow} began", hint="look again", key=key)
        case _:
            return HeadMoved(f"{name} is not where it was", hint="look again", key=key, expected=head)


def _heads(kernel: Kernel, key: BranchKey) -> list[Head]:
    """Where the branches of a workflow stand."""
    asked = {"tenant": kernel._tenant, "owner": key.owner, "workflow": key.workflow}
    rows = kernel._context.engine.all("heads_of_workflow", **asked)
    return [Head(key._replace(branch=branch), *stood) for branch, *stood in rows]


def _deleted_rows(
    kernel: Kernel, owner: str | None = None, workflow: str | None = None, *, before_us: int = FOREVER
) -> list[DeletedRow]:
    """What is deleted, the newest deletion first."""
    asked = {"tenant": kernel._tenant, "owner": owner, "workflow": workflow, "before": before_us}
    return kernel._context.engine.rows(DeletedRow, "deleted_branches", **asked)


def _shown(kernel: Kernel, row: DeletedRow) -> DeletedBranch:
    until_us = row.deleted_at_us + int(kernel._context.settings.delete_grace_s * SECOND_US)
    deleted_at, until = moment(row.deleted_at_us), moment(until_us)
    manifest = row.heads[0].manifest.hex()
    return DeletedBranch(row.owner, row.workflow, row.branch, row.version, manifest, deleted_at, until)


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
    whose = _whose(kernel, owner_id, workflow_id)
    policy = RetentionPolicy(keep_last, keep_newer_than_s, keep_hourly, keep_daily, keep_weekly)
    for name, value in asdict(policy).items():
        if value is not None and (type(value) is not int or value < 1):
            raise Invalid(
                f"{name} is {value!r}", hint="rules are whole numbers from 1 on; leave out those you do not want"
            )
    kernel._context.engine.execute("set_retention", **whose, **asdict(policy))
    return policy


def get_retention(kernel: Kernel, *, owner_id: str, workflow_id: str | None = None) -> RetentionPolicy:
    """The policy that applies to a workflow (its own, or else the owner's); without `workflow_id`, the owner's."""
    whose = _whose(kernel, owner_id, workflow_id)
    return kernel._context.engine.row(RetentionPolicy, "retention", **whose) or RetentionPolicy()


def _whose(kernel: Kernel, owner: str, workflow: str | None) -> dict[str, Any]:
    """What names a policy in statements: that of a workflow, or of an owner."""
    named = OWNER_WIDE if workflow is None else check_name(workflow, "workflow")
    return {"tenant": kernel._tenant, "owner": check_name(owner, "owner"), "workflow": named}


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
    needed = needed_by(kernel, [*kept, *_unnamed(kernel, head, rows)], rows)
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


def _held_channels(kernel: Kernel, manifest: BlockId, channels: Collection[str]) -> list[str]:
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


def needed_by(kernel: Kernel, kept: Iterable[CheckpointRow], rows: Sequence[CheckpointRow]) -> set[str]:
    """The ancestors of some checkpoints without which their delta channels could not be put together."""
    names: set[str] = set()
    for row in rows:
        names.update([EVERYTHING] if row.deltas is None else orjson.loads(row.deltas))
    by_name = {row.checkpoint: row for row in rows}
    needed: dict[str, set[str]] = {}
    open_ends = [(row, set(names)) for row in kept] if names else []
    while open_ends:
        row, wanted = open_ends.pop()
        missing = wanted - set(_held_channels(kernel, row.manifest, wanted - {EVERYTHING}))
        parent = by_name.get(row.parent or "")
        if parent is None or not missing:
            continue
        known = needed.setdefault(parent.checkpoint, set())
        if missing - known:
            open_ends.append((parent, missing - known))
            known |= missing
    return set(needed)
