"""Everybody who is not the collector: commits of every kind, expiry, tags, sessions, leases, pending deltas, packing.

Each is a list of steps in the order of `commit_versions` in `catalog/sql/kernel/commits.sql`: head, bases, blocks in
order of their ids, then what is new. On PostgreSQL a commit is one statement, but not one moment: it may have to wait
at every row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.models.actions import (
    Await,
    Blocks,
    CheckExpiry,
    Drop,
    EndPart,
    Finish,
    FinishUpload,
    HoldBase,
    HoldSession,
    Load,
    LockHead,
    Look,
    MoveBlock,
    OpenIntent,
    OpenSession,
    PlanExpiry,
    PutObject,
    Rules,
    Write,
)
from tests.models.database import Action, Process
from tests.models.rules import Rule


def commit(
    name: str,
    rules: Rules,
    *,
    makes: Mapping[str, object],
    emits: Iterable[str] = (),
    bases: Iterable[str] = (),
    head: str | None = None,
    drops: Iterable[str] = (),
    uploads: Mapping[str, Blocks] | None = None,
    durable: bool = True,
) -> Process:
    """A transaction that makes roots: a save, rollback, fork or merge; a lease; a pending delta.

    `makes` gives each new row; `bases` are the roots whose blocks these name without emitting them; `drops` are bases
    that end with this transaction (a pending delta that is applied); `uploads` says which emitted blocks each holds."""
    emits, bases, drops, uploads = tuple(emits), tuple(bases), tuple(drops), uploads or {}
    if Rule.SAME_ORDER in rules:
        emits, bases = tuple(sorted(emits)), tuple(sorted(bases))
    placed = {block: upload for upload, blocks in uploads.items() for block in blocks}
    steps: list[Action] = [Load(base) for base in (*bases, *drops)]
    if Rule.WRITE_EMITTED not in rules:
        steps += [Look(block) for block in emits]
    for upload in uploads:
        intent, put = OpenIntent(upload, rules), PutObject(upload)
        steps += [intent, put] if Rule.INTENT_FIRST in rules else [put, intent]
    if head is not None:
        steps.append(LockHead(head))
    if {Rule.CHECK_BASES, Rule.HOLD_BASES} & rules:
        steps += [HoldBase(base, rules) for base in (*bases, *drops)]
    writes: list[Action] = [Write(block, rules, placed.get(block)) for block in emits]
    if emits and Rule.ROOT_WITH_BLOCKS not in rules:
        writes.append(Finish(durable=durable))
    steps += writes
    steps += [FinishUpload(upload, rules) for upload in uploads]
    made = dict(makes)
    if head is not None:
        (made[head],) = [row for row in made if row.startswith("manifest")]
    steps.append(Finish(tuple(made.items()), drops, durable))
    return Process(name, tuple(steps))


def expiry(rules: Rules, manifest: str, *, head: str, tags: Iterable[str] = ()) -> Process:
    """Retention removes one version."""
    kept_by = (head, *tags)
    steps: list[Action] = [PlanExpiry(manifest, kept_by)]
    if Rule.RECHECK_EXPIRY in rules:
        steps += [LockHead(head), CheckExpiry(manifest, kept_by)]
    return Process(f"expiry of {manifest}", (*steps, Drop(manifest)), patient=True)


def tagging(manifest: str, *, tag: str, head: str) -> Process:
    """Somebody tags a version. The head's lock makes the check good until the end."""
    return Process("tagging", (LockHead(head), Load(manifest), Finish(((tag, manifest),))))


def ending(row: str, name: str) -> Process:
    """A root ends at any time: an execution is over, a session is given up."""
    return Process(name, (Await(row), Drop(row)), patient=True)


def session(name: str, rules: Rules, row: str, parts: Iterable[str], *, makes: Mapping[str, Blocks]) -> Process:
    """An import: blocks in several transactions, then a commit that names them without emitting them again."""
    first, *others = parts
    if Rule.ROOT_WITH_BLOCKS in rules:
        steps: list[Action] = [OpenSession(row), *_part(row, first, rules)]
    else:
        steps = [Write(first, rules), Finish(), OpenSession(row, (first,))]
    for block in others:
        steps += _part(row, block, rules)
    steps += [HoldSession(row, rules), Finish(tuple(makes.items()), (row,), durable=True)]
    return Process(name, tuple(steps))


def _part(row: str, block: str, rules: Rules) -> list[Action]:
    return [HoldSession(row, rules), Write(block, rules), EndPart(row, block)]


def packing(rules: Rules, block: str, *, source: str | None, target: str) -> Process:
    """A block's bytes are copied into a new object, and its row is pointed there."""
    return Process(
        "packing",
        (
            Load(f"block {block}"),
            OpenIntent(target, rules),
            PutObject(target),
            MoveBlock(block, source, target),
            FinishUpload(target, rules),
            Finish(),
        ),
    )
