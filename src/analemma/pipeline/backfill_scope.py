"""What a backfill goes through and how, as a user says it and as the catalog keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, Literal

from analemma.catalog.entities.backfills import EntityChoice
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import SinkRule
from analemma.errors import Invalid, NotFound
from analemma.slicing.entity_key import EntityKey, why_no_id
from analemma.slicing.incremental import CompileMode

MOST_IDS: Final = 10_000
LONGEST_PREFIX_BYTES: Final = 512
LARGEST_PAGE: Final = 1000


class BackfillKind(StrEnum):
    """What is done with each entity."""

    RAW_TO_SLICE = "raw_to_slice"
    """It is compiled again; sinks are asked to ship what changes."""
    SLICE_TO_SINK = "slice_to_sink"
    """Sinks are asked to ship it again, changed or not."""
    FULL = "full"
    """Both."""
    DEAD_LETTERS = "dead_letters"
    """Events that were given up on are delivered again."""

    @property
    def compiles(self) -> bool:
        return self in (BackfillKind.RAW_TO_SLICE, BackfillKind.FULL)

    @property
    def ships(self) -> bool:
        return self in (BackfillKind.SLICE_TO_SINK, BackfillKind.FULL)


@dataclass(frozen=True, slots=True)
class BackfillScope:
    """Which entities, or events, and which of their versions and sinks.

    >>> BackfillScope(tenant="shop", types=("BOOK",), stale=True).describe()
    'BOOK of shop, only stale ones'
    """

    tenant: str | None = None
    """None: the tenant that the settings name."""
    types: tuple[str, ...] = ()
    """Entity types; none: all that there are rules for."""
    ids: tuple[str, ...] | None = None
    prefix: str = ""
    """Only ids that begin so."""
    stale: bool = False
    """Only entities that were not compiled by the rules of today from their newest version: after an upgrade of a
    ruleset. They are found by the fingerprints of their compiles, without reading them."""
    sinks: tuple[str, ...] | None = None
    """Ids of sink rules; None: every one that matches, (): none."""
    versions: Literal["newest", "all"] = "newest"
    """Which versions are compiled: the newest, and the one that is served where that is another; or all, oldest
    first."""
    events: tuple[str, ...] = ()
    """Of dead letters: only events of these types."""

    def describe(self) -> str:
        """In words."""
        said = [f"{', '.join(self.types) or 'everything'} of {self.tenant or 'the default tenant'}"]
        if self.ids is not None:
            said.append(f"{len(self.ids)} ids")
        if self.prefix:
            said.append(f"ids that begin with {self.prefix!r}")
        if self.stale:
            said.append("only stale ones")
        if self.versions == "all":
            said.append("all versions")
        if self.sinks is not None:
            said.append(f"sinks {', '.join(self.sinks) or 'none'}")
        if self.events:
            said.append(f"events {', '.join(self.events)}")
        return ", ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """How a backfill works."""

    page: int = 100
    """Entities per call."""
    rate: float | None = None
    """Entities per second, at most; None: as fast as it goes."""
    mode: CompileMode = field(default=CompileMode.FULL)
    """FULL evaluates every rule; AUTO takes what was compiled before for granted where the rules are the same."""

    def __post_init__(self) -> None:
        if not isinstance(self.page, int) or not 1 <= self.page <= LARGEST_PAGE:
            raise Invalid(f"a page of {self.page}", hint=f"from 1 to {LARGEST_PAGE} entities")
        if self.rate is not None and not (isinstance(self.rate, int | float) and 0 < self.rate < 1e9):
            raise Invalid(f"a rate of {self.rate} entities per second", hint="give a number above 0, or none")


def read_scope(given: BackfillScope | Mapping[str, Any] | None, tenant: str) -> BackfillScope:
    """The scope that a caller means, each part checked; `tenant` is meant where none is named."""
    if given is None:
        given = BackfillScope()
    if isinstance(given, Mapping):
        unknown = set(given) - {each.name for each in fields(BackfillScope)}
        if unknown:
            known = ", ".join(each.name for each in fields(BackfillScope))
            raise Invalid(f"a scope has no {sorted(map(str, unknown))[0]!r}", hint=f"it has {known}")
        given = BackfillScope(**given)
    if not isinstance(given, BackfillScope):
        raise Invalid(f"a scope of type {type(given).__name__}", hint="give a BackfillScope, or a dict of its parts")
    scope = replace(
        given,
        tenant=given.tenant or tenant,
        types=_texts("types", given.types) or (),
        ids=_texts("ids", given.ids),
        sinks=_texts("sinks", given.sinks),
        events=_texts("events", given.events) or (),
    )
    for each in scope.types:
        EntityKey(each, "t", "i")
    for entity_id in scope.ids or ():
        reason = why_no_id(entity_id)
        if reason is not None:
            raise Invalid(f"not an entity id: {entity_id!r}: {reason}", hint="ids are short text without '#'")
    if scope.ids is not None and not 1 <= len(scope.ids) <= MOST_IDS:
        raise Invalid(f"{len(scope.ids)} ids", hint=f"give 1 to {MOST_IDS:,}, or a prefix")
    if not isinstance(scope.prefix, str) or len(scope.prefix.encode(errors="replace")) > LONGEST_PREFIX_BYTES:
        raise Invalid("not a prefix of ids", hint=f"short text, at most {LONGEST_PREFIX_BYTES} bytes")
    if scope.prefix and why_no_id(scope.prefix.rstrip() or "x") is not None:
        raise Invalid(f"no id begins with {scope.prefix!r}", hint="ids are short text without '#'")
    if scope.versions not in ("newest", "all"):
        raise Invalid(f"there are no versions {scope.versions!r}", hint="newest or all")
    return scope


def check_scope(scope: BackfillScope, kind: BackfillKind) -> None:
    """Raise Invalid for what a kind does not look at: it would be done to more than was meant."""
    refused = {
        "stale": scope.stale and not kind.compiles,
        "versions": scope.versions == "all" and not kind.compiles,
        "events": bool(scope.events) and kind is not BackfillKind.DEAD_LETTERS,
        "sinks": scope.sinks is not None and kind is BackfillKind.DEAD_LETTERS,
    }
    for name, wrong in refused.items():
        if wrong:
            raise Invalid(f"a backfill {kind.value} does not go by {name}", hint=f"leave {name} out of the scope")
    if kind is BackfillKind.SLICE_TO_SINK and scope.sinks == ():
        raise Invalid("no sink is to be asked", hint="name sinks, or leave them out for all that match")


def scope_types(scope: BackfillScope, kind: BackfillKind, contracts: ContractSet) -> tuple[str, ...]:
    """The entity types of a scope, each after those that it joins; NotFound for one that nothing is known of."""
    known = contracts.build_order()
    unknown = [each for each in scope.types if each not in known]
    if unknown:
        raise NotFound(f"no contract is about {unknown[0]}", hint="`analemma contracts list` shows all")
    for each in scope.types:
        if kind.compiles:
            contracts.ruleset(each)
    for each in scope.sinks or ():
        if not any(each == rule.id for rule in contracts.of_kind(SinkRule)):
            raise NotFound(f"there is no sink rule {each}", hint="`analemma contracts list` shows all", sink=each)
    found = [each for each in known if not scope.types or each in scope.types]
    if kind.compiles:
        return tuple(each for each in found if contracts.find_ruleset(each) is not None)
    return tuple(each for each in found if sinks_of(scope, each, contracts))


def sinks_of(scope: BackfillScope, entity_type: str, contracts: ContractSet) -> tuple[str, ...]:
    """The sink rules of a scope that ship a type."""
    rules = [each.id for each in contracts.sink_rules(entity_type)]
    return tuple(each for each in rules if scope.sinks is None or each in scope.sinks)


def ship_by_compile(
    kind: BackfillKind, scope: BackfillScope, entity_type: str, contracts: ContractSet
) -> tuple[str, ...] | None:
    """The sinks that a compile asks by itself, None for all: with FULL none, for they are all asked anyway."""
    if kind is BackfillKind.FULL:
        return ()
    return None if scope.sinks is None else sinks_of(scope, entity_type, contracts)


def choice_of(scope: BackfillScope, kind: BackfillKind, entity_type: str, contracts: ContractSet) -> EntityChoice:
    """Which entities of a type a scope has."""
    ruleset = contracts.find_ruleset(entity_type)
    return EntityChoice(
        entity_type,
        prefix=scope.prefix,
        ids=scope.ids,
        fingerprint="" if ruleset is None else ruleset.fingerprint,
        stale=scope.stale,
        compiled=kind is BackfillKind.SLICE_TO_SINK,
    )


def dump_scope(scope: BackfillScope) -> str:
    """As the catalog keeps it."""
    return json.dumps(asdict(scope))


def load_scope(text: str) -> BackfillScope:
    """As it was."""
    return BackfillScope(**{name: _frozen(value) for name, value in json.loads(text).items()})


def dump_options(options: BackfillOptions) -> str:
    """As the catalog keeps it."""
    return json.dumps(asdict(options))


def load_options(text: str) -> BackfillOptions:
    """As it was."""
    told = json.loads(text)
    return BackfillOptions(told["page"], told["rate"], CompileMode(told["mode"]))


def _texts(name: str, given: Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    found = (given,) if isinstance(given, str) else tuple(given)
    for each in found:
        if not isinstance(each, str):
            raise Invalid(f"{name} of a scope are texts, not {type(each).__name__}")
    return tuple(dict.fromkeys(found))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def stale_command(tenant: str, entity_type: str) -> str:
    """The command that compiles what other rules made than those of today."""
    return f"analemma backfill run --tenant {tenant} --type {entity_type} --stale"
