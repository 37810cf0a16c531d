"""Rows of schedules. A tick is passed in the transaction of the run that it begins, so that it is passed once."""

from __future__ import annotations

from typing import NamedTuple

from analemma.catalog.engine.db import Engine
from analemma.catalog.port import TenantId


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


def due_schedules(engine: Engine, *, now_us: int, tenant: TenantId | None) -> list[ScheduleRow]:
    """Of a tenant, or of all: what has a tick by now, a hundred at a time."""
    return engine.rows(ScheduleRow, "due_schedules", now=now_us, tenant=tenant, limit=100)
