"""The contracts that a store works by: loaded once, seen by every process that has the store open."""

from __future__ import annotations

import copy
import datetime as dt
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analemma.canon.canonical_json import canonical_json, parse_json
from analemma.catalog.engine.db import Engine
from analemma.catalog.entities.contracts import (
    ContractRow,
    Generation,
    generation,
    read_contracts,
    replace_contracts,
)
from analemma.clock import Clock, moment
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.loading import Source, load_contracts, restore_contracts
from analemma.contracts.models import Contract, ContractRef, Status
from analemma.contracts.semver import SemanticVersion, parse_semver
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.sinks.registry import check_target
from analemma.tracing import span

POLL_S: Final = 1.0
"""How long a process may work by contracts that another has replaced."""
PLACE: Final = "the store"
"""Where messages say that a loaded contract stands."""


@dataclass(frozen=True, slots=True)
class StoredContract:
    """A contract that is loaded, without its content."""

    kind: str
    id: str
    version: str
    status: Status
    checksum: str
    loaded_at: dt.datetime
    """When it came, or its status last moved."""


@dataclass(frozen=True, slots=True)
class _Known:
    generation: Generation
    contracts: ContractSet
    rows: tuple[ContractRow, ...]


class Contracts:
    """The contracts of an open store, for all its tenants. Safe to share between threads.

    >>> from analemma.store.open import open_app
    >>> schema = {"kind": "ENTITY_SCHEMA", "id": "entity.note", "version": "1.0.0", "status": "ACTIVE"}
    >>> schema |= {"entityType": "NOTE", "fields": [{"name": "text", "type": "string"}]}
    >>> with open_app("sqlite:///:memory:") as app:
    ...     app.contracts.load(schema).entity_types
    ('NOTE',)
    """

    def __init__(self, engine: Engine, *, clock: Clock, loaded: Callable[[], None]) -> None:
        """`loaded` is called when contracts were loaded from here."""
        self._engine = engine
        self._loaded = loaded
        self._clock = clock
        self._lock = threading.Lock()
        self._known: _Known | None = None
        self._asked_at = 0.0

    def load(self, *sources: Source) -> ContractSet:
        """Check contracts together with those that are loaded, and load them, all or none.

        A source is a directory, a file, one contract as a dict, or a list of them. ContractProblems has everything that
        is wrong, with file and line. What was published keeps its content; its status may move on. What is loaded and
        not named stays as it is. The answer has all contracts, old and new."""
        with span("analemma.contracts.load"):
            given = [_again(source) for source in sources]
            while True:
                known = self._read()
                # Into a store that has none, everything is new: `validate` without --against judges alike.
                before = known.contracts if known.rows else None
                loaded = load_contracts(*given, previous=before, beside=before, check_target=check_target)
                rows = _changed_rows(loaded, known.contracts)
                if not rows:
                    self._remember(known)
                    return loaded
                if replace_contracts(self._engine, known.generation, rows, now_us=self._clock.now_us()):
                    self._remember(self._read())
                    self._loaded()
                    return loaded

    @property
    def current(self) -> ContractSet:
        """What applies now, at most a second behind what other processes load; NotFound if there is nothing."""
        known = self._refreshed()
        if not known.contracts.contracts:
            raise NotFound(
                "no contracts are loaded", hint="app.contracts.load(PATH), or `analemma contracts load PATH`"
            )
        return known.contracts

    def fresh(self) -> ContractSet:
        """What applies now, asked for again; perhaps nothing."""
        known = self._known
        if known is None or generation(self._engine) != known.generation:
            known = self._read()
        return self._remember(known).contracts

    @property
    def loaded_at_us(self) -> int:
        """When contracts were last loaded, as far as is known here."""
        return self._refreshed().generation.newest_us

    def list(self) -> tuple[StoredContract, ...]:
        """Every contract that is loaded, whatever its status, ordered by id and version; empty if there is none."""
        known = self._remember(self._read())
        versions = {(row.id, row.version): parse_semver(row.version) for row in known.rows}
        ordered = sorted(known.rows, key=lambda row: (row.id, versions[row.id, row.version]))
        return tuple(
            StoredContract(
                row.kind,
                row.id,
                row.version,
                Status(row.status),
                row.checksum,
                moment(row.loaded_at_us),
            )
            for row in ordered
        )

    def get(self, contract_id: str, version: str | SemanticVersion | None = None) -> Contract:
        """The contract with this id and version, or the one of this id that applies; NotFound if there is none.

        It is a copy: its document may be changed, and loaded under another version."""
        contracts = self.current
        if version is not None:
            if not isinstance(version, str | SemanticVersion):
                raise Invalid(f"the version is of type {type(version).__name__}", hint="give it as text, as in 1.4.0")
            wanted = parse_semver(version) if isinstance(version, str) else version
            return copy.deepcopy(contracts.contract(ContractRef(contract_id, wanted)))
        found = contracts.newest(contract_id, Contract)
        if found is None:
            raise NotFound(
                f"no contract {contract_id!r} applies", hint="analemma contracts list shows all", contract=contract_id
            )
        return copy.deepcopy(found)

    def _refreshed(self) -> _Known:
        known = self._known
        now = self._clock.monotonic()
        if known is not None and now - self._asked_at < POLL_S:
            return known
        if known is not None and generation(self._engine) == known.generation:
            self._asked_at = now
            return known
        return self._remember(self._read())

    def _read(self) -> _Known:
        newest, rows = read_contracts(self._engine)
        known = self._known
        if known is not None and known.generation == newest:
            return known
        return _Known(newest, _contracts_of(rows, newest), tuple(rows))

    def _remember(self, known: _Known) -> _Known:
        with self._lock:
            # Two threads may read at the same time, and the one that read first be the last to get here.
            if self._known is None or known.generation >= self._known.generation:
                self._known = known
                self._asked_at = self._clock.monotonic()
        return known


