"""Ingest: a document comes in, and is a version of its entity, or is the newest one already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from analemma.canon.nodes import Block
from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.entities import EntityPlace
from analemma.catalog.entities.raws import Fate, NewRaw, Raws, Told, Written
from analemma.catalog.port import BranchKey, OutboxEvent
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import ContractRef, EntitySchema, Status
from analemma.contracts.payloads import check_payload
from analemma.contracts.semver import SemanticVersion, parse_semver
from analemma.errors import AnalemmaError, Conflict, Invalid, Limit, NotFound
from analemma.pipeline.documents import DELETED_HASH, KnownDocuments, format_hash, raw_hash, settle_payload
from analemma.pipeline.events import Events
from analemma.pipeline.versions import Versions, parse_stored_version
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.tsid import Version, format_version
from analemma.tracing import span

BATCH: Final = 100

Within = Callable[[Transaction], None]
"""What else is done in the transaction of an ingest, behind everything of its own."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What became of a document."""

    version: str
    """13 characters; of two versions of an entity the greater text is the newer one."""
    hash: str
    """`sha256:` of the canonical document and its schema."""
    created: bool
    """False: this is the newest content already, or the version named was there with it; nothing was written."""
    unknown_fields: tuple[str, ...] = ()
    """Fields that the schema does not list; they are kept."""


