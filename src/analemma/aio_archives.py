"""Workspaces and their archives for asyncio: the verbs of `app.archives` as coroutines, each a hop to a thread of
`analemma.aio`. Hooks, and functions that are told of progress, are called in such a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import islice
from typing import TYPE_CHECKING

from analemma.aio_pipeline import Hopping, hop
from analemma.archives.archives import PAGE, Archives

if TYPE_CHECKING:
    from analemma.archives.parts import Workspace
    from analemma.catalog.workspaces import Status


class AsyncArchives(Hopping[Archives]):
    """One tenant's workspaces."""

    on_start = hop(Archives.on_start)
    on_stop = hop(Archives.on_stop)
    create = hop(Archives.create)
    adopt = hop(Archives.adopt)
    get = hop(Archives.get)
    unit = hop(Archives.unit)
    archive = hop(Archives.archive)
    restore = hop(Archives.restore)
    start = hop(Archives.start)
    stop = hop(Archives.stop)
    delete = hop(Archives.delete)
    undelete = hop(Archives.undelete)
    purge = hop(Archives.purge)
    recover = hop(Archives.recover)
    reconcile = hop(Archives.reconcile)
    gc_plan = hop(Archives.gc_plan)
    gc_run = hop(Archives.gc_run)
    gc_is_due = hop(Archives.gc_is_due)

    async def list(
        self, *, owner_id: str | None = None, status: Status | None = None, deleted: bool = False
    ) -> AsyncIterator[Workspace]:
        listed = self._target.list(owner_id=owner_id, status=status, deleted=deleted)
        while page := await self._threads.run(lambda: tuple(islice(listed, PAGE))):
            for each in page:
                yield each

    list.__doc__ = Archives.list.__doc__