def _again(source: Source) -> Source:
    """Something that can be read twice."""
    if isinstance(source, str | Path | Mapping):
        return source
    if not isinstance(source, Iterable):
        raise Invalid(
            f"contracts cannot be loaded from {type(source).__name__}",
            hint="give a directory, a file, a dict or a list of dicts",
        )
    return list(source)


def _contracts_of(rows: Iterable[ContractRow], generation: Generation) -> ContractSet:
    return ContractSet(tuple(map(_contract_of, rows)), loaded_at_us=generation.newest_us)


def _contract_of(row: ContractRow) -> Contract:
    try:
        document = parse_json(row.body)
        if type(document) is not dict:
            raise _damaged(row)
        (contract,) = restore_contracts([document], PLACE).contracts
    except Invalid as exc:
        raise _damaged(row) from exc
    found = contract.id, str(contract.version), contract.kind, contract.status.value, contract.checksum
    if found != (row.id, row.version, row.kind, row.status, row.checksum):
        raise _damaged(row)
    return contract


def _damaged(row: ContractRow) -> Corrupt:
    return Corrupt(
        f"the contract {row.id}@{row.version} in the store is not what was loaded",
        hint="restore the table `contract` from a backup",
        contract=f"{row.id}@{row.version}",
    )


def _changed_rows(loaded: ContractSet, before: ContractSet) -> list[ContractRow]:
    """What there is to write: contracts that are new, drafts with other content, statuses that moved."""

    def is_there(contract: Contract) -> bool:
        found = before.by_ref.get(contract.ref)
        return found is not None and (found.checksum, found.status) == (contract.checksum, contract.status)

    return [
        ContractRow(
            each.id, str(each.version), each.kind, each.status.value, canonical_json(each.document), each.checksum
        )
        for each in loaded.contracts
        if not is_there(each)
    ]
