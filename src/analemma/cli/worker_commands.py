"""The command that does a store's work in the background: worker."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import OK
from analemma.cli.options import StoreOptions, on_store
from analemma.cli.output import print_json, printable
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.flows.worker import RunWorker
    from analemma.outbox.worker import Delivered, OutboxPollingWorker
    from analemma.store.store import App

commands = typer.Typer()
MOST_TOLD = 1000
"""Lines of a worker's last words, with --json."""


@on_store(commands, "analemma worker -u ./store --once", name="worker")
def worker(
    store: StoreOptions,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            help="Threads that handle events. Left out: worker_concurrency of the settings.",
            metavar="N",
            min=1,
            max=256,
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Deliver the events that are due, and end.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Do everything once, due or not, and end.")] = False,
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            help="A Python module whose flows, and functions, runs may call; may be given several times.",
            metavar="MODULE",
        ),
    ] = None,
) -> int:
    """Deliver events, collect garbage and pack cold blocks, in one tenant or in all, until SIGTERM or Ctrl-C.

    Begin the runs of schedules that are due. With --module, also go on with runs of workflows: those that nobody began,
    whose worker died, whose time has come.

    Also apply checkpoints that a process left pending, finish what was interrupted on workspaces of this machine, and
    collect their old archives.

    With --drain or --once, the exit code is 1 while an event is dead and parks its aggregate.

    Any number may run; one collects. Asked to stop, a worker finishes what it has begun and gives back the rest."""
    if drain and once:
        raise Invalid("--drain and --once are both given", hint="--once delivers what is due, too")
    with store.open() as app:
        from analemma.cli.jobs import Worker, jobs_of
        from analemma.clock import SystemClock
        from analemma.outbox.tending import told_dead

        # The newest only: a worker may run for months before it tells what it did.
        told: deque[dict[str, str]] = deque(maxlen=MOST_TOLD)

        def tell(job: str, said: str) -> None:
            told.append({"job": job, "said": said})
            if not store.json:
                print("\n".join(map(printable, f"{job}: {said}".splitlines())), flush=True)

        deliveries = app.worker(concurrency, tenant=store.tenant)
        jobs = Worker([] if drain else jobs_of(app, store.tenant, always=once), clock=SystemClock(), tell=tell)
        runs = _run_worker(app, store.tenant, module)
        with _stopped_by_signals(deliveries.stop, jobs.stop, runs.stop):
            if drain or once:
                runs.drain()
                delivered = deliveries.drain()
                failed = jobs.run(once=True) if once else 0
            else:
                with _delivering(deliveries, jobs.stop) as ended, _running(runs):
                    failed = jobs.run()
                delivered = deliveries.counts
                if ended:
                    raise ended[0]
        if delivered != type(delivered)(polls=delivered.polls):
            tell("events", _said(delivered))
        if runs.worked.begun:
            tell("schedules", f"began {runs.worked.begun} runs")
        if runs.worked.runs or runs.worked.failed:
            tell("runs", f"went on {runs.worked.runs} times, {runs.worked.failed} failed")
        parked = app.outbox.status(store.tenant, count_processed=False).parked
        if parked:
            tell("events", f"{told_dead(parked)}: `analemma outbox dead` shows why")
    if store.json:
        print_json({"jobs": list(told), "failed": failed, "events": asdict(delivered), "parked": parked})
    return 1 if (once and failed) or ((drain or once) and parked) else OK


def _run_worker(app: App, tenant: str | None, modules: list[str] | None) -> RunWorker:
    """Without modules it begins the runs of schedules, and goes on with none: every node would be missing."""
    from analemma.flows.programs import load_program

    for module in modules or ():
        load_program(app.handlers, module)
    return app.run_worker(None if modules else 0, tenant=tenant)


@contextmanager
def _running(runs: RunWorker) -> Iterator[None]:
    """Go on with runs in the background."""
    thread = threading.Thread(target=runs.run, name="analemma-runs")
    thread.start()
    try:
        yield
    finally:
        runs.stop()
        thread.join()


@contextmanager
def _delivering(deliveries: OutboxPollingWorker, give_up: Any) -> Iterator[list[BaseException]]:
    """Deliver in the background; what ended that, if it was not asked to end."""
    ended: list[BaseException] = []

    def run() -> None:
        try:
            deliveries.run()
        except BaseException as exc:
            ended.append(exc)
            give_up()

    thread = threading.Thread(target=run, name="analemma-deliveries")
    thread.start()
    try:
        yield ended
    finally:
        deliveries.stop()
        thread.join()


@contextmanager
def _stopped_by_signals(*stops: Any) -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        for each in stops:
            each()

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _said(delivered: Delivered) -> str:
    more = {
        "failed and will be tried again": delivered.failed,
        "dead": delivered.dead,
        "left to other workers": delivered.lost,
    }
    return ", ".join(
        [f"{delivered.delivered} delivered", *(f"{count} {what}" for what, count in more.items() if count)]
    )