@dataclass(frozen=True, slots=True)
class IngestedItem:
    """What became of one of many documents."""

    entity_type: str
    entity_id: str
    result: IngestResult | None
    error: AnalemmaError | None = None
    """Why it was refused."""

    @property
    def status(self) -> str:
        """`created`, `unchanged` or `refused`."""
        if self.result is None:
            return "refused"
        return "created" if self.result.created else "unchanged"

    @property
    def reason(self) -> str | None:
        """Why it was refused, in words."""
        return None if self.error is None else str(self.error)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A document that was checked, and is not stored yet."""

    raw: NewRaw
    document: Any
    blocks: tuple[Block, ...]
    unknown_fields: tuple[str, ...]


class IngestWorkflow:
    """Takes documents in for one tenant.

    Without a version, a new document becomes the newest version of its entity. Content that the newest version has
    already is not written again; A, B, A are three versions. A version named by the caller may lie below the newest
    one; named again, it must have the same content. A version that lies more than an hour ahead of the clock is taken,
    but does not drag along the versions of other entities: in its own entity, versions are counted on from it."""

    def __init__(
        self,
        context: Context,
        *,
        contracts: Callable[[], ContractSet],
        known: KnownDocuments,
        versions: Versions,
        events: Events,
    ) -> None:
        self._context = context
        self._raws = Raws(context.engine, context.tenant, context.clock)
        self._contracts = contracts
        self._known = known
        self._versions = versions
        self._events = events

    def execute(
        self,
        entity_type: str,
        entity_id: str,
        payload: Any,
        *,
        version: str | None = None,
        schema: str | ContractRef | None = None,
        within: Within | None = None,
    ) -> IngestResult:
        """Store a document as a version of its entity.

        `schema` names the ENTITY_SCHEMA that checks it, by id, `id@version` or reference; without it, the one that
        applies to the type. Invalid for what is no such document, Conflict if the version has other content. `within`
        is called in the transaction, whatever becomes of the document; what it raises undoes all of it."""
        with span("analemma.ingest", entity_type=entity_type):
            key = EntityKey(entity_type, self._context.tenant_name, entity_id)
            prepared = self._prepare(self._contracts(), key, payload, version, schema)
            return self._write_one(key, prepared, within)

    def prepare(
        self, key: EntityKey, payload: Any, *, version: str | None = None, schema: str | ContractRef | None = None
    ) -> Prepared:
        """Check a document as `execute` does, and store nothing."""
        return self._prepare(self._contracts(), key, payload, version, schema)

    def store(
        self,
        key: EntityKey,
        prepared: Prepared,
        *,
        event: Callable[[int], OutboxEvent],
        told: Callable[[Transaction, Written], None],
        wake: bool = True,
    ) -> IngestResult:
        """Store it as `execute` does, with an event of the caller's if it becomes a version; `told` runs in the same
        transaction and hears what becomes of it. Without `wake`, the caller wakes workers."""
        chosen = replace(prepared, raw=replace(prepared.raw, event=event))
        (written,) = self._write([chosen], told=lambda tx, answers: told(tx, answers[0]), wake=wake)
        return _result(key, chosen, written)

    def delete(
        self,
        entity_type: str,
        entity_id: str,
        *,
        version: str | None = None,
        within: Within | None = None,
        told: Callable[[Transaction, Written], None] | None = None,
    ) -> IngestResult:
        """Store that an entity is no more, as a version of its own. One that is deleted already is left as it is;
        NotFound for one that never was."""
        with span("analemma.delete", entity_type=entity_type):
            key = EntityKey(entity_type, self._context.tenant_name, entity_id)
            raw = self._new_raw(key, DELETED_HASH, None, None, 0, version)
            return self._write_one(key, Prepared(raw, None, (), ()), within, told)

    def execute_many(self, items: Iterable[tuple[str, str, Any]], *, batch: int = BATCH) -> list[IngestedItem]:
        """Store many documents, `batch` of them in a transaction; what became of each, in their order.

        What is refused does not keep the others out. An error that is of no single document (the database is gone)
        is raised; the batches before it are stored, and may be sent again."""
        if batch < 1:
            raise Invalid(f"a batch of {batch} is none", hint="1 or more")
        with span("analemma.ingest_many"):
            contracts = self._contracts()
            found: list[IngestedItem] = []
            waiting: list[tuple[int, EntityKey, Prepared]] = []
            held: set[EntityKey] = set()
            for entity_type, entity_id, payload in items:
                try:
                    key = EntityKey(entity_type, self._context.tenant_name, entity_id)
                    prepared = self._prepare(contracts, key, payload, None, None)
                except (Invalid, NotFound) as exc:
                    found.append(IngestedItem(entity_type, entity_id, None, exc))
                    continue
                # An entity is held once in a transaction; and what comes twice is to be two versions.
                if len(waiting) >= batch or key in held:
                    self._flush(waiting, found)
                    held.clear()
                held.add(key)
                waiting.append((len(found), key, prepared))
                found.append(IngestedItem(entity_type, entity_id, None))
            self._flush(waiting, found)
            return found

    def _flush(self, waiting: list[tuple[int, EntityKey, Prepared]], found: list[IngestedItem]) -> None:
        if not waiting:
            return
        answers = self._write([prepared for _, _, prepared in waiting])
        for (index, key, prepared), written in zip(waiting, answers, strict=True):
            try:
                found[index] = IngestedItem(key.type, key.id, _result(key, prepared, written))
            except (Conflict, NotFound, Limit) as exc:
                found[index] = IngestedItem(key.type, key.id, None, exc)
        waiting.clear()

    def _prepare(
        self,
        contracts: ContractSet,
        key: EntityKey,
        payload: Any,
        version: str | None,
        schema: str | ContractRef | None,
    ) -> Prepared:
        checked_by = contracts.schema(key.type) if schema is None else _named_schema(contracts, key, schema)
        document, text = settle_payload(payload)
        # As its first version, so every later one: a compile would refuse the change of such a path, and leave it.
        unknown_fields = check_payload(checked_by, document, contracts.find_ruleset(key.type))
        tree = self._context.trees.build(document)
        named = str(checked_by.version)
        raw = self._new_raw(
            key, raw_hash(text, checked_by.id, named), (checked_by.id, named), tree.root.id, len(text), version
        )
        return Prepared(raw, document, tree.blocks, unknown_fields)

    def _new_raw(
        self,
        key: EntityKey,
        digest: bytes,
        schema: tuple[str, str] | None,
        root: Any,
        size: int,
        version: str | None,
    ) -> NewRaw:
        event_id = self._events.new_id()
        schema_id, schema_version = schema or (None, None)
        return NewRaw(
            place=EntityPlace(key.type, key.id),
            hash=digest,
            schema_id=schema_id,
            schema_version=schema_version,
            root=root,
            size=size,
            version=self._versions.generate() if version is None else parse_stored_version(version),
            named=version is not None,
            event=lambda chosen: self._events.raw_data_ingested(key, chosen, event_id),
        )

    def _write_one(
        self,
        key: EntityKey,
        prepared: Prepared,
        within: Within | None = None,
        told: Callable[[Transaction, Written], None] | None = None,
    ) -> IngestResult:
        heard: Told | None = None if told is None else lambda tx, answers: told(tx, answers[0])
        (written,) = self._write([prepared], within, heard)
        return _result(key, prepared, written)

    def _write(
        self,
        prepared: Sequence[Prepared],
        within: Within | None = None,
        told: Told | None = None,
        *,
        wake: bool = True,
    ) -> list[Written]:
        blocks = {block.id: block for each in prepared for block in each.blocks}
        place = prepared[0].raw.place
        ready = self._context.blocks.prepare(list(blocks.values()), BranchKey(place.type, place.id, "raw"), None)
        rows = {row.id: row for row in ready.rows}
        raws = [replace(each.raw, blocks=tuple(rows[block.id] for block in each.blocks)) for each in prepared]
        try:
            now_us = self._context.clock.now_us()
            answers = self._raws.write(raws, uploads=ready.uploads, now_us=now_us, within=within, told=told)
        except AnalemmaError as exc:
            self._context.blocks.give_up(ready.uploads, exc)
            raise
        if any(answer.fate is Fate.CREATED for answer in answers):
            if wake:
                self._context.wake()
            self._context.blocks.remember(blocks.values())
            for each, raw, answer in zip(prepared, raws, answers, strict=True):
                if raw.root is not None and answer.fate is Fate.CREATED:
                    self._known.put(raw.root, raw.hash, each.document, raw.size)
                # Not those of our own making: each would cost the clock a millisecond.
                if raw.named or answer.version != raw.version:
                    self._versions.observe(answer.version)
        else:
            self._context.blocks.give_up(ready.uploads, Conflict("nothing of it is new"))
        return answers


def _result(key: EntityKey, prepared: Prepared, written: Written) -> IngestResult:
    if written.fate is Fate.ABSENT:
        raise NotFound(f"there is no {key} to delete", hint="ids keep their case", entity=str(key))
    if written.fate is Fate.EXHAUSTED:
        raise Limit(f"{key} has the greatest version that there is", hint="name a version below it", entity=str(key))
    version = format_version(Version(written.version))
    if written.fate is Fate.CONFLICT:
        raise Conflict(
            f"version {version} of {key} is there with other content",
            hint="versions are never overwritten: name another one, or none",
            entity=str(key),
            version=version,
        )
    created = written.fate is Fate.CREATED
    return IngestResult(version, format_hash(prepared.raw.hash), created, prepared.unknown_fields)


def _named_schema(contracts: ContractSet, key: EntityKey, schema: str | ContractRef) -> EntitySchema:
    version: SemanticVersion | None
    if isinstance(schema, ContractRef):
        schema_id, version = schema.id, schema.version
    else:
        schema_id, named, text = schema.partition("@")
        if named and not text:
            raise Invalid(f"the schema {schema!r} names no version behind the @", hint="write ID, or ID@VERSION")
        version = parse_semver(text) if named else None
    found = contracts.newest(schema_id, EntitySchema, version)
    if found is None or found.status is Status.ARCHIVED:
        raise NotFound(f"there is no ENTITY_SCHEMA {schema}", hint="see contracts list", schema=str(schema))
    if found.entity_type != key.type:
        raise Invalid(
            f"{found.ref} is the schema of {found.entity_type}, not of {key.type}",
            hint=f"name a schema of {key.type}, or none",
            schema=str(found.ref),
        )
    return found
