"""What a collection would do and did, as plain data."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from analemma.catalog.collecting.marks import Run
from analemma.clock import span_for_people
from analemma.errors import Invalid

SAMPLE = 20
ID_BYTES = 32
UPLOAD_BYTES = 16


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """What would happen to one tenant's blocks."""

    tenant: str
    total: int = 0
    """Blocks there are."""
    referenced: int = 0
    """Those that something leads to."""
    to_expire: int = 0
    """Versions that retention lets go first."""
    to_doom: int = 0
    """Blocks that would be marked to go in a later pass."""
    to_delete: int = 0
    """Blocks that would go now."""
    delete_bytes: int = 0
    """What they take, compressed."""
    waiting: int = 0
    """Doomed blocks that stay for now: for the grace period, or for an open session."""
    sample: tuple[str, ...] = ()
    """Some of the blocks that would go."""
    problem: str | None = None
    """Why nothing of this tenant would be collected."""
    kind: str | None = None
    """What kind of error that is."""
    deletions: bytes = field(default=b"", repr=False)
    """Every block that would go: 32 bytes each, in order."""


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a run would do now. Data only: making it changed nothing."""

    store_id: str
    made_at_us: int
    grace_s: float
    tenants: tuple[TenantPlan, ...]
    uploads: int
    """Uploads that would be claimed, and their objects deleted."""
    upload_bytes: int
    abandoned: int
    """Those of the uploads whose commit never came."""
    claims: bytes = field(default=b"", repr=False)
    """Every such upload: 16 bytes each."""
    object_delay_s: float = 0.0
    """How long their objects stay after that."""
    refused: str | None = None
    """Why a run would do nothing at all: the objects are another catalog's."""

    @property
    def total(self) -> int:
        return sum([each.total for each in self.tenants])

    @property
    def referenced(self) -> int:
        return sum([each.referenced for each in self.tenants])

    @property
    def to_delete(self) -> int:
        return sum([each.to_delete for each in self.tenants])

    @property
    def delete_bytes(self) -> int:
        return sum([each.delete_bytes for each in self.tenants])

    @property
    def problems(self) -> tuple[str, ...]:
        found = [f"{each.tenant}: {each.problem}" for each in self.tenants if each.problem]
        return tuple(found if self.refused is None else [self.refused, *found])

    def describe(self) -> str:
        """The plan for people, one line for each fact."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.refused is not None:
            yield f"a run would be refused, and do nothing of this: {self.refused}"
        for each in self.tenants:
            yield f"tenant {each.tenant}: {each.total} blocks, {each.referenced} of them needed"
            if each.problem is not None:
                yield f"  nothing would be collected: {each.problem}"
                continue
            if each.to_expire:
                yield f"  {each.to_expire} versions would expire, as their retention says"
            why = "nothing has led to them since an earlier pass"
            yield f"  {each.to_delete} blocks would be deleted ({each.delete_bytes} bytes): {why}"
            yield f"  {each.to_doom} blocks would be marked to go: nothing leads to them now"
            if each.waiting:
                yield f"  {each.waiting} marked blocks would wait: for {self.grace_s:g} s to pass, or a session to end"
        unreferenced = self.uploads - self.abandoned
        after = f", {span_for_people(self.object_delay_s)} after they are let go" if self.object_delay_s else ""
        yield f"{self.uploads} objects would be deleted ({self.upload_bytes} bytes){after}"
        if self.abandoned:
            yield f"  {self.abandoned} whose commit never came"
        if unreferenced:
            yield f"  {unreferenced} in which no block lies any more"

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON has it, without the full lists."""
        facts = asdict(self)
        del facts["claims"]
        for each in facts["tenants"]:
            del each["deletions"]
        return facts

    def to_json(self) -> str:
        """All of the plan, to be carried out later or elsewhere."""
        facts = asdict(self)
        facts["claims"] = base64.b64encode(self.claims).decode()
        for each in facts["tenants"]:
            each["deletions"] = base64.b64encode(each["deletions"]).decode()
        return json.dumps(facts)

    @classmethod
    def from_json(cls, text: str) -> GcPlan:
        """Read what `to_json` wrote."""
        try:
            facts = json.loads(text)
            facts["claims"] = base64.b64decode(facts["claims"])
            facts["tenants"] = tuple(
                TenantPlan(
                    **{
                        **each,
                        "sample": tuple(each["sample"]),
                        "deletions": base64.b64decode(each["deletions"]),
                    }
                )
                for each in facts["tenants"]
            )
            return cls(**facts)
        except (ValueError, TypeError, KeyError) as exc:
            raise Invalid(f"this is no plan: {exc}", hint="make one with `analemma gc plan --out FILE`") from exc


@dataclass(frozen=True, slots=True)
class TenantReport:
    """What happened to one tenant's blocks."""

    tenant: str
    expired: int = 0
    total: int = 0
    referenced: int = 0
    cleared: int = 0
    doomed: int = 0
    deleted: int = 0
    bytes: int = 0
    problem: str | None = None
    kind: str | None = None
    keys: int = 0
    """Idempotency keys that were forgotten: they counted no more."""
    leases: int = 0
    """Leases of payloads that ended with their executions, which nobody had released."""


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a run did."""

    number: int
    """Of the pass."""
    tenants: tuple[TenantReport, ...]
    claimed: int
    """Uploads that were claimed."""
    objects: int
    """Objects that were deleted."""
    object_bytes: int
    failures: int
    """Requests of the failure queue that were settled."""
    problems: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kinds of error behind the problems."""
    stopped: bool = False

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def expired(self) -> int:
        return sum([each.expired for each in self.tenants])

    @property
    def total(self) -> int:
        return sum([each.total for each in self.tenants])

    @property
    def referenced(self) -> int:
        return sum([each.referenced for each in self.tenants])

    @property
    def cleared(self) -> int:
        return sum([each.cleared for each in self.tenants])

    @property
    def doomed(self) -> int:
        return sum([each.doomed for each in self.tenants])

    @property
    def deleted(self) -> int:
        return sum([each.deleted for each in self.tenants])

    @property
    def bytes(self) -> int:
        return sum([each.bytes for each in self.tenants])

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        sums = ("expired", "total", "referenced", "cleared", "doomed", "deleted", "bytes")
        return {**{name: getattr(self, name) for name in sums}, **asdict(self), "ok": self.ok}

    def describe(self) -> str:
        """The report for people."""
        lines = [
            f"pass {self.number}: {self.total} blocks, {self.referenced} of them needed",
            f"  deleted {self.deleted} blocks ({self.bytes} bytes), marked {self.doomed} to go, spared {self.cleared}",
            f"  deleted {self.objects} objects ({self.object_bytes} bytes)",
        ]
        if self.expired:
            lines.insert(1, f"  {self.expired} versions expired")
        leases, keys = (sum([getattr(each, name) for each in self.tenants]) for name in ("leases", "keys"))
        if leases:
            lines.append(
                f"  {leases} leases of payloads ended: their executions are over, or did not use them for long"
            )
        if keys:
            lines.append(f"  {keys} idempotency keys were forgotten")
        if self.stopped:
            lines.append("  stopped before its end")
        return "\n".join(lines + [f"  problem: {problem}" for problem in self.problems])


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


def pieces(data: bytes, size: int) -> frozenset[bytes]:
    """A concatenation of ids, taken apart."""
    return frozenset(data[start : start + size] for start in range(0, len(data), size))
