"""What a pass of the collector found and did, or would do: values, which are also what is printed and kept of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from analemma.canon.nodes import ID_BYTES
from analemma.clock import span_for_people
from analemma.errors import Denied, Invalid

SAMPLE = 20
Ids = bytes
"""Many ids, one behind the other."""

TENANT_PLAN = {"to_expire": "expired", "to_doom": "doomed", "to_delete": "deleted", "delete_bytes": "bytes"}
PLAN = {"uploads": "objects", "upload_bytes": "object_bytes"}
"""How plans spell what reports tell as done."""
PLANNED = ("store_id", "made_at_us", "grace_s", "tenants", *PLAN, "abandoned", "object_delay_s", "refused")
PLANNED_TENANT = ("tenant", "total", "referenced", *TENANT_PLAN, "waiting", "sample", "problem", "kind")
SUMS = ("expired", "total", "referenced", "cleared", "doomed", "deleted", "bytes")
OBJECTS = ("claimed", "objects", "object_bytes", "failures")
DONE = (*SUMS, "number", "tenants", *OBJECTS, "problems", "kinds", "stopped", "ok")
DONE_TENANT = ("tenant", *SUMS, "problem", "kind", "keys", "leases")
"""What JSON has of each, in order."""

Lines = tuple[tuple[str, str], ...]
"""What people are told, each line behind the name of the fact without which it is not said."""
REFUSED: Lines = (("refused", "a run would be refused, and do nothing of this: {0.refused}"),)
TENANT_LINES: Lines = (
    ("", "tenant {0.tenant}: {0.total} blocks, {0.referenced} of them needed"),
    ("problem", "  nothing would be collected: {0.problem}"),
)
SOUND_TENANT_LINES: Lines = (
    ("expired", "  {0.expired} versions would expire, as their retention says"),
    ("", "  {0.deleted} blocks would be deleted ({0.bytes} bytes): nothing has led to them since an earlier pass"),
    ("", "  {0.doomed} blocks would be marked to go: nothing leads to them now"),
    ("waiting", "  {0.waiting} marked blocks would wait: for {1.grace_s:g} s to pass, or a session to end"),
)
OBJECT_LINES: Lines = (
    ("", "{0.objects} objects would be deleted ({0.object_bytes} bytes){1}"),
    ("abandoned", "  {0.abandoned} whose commit never came"),
    ("unreferenced", "  {0.unreferenced} in which no block lies any more"),
)
DONE_LINES: Lines = (
    ("", "pass {0.number}: {0.total} blocks, {0.referenced} of them needed"),
    ("expired", "  {0.expired} versions expired"),
    ("", "  deleted {0.deleted} blocks ({0.bytes} bytes), marked {0.doomed} to go, spared {0.cleared}"),
    ("", "  deleted {0.objects} objects ({0.object_bytes} bytes)"),
    ("leases", "  {0.leases} leases of payloads ended: their executions are over, or did not use them for long"),
    ("keys", "  {0.keys} idempotency keys were forgotten"),
    ("stopped", "  stopped before its end"),
)


def _also(name: str) -> property:
    """The same under the name that it has in a plan."""
    return property(attrgetter(name))


def _sum(name: str) -> property:
    """Of all tenants."""
    get = attrgetter(name)
    return property(lambda self: sum(map(get, self.tenants)))


@dataclass(slots=True)
class TenantCollection:
    """What a pass found in one tenant, and did, or would do."""

    tenant: str
    expired: int = 0
    """Versions that retention let go first."""
    total: int = 0
    """Blocks there are."""
    referenced: int = 0
    """Those that something leads to."""
    cleared: int = 0
    """Those of them that were doomed, and are no more."""
    doomed: int = 0
    """Blocks that were marked to go in a later pass."""
    deleted: int = 0
    bytes: int = 0
    """What the deleted ones took, compressed."""
    waiting: int = 0
    """Doomed blocks that stay for now: for the grace period, or for an open session."""
    problem: str | None = None
    """Why nothing of this tenant is collected."""
    kind: str | None = None
    """What kind of error that is."""
    keys: int = 0
    """Idempotency keys that were forgotten: they counted no more."""
    leases: int = 0
    """Leases of payloads that ended with their executions, which nobody had released."""
    deletions: Ids = field(default=b"", repr=False)
    """In a plan every block that would go: 32 bytes each, in order."""

    to_expire, to_doom, to_delete, delete_bytes = map(_also, TENANT_PLAN.values())

    @property
    def sample(self) -> tuple[str, ...]:
        """Some of the blocks that would go."""
        return tuple(block.hex() for block in pieces(self.deletions[: SAMPLE * ID_BYTES], ID_BYTES))


@dataclass(slots=True)
class Collection:
    """What a pass found and did; or a plan: what it would do now, made without changing anything."""

    number: int = 0
    """Of the pass; 0: a plan's."""
    planned: bool = False
    tenants: tuple[TenantCollection, ...] = ()
    claimed: int = 0
    """Uploads that were claimed."""
    objects: int = 0
    """Objects that were deleted."""
    object_bytes: int = 0
    failures: int = 0
    """Uploads that had failed before and were collected."""
    complaints: list[tuple[str, str]] = field(default_factory=list)
    """What is wrong, each with its kind of error."""
    stopped: bool = False
    store_id: str = ""
    made_at_us: int = 0
    grace_s: float = 0.0
    abandoned: int = 0
    """Those of the uploads whose commit never came."""
    claims: Ids = field(default=b"", repr=False)
    """In a plan every upload that would be claimed: 16 bytes each."""
    object_delay_s: float = 0.0
    """How long objects stay after that."""
    refused: str | None = None
    """Why a run would do nothing at all: the objects are another catalog's."""

    expired, total, referenced, cleared, doomed, deleted, bytes = map(_sum, SUMS)
    keys, leases = map(_sum, ("keys", "leases"))
    to_delete, delete_bytes = map(_sum, ("deleted", "bytes"))
    uploads, upload_bytes = map(_also, PLAN.values())

    def complain(self, problem: str, kind: str) -> None:
        """Something is wrong."""
        self.complaints.append((problem, kind))

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(problem for problem, _ in self.complaints)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of error behind the problems."""
        return tuple(kind for _, kind in self.complaints)

    @property
    def ok(self) -> bool:
        return not self.complaints

    @property
    def unreferenced(self) -> int:
        """Those of the uploads in which no block lies any more."""
        return self.objects - self.abandoned

    def describe(self) -> str:
        """For people, one line for each fact."""
        if not self.planned:
            return "\n".join([*_told(DONE_LINES, self), *(f"  problem: {problem}" for problem in self.problems)])
        lines = _told(REFUSED, self)
        for each in self.tenants:
            lines += _told(TENANT_LINES if each.problem else (*TENANT_LINES, *SOUND_TENANT_LINES), each, self)
        after = f", {span_for_people(self.object_delay_s)} after they are let go" if self.object_delay_s else ""
        return "\n".join([*lines, *_told(OBJECT_LINES, self, after)])

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; of a plan without the full lists."""
        names, of_tenant = (PLANNED, PLANNED_TENANT) if self.planned else (DONE, DONE_TENANT)
        tenants = [{name: getattr(each, name) for name in of_tenant} for each in self.tenants]
        return {name: tenants if name == "tenants" else getattr(self, name) for name in names}

    def to_json(self) -> str:
        """All of a plan, to be carried out later or elsewhere."""
        facts = self.as_dict()
        facts["claims"] = base64.b64encode(self.claims).decode()
        for told, each in zip(facts["tenants"], self.tenants, strict=True):
            told["deletions"] = base64.b64encode(each.deletions).decode()
        return json.dumps(facts)

    @classmethod
    def from_json(cls, text: str) -> Collection:
        """Read what `to_json` wrote of a plan."""
        try:
            facts = json.loads(text)
            facts["claims"] = base64.b64decode(facts["claims"])
            tenants = tuple(
                TenantCollection(
                    **{TENANT_PLAN.get(name, name): value for name, value in each.items() if name != "sample"}
                    | {"deletions": base64.b64decode(each["deletions"])}
                )
                for each in facts.pop("tenants")
            )
            plan = cls(planned=True, tenants=tenants, **{PLAN.get(name, name): facts[name] for name in facts})
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise Invalid(f"this is no plan: {exc}", hint="make one with `analemma gc plan --out FILE`") from exc
        plan.claimed = plan.objects
        plan.complain_of_plan()
        return plan

    def complain_of_plan(self) -> None:
        """What a plan finds wrong is what it says of each tenant, and of the objects."""
        if self.refused is not None:
            self.complain(self.refused, Denied.kind)
        for each in self.tenants:
            if each.problem:
                self.complain(f"{each.tenant}: {each.problem}", each.kind or "")


@dataclass(frozen=True, slots=True)
class Run:
    """What one pass did, over all tenants."""

    number: int
    holder: str
    started_at_us: int
    finished_at_us: int | None
    state: str
    """`running`, `finished` or `aborted`."""
    reason: str | None
    expired: int
    total: int
    referenced: int
    doomed: int
    cleared: int
    deleted: int
    bytes: int
    claimed: int
    objects: int


@dataclass(frozen=True, slots=True)
class GcStatus:
    """Who collects, what was collected, and what failed."""

    newest: int
    """The number of the newest pass."""
    holder: str | None
    """Who is collecting now."""
    lease_left_s: float
    runs: tuple[Run, ...]
    """Newest first."""
    sessions: int
    waiting_failures: int
    dead_failures: int


def pieces(data: Ids | bytearray, size: int) -> Iterator[bytes]:
    """A concatenation of ids, taken apart."""
    return (bytes(data[start : start + size]) for start in range(0, len(data), size))


def _told(lines: Lines, *of: object) -> list[str]:
    """Those of the lines whose facts are there, with what they tell of."""
    return [line.format(*of) for fact, line in lines if not fact or getattr(of[0], fact)]
