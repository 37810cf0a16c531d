"""The cutover of deploys, and what the answers of sinks mean for those that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.deploys import (
    Cutover,
    DeployRow,
    DeployState,
    HeldEntity,
    SinkRow,
    advance,
    hold_entities,
    hold_waiting_deploys,
    plan_cutover,
)
from analemma.catalog.outbox.lanes import enqueue
from analemma.catalog.sinks.states import ShippedRow
from analemma.clock import Clock
from analemma.failpoints import declare, hit
from analemma.outbox.failures import clean
from analemma.pipeline.deploy_records import DeployError, format_error, format_report, parse_report
from analemma.pipeline.events import Events
from analemma.slicing.entity_key import EntityKey

ANSWERED = declare("deploy.answered", "a sink's answer and what it means for deploys are written, nothing is committed")


def serve(
    tx: Transaction, deploy: DeployRow, held: HeldEntity, planned: Cutover, events: Events, *, now_us: int
) -> HeldEntity:
    """Serve a deploy's version as was planned, and have those follow that join it; where its entity stands then. The
    entity is held, and the deploy moved."""
    if not planned.moved:
        return held
    served = SimpleNamespace(number=deploy.entity, version=deploy.version)
    tx.call("serve_versions", SimpleNamespace(served=[served]))
    # Whoever joins it from now on has seen the change.
    if planned.changed and tx.one("any_dependant", target=deploy.entity) is not None:
        key = EntityKey(deploy.type, deploy.tenant_name, deploy.key)
        enqueue(
            tx,
            deploy.tenant,
            [events.fanout_requested(key, deploy.version, list(planned.changed))],
            now_us=now_us,
        )
    return held._replace(serving_version=deploy.version, ship_seq=held.ship_seq + 1)


def fail(tx: Transaction, deploy: DeployRow, error: DeployError, *, now_us: int) -> DeployRow | None:
    """Fail a deploy; None if it is no longer where it was."""
    return advance(tx, deploy, DeployState.FAILED, now_us=now_us, reason=str(error), error=format_error(error))


class DeployAnswers:
    """Hears what became of documents that were shipped, in the transaction that records it."""

    def __init__(self, events: Events, *, clock: Clock) -> None:
        self._events = events
        self._clock = clock

    def __call__(self, tx: Transaction, rows: Sequence[ShippedRow]) -> None:
        """Move the deploys that waited for these answers: to FAILED, or, if none is left to wait for, to DONE."""
        concerned = [row[0] for row in tx.all("deploying_entities", entities=sorted({row.entity for row in rows}))]
        if not concerned:
            return
        held = hold_entities(tx, concerned)
        deploys = hold_waiting_deploys(tx, concerned)
        now_us = self._clock.now_us()
        answers = [_answer(row) for row in rows if row.entity in held]
        tx.call("answer_deploy_sinks", SimpleNamespace(now=now_us, answers=answers))
        sinks: dict[int, list[SinkRow]] = {each.number: [] for each in deploys}
        for number, *sink in tx.all("sinks_of_deploys", deploys=sorted(sinks)):
            sinks[number].append(SinkRow(*sink))
        finished = []
        for deploy in deploys:
            refused = next((each for each in sinks[deploy.number] if each.state == "FAILED"), None)
            if refused is not None:
                fail(tx, deploy, sink_error(deploy, refused), now_us=now_us)
            elif not any(each.state == "WAITING" for each in sinks[deploy.number]):
                finished.append(deploy)
        served = [each for each in finished if each.cutover == "ready" or each.report is None]
        if served:
            tx.call("finish_deploys", SimpleNamespace(now=now_us, numbers=[each.number for each in served]))
        for deploy in finished:
            if deploy not in served:
                held[deploy.entity] = self._cut_over(tx, deploy, held[deploy.entity], now_us)
        hit(ANSWERED)

    def _cut_over(self, tx: Transaction, deploy: DeployRow, held: HeldEntity, now_us: int) -> HeldEntity:
        """Every sink of a deploy that waited for that has answered: it is DONE, and served."""
        assert deploy.report is not None
        report = parse_report(deploy.report)
        planned = plan_cutover(tx, deploy.entity, held, deploy.version, [each.type for each in report.slices])
        advance(
            tx,
            deploy,
            DeployState.DONE,
            now_us=now_us,
            reason=None if planned.served else "superseded",
            served=planned.served,
            superseded_by=planned.superseded_by,
            report=format_report(report.telling(planned.changed)),
        )
        return serve(tx, deploy, held, planned, self._events, now_us=now_us)


def _answer(row: ShippedRow) -> SimpleNamespace:
    """What a sink made of an entity as it was at a ship_seq: whoever waited for that, or for less, has his answer."""
    is_refused = row.outcome == "refused"
    # Whatever a sink says must not keep its answer from being written down.
    reason = clean(row.reason or "it was refused") if is_refused else row.outcome
    return SimpleNamespace(
        entity=row.entity, rule=row.sink, ship_seq=row.ship_seq, is_refused=is_refused, reason=reason
    )


def sink_error(deploy: DeployRow, sink: SinkRow) -> DeployError:
    """Why a deploy failed whose document a sink would not take."""
    asked = () if deploy.report is None else parse_report(deploy.report).sinks
    slices = next((each.slices for each in asked if each.rule == sink.rule), ())
    what = f" ({', '.join(slices)})" if slices else ""
    return DeployError(
        "invalid",
        f"the sink {sink.rule} did not take the document{what}: {sink.reason}",
        "mend the sink or the document; then retry, or deploy again",
        sink.rule,
        slices,
    )
