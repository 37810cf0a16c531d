"""Which sinks a deploy asks to ship, and why the others are not asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property

from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.deploys import (
    DeployRow,
    LaneLeft,
    SinkRow,
    lanes_left,
)
from analemma.catalog.port import OutboxEvent
from analemma.catalog.sinks.states import EntitySinkState
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import SinkRule
from analemma.pipeline.deploy_records import ExplainedSink
from analemma.pipeline.events import SLICE, Events, ship_lane
from analemma.pipeline.slicing import CompileResult
from analemma.slicing.entity_key import EntityKey


class SinkStandings:
    """Where the sinks of an entity stand with it when a deploy of it is compiled; each thing is read when somebody asks
    for it, for all of them at once."""

    def __init__(self, tx: Transaction, deploy: DeployRow, key: EntityKey, rules: Sequence[SinkRule]) -> None:
        self._tx = tx
        self._deploy = deploy
        self._key = key
        self._rules = rules

    def held(self, rule: SinkRule) -> EntitySinkState | None:
        """What it is known to have; None: nothing."""
        return self._held.get(rule.id)

    def before(self, rule: SinkRule) -> SinkRow | None:
        """What an earlier attempt of the deploy asked it."""
        return self._before.get(rule.id)

    def lane(self, rule: SinkRule) -> LaneLeft:
        """What it is still to be asked."""
        return self._lanes[ship_lane(self._key, rule.id)]

    def changed_since(self, rule: SinkRule, held: EntitySinkState) -> tuple[str, ...]:
        """Its slices that became something else, or may have, since what it has."""
        return tuple(
            kind
            for kind, (last, again) in sorted(self._written.items())
            if (rule.slice_types is None or kind in rule.slice_types)
            # Of two compiles of one version nobody knows which of them it has.
            and (last > held.version or (last == held.version and again))
        )

    @cached_property
    def _held(self) -> dict[str, EntitySinkState]:
        return {
            row[0]: EntitySinkState(*row) for row in self._tx.all("sink_states_of_entity", entity=self._deploy.entity)
        }

    @cached_property
    def _before(self) -> dict[str, SinkRow]:
        if self._deploy.attempt == 1:
            return {}
        return {each.rule: each for each in self._tx.rows(SinkRow, "deploy_sinks", deploy=self._deploy.number)}

    @cached_property
    def _lanes(self) -> Mapping[str, LaneLeft]:
        ids = [ship_lane(self._key, each.id) for each in self._rules]
        return lanes_left(self._tx, self._deploy.tenant, SLICE, ids)

    @cached_property
    def _written(self) -> dict[str, tuple[int, bool]]:
        """The slices that were written since what the sinks have, each with the last version that wrote it, and whether
        a version was compiled again, and the slice became something else by that."""
        since = min(each.version for each in self._held.values())
        asked = {"entity": self._deploy.entity, "since": since, "version": self._deploy.version}
        return {kind: (last, bool(again)) for kind, last, again in self._tx.all("slices_since", **asked)}


def judge_sink(
    rule: SinkRule,
    deploy: DeployRow,
    result: CompileResult,
    standings: SinkStandings,
    *,
    ship_seq: int,
    superseded: bool,
) -> ExplainedSink:
    """Whether the sink is to be waited for, and why. Those whose slices the compile changed were asked by it."""
    named = None if deploy.ship is None else json.loads(deploy.ship)
    if named is not None and rule.id not in named:
        return ExplainedSink(rule.id, False, "the deploy ships nothing" if not named else "the deploy names others")
    if superseded:
        return ExplainedSink(rule.id, False, "a newer version is compiled, and sinks follow that one")
    if rule.id in result.ships:
        changed = tuple(each for each in result.written if rule.slice_types is None or each in rule.slice_types)
        return ExplainedSink(rule.id, True, "its slices changed", changed)
    held = standings.held(rule)
    if held is not None and held.ship_seq >= ship_seq:
        return ExplainedSink(rule.id, False, "it has this state already")
    before = standings.before(rule)
    if before is not None and before.state != "ANSWERED" and (held is None or held.ship_seq < before.ship_seq):
        return ExplainedSink(rule.id, True, "it has not answered an earlier attempt")
    if held is None:
        return ExplainedSink(rule.id, True, "it has nothing of this entity yet")
    if standings.lane(rule).left:
        return ExplainedSink(rule.id, True, "it has not answered an earlier request")
    missing = standings.changed_since(rule, held)
    if missing:
        return ExplainedSink(rule.id, True, "it was not asked to take what changed before", missing)
    return ExplainedSink(rule.id, False, "none of its slices changed")


def plan_sinks(
    tx: Transaction,
    contracts: ContractSet,
    events: Events,
    deploy: DeployRow,
    result: CompileResult,
    *,
    ship_seq: int,
    superseded: bool,
) -> tuple[list[ExplainedSink], list[OutboxEvent]]:
    """What becomes of every sink rule of the entity's type, and the requests that are still to be made."""
    rules = contracts.sink_rules(deploy.type)
    key = EntityKey(deploy.type, deploy.tenant_name, deploy.key)
    standings = SinkStandings(tx, deploy, key, rules)
    judged = [judge_sink(rule, deploy, result, standings, ship_seq=ship_seq, superseded=superseded) for rule in rules]
    requests = [
        events.ship_requested(key, deploy.version, ship_seq, each.rule)
        for each in judged
        if each.asked and each.rule not in result.ships
    ]
    return judged, requests
