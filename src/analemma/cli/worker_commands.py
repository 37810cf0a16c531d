"""The command that keeps a store in order: worker."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import OK
from analemma.cli.options import StoreOptions, on_store
from analemma.cli.output import print_json

if TYPE_CHECKING:
    from analemma.gc.packing import Packing

commands = typer.Typer()


@on_store(commands, "analemma worker -u ./store --once", name="worker")
def worker(
    store: StoreOptions,
    once: Annotated[bool, typer.Option("--once", help="Do everything once, due or not, and end.")] = False,
) -> int:
    """Collect garbage and pack cold blocks, in one tenant or in all, until SIGTERM or Ctrl-C.

    Any number may run; one collects."""
    with store.open() as app:
        from analemma.clock import SystemClock
        from analemma.gc.worker import Worker, collection_jobs, packing_jobs

        jobs = collection_jobs(app.gc, interval_s=app.settings.gc_interval_s, tenant=store.tenant, always=once)
        if app.objects is not None:

            def packings() -> list[tuple[str, Packing]]:
                names = app.gc.tenants() if store.tenant is None else [store.tenant]
                return [(name, app.tenant(name).packing) for name in names]

            jobs += packing_jobs(packings, interval_s=app.settings.gc_interval_s)
        told: list[dict[str, str]] = []

        def tell(job: str, said: str) -> None:
            told.append({"job": job, "said": said})
            if not store.json:
                print(f"{job}: {said}", flush=True)

        running = Worker(jobs, clock=SystemClock(), tell=tell)
        before = [(number, signal.signal(number, _stops(running))) for number in (signal.SIGTERM, signal.SIGINT)]
        try:
            failed = running.run(once=once)
        finally:
            for number, handler in before:
                signal.signal(number, handler)
    if store.json:
        print_json({"jobs": told, "failed": failed})
    return 1 if once and failed else OK


def _stops(running: Any) -> Any:
    return lambda number, frame: running.stop()
