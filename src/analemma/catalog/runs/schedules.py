"""Rows of schedules. A tick is passed in the transaction of the run that it begins, so that it is passed once."""

from __future__ import annotations

from typing import NamedTuple

from analemma.catalog.engine.db import Engine
from analemma.catalog.port import RowChange, TenantId


class ScheduleRow(NamedTuple):
    """A schedule. `document`, `definition` and `error` are JSON; times are microseconds."""

    tenant: TenantId
    name: str
    document: str
    definition: str
    revision: int
    paused: int
    next_at_us: int | None
    look_at_us: int | None
    last_at_us: int | None
    error: str | None
    created_at_us: int
    updated_at_us: int


class ScheduleRows:
    """One tenant's schedules."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant

    def get(self, name: str) -> ScheduleRow | None:
        """One schedule."""
        return self._engine.row(ScheduleRow, "schedule", tenant=self._tenant, name=name)

    def all(self) -> list[ScheduleRow]:
        """By their names."""
        return self._engine.rows(ScheduleRow, "schedules", tenant=self._tenant)

    def put(
        self, name: str, *, document: str, definition: str, next_us: int | None, instead: ScheduleRow | None = None
    ) -> bool:
        """A new one, or one in the place of another as it was seen. False: the name is taken, or that is another by
        now."""
        asked = {"document": document, "definition": definition, "next": next_us}
        if instead is None:
            return self._engine.write(lambda tx: tx.execute("add_schedule", **asked, **self._named(name))) == 1
        return self._engine.write(lambda tx: tx.execute("replace_schedule", **asked, **self._seen(instead))) == 1

    def advanced(self, row: ScheduleRow, *, tick_us: int | None, next_us: int | None) -> RowChange:
        """For the commit of a tick's run: the schedule goes on to the next."""
        asked = self._seen(row) | {"tick": tick_us, "next": next_us}
        return RowChange("advance_schedule", asked)

    def advance(self, row: ScheduleRow, *, tick_us: int | None, next_us: int | None) -> bool:
        """The same alone; False: somebody else was first."""
        change = self.advanced(row, tick_us=tick_us, next_us=next_us)
        return self._engine.write(lambda tx: tx.execute(change.statement, **change.parameters)) == 1

    def postpone(self, row: ScheduleRow, *, look_us: int, error: str) -> None:
        """Try a tick again later, and keep why."""
        asked = self._seen(row) | {"look": look_us, "error": error}
        self._engine.write(lambda tx: tx.execute("postpone_schedule", **asked))

    def pause(self, name: str) -> bool:
        """No ticks for now; False: there is none of the name."""
        return self._engine.write(lambda tx: tx.execute("pause_schedule", **self._named(name))) == 1

    def resume(self, name: str, *, next_us: int | None) -> bool:
        """Ticks again; False: there is none of the name that is paused."""
        return self._engine.write(lambda tx: tx.execute("resume_schedule", next=next_us, **self._named(name))) == 1

    def remove(self, name: str) -> bool:
        """No ticks any more; False: there is none of the name."""
        return self._engine.write(lambda tx: tx.execute("drop_schedule", **self._named(name))) == 1

    def _named(self, name: str) -> dict[str, object]:
        return {"tenant": self._tenant, "name": name}

    def _seen(self, row: ScheduleRow) -> dict[str, object]:
        return self._named(row.name) | {"revision": row.revision, "seen": row.next_at_us}


def due_schedules(
    engine: Engine, *, now_us: int, tenant: TenantId | None = None, limit: int = 100
) -> list[ScheduleRow]:
    """Of a tenant, or of all: what has a tick by now."""
    return engine.rows(ScheduleRow, "due_schedules", now=now_us, tenant=tenant, limit=limit)
