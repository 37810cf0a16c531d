"""What readers get who name no version: moving it to another version, and never to an older one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from analemma.catalog.engine.db import Transaction
from analemma.errors import Internal


class Cutover(NamedTuple):
    """What became of one."""

    served: bool
    """Whether the version is served now."""
    moved: bool
    """Whether it was not before."""
    superseded_by: int | None
    """The newer version that is compiled already, if that is why it is not served."""
    changed: tuple[str, ...] = ()
    """The slices that readers get something else of."""


class HeldEntity(NamedTuple):
    """An entity that nobody else changes until the transaction ends."""

    newest_compiled: int | None
    serving_version: int | None
    ship_seq: int


def hold_entities(tx: Transaction, entities: Collection[int]) -> dict[int, HeldEntity]:
    """Hold entities, before anything else that the transaction holds; where each stands."""
    rows = tx.all("hold_served", entities=sorted(set(entities)))
    return {row[0]: HeldEntity(*row[1:]) for row in rows}


def hold_entity(tx: Transaction, entity: int) -> HeldEntity:
    """Hold an entity, before anything else that the transaction holds."""
    return hold_entities(tx, [entity])[entity]


def plan_cutover(tx: Transaction, entity: int, held: HeldEntity, version: int, joined: Collection[str]) -> Cutover:
    """What serving a version from now on comes to; it is not done if a newer one is compiled: sinks follow the newest
    one that is, so what is served and what they have would part ways. `joined` are the slices that others may join.
    Nothing is written."""
    newest, serving, _ = held
    if serving == version:
        return Cutover(True, False, None)
    if newest is None or newest < version:
        raise Internal(f"version {version} of entity {entity} is to be served and is not compiled")
    if newest > version:  # guard: deploy.newest
        return Cutover(False, False, newest)
    changed = tx.all("slices_that_differ", entity=entity, types=sorted(joined), before=serving, version=version)
    return Cutover(True, True, None, tuple(row[0] for row in changed))


def cut_over(tx: Transaction, entity: int, held: HeldEntity, version: int) -> HeldEntity:
    """Serve a version from now on, as was planned; where the entity stands then."""
    tx.call("serve_versions", _Cutovers([_Served(entity, version)]))
    return held._replace(serving_version=version, ship_seq=held.ship_seq + 1)


class _Served(NamedTuple):
    number: int
    version: int


class _Cutovers(NamedTuple):
    """What `serve_versions` takes."""

    served: Sequence[_Served]
