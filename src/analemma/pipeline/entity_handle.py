"""One entity of one tenant, for callers who say several things about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from analemma.slicing.entity_key import EntityKey

if TYPE_CHECKING:
    from analemma.contracts.models import ContractRef
    from analemma.pipeline.deploy_records import Deploy
    from analemma.pipeline.ingest import IngestResult
    from analemma.pipeline.reading import Slice
    from analemma.pipeline.slicing import CompileResult


class EntityVerbs(Protocol):
    """What a tenant does with entities."""

    def ingest(
        self,
        entity_type: str,
        entity_id: str,
        payload: Any,
        *,
        version: str | None = None,
        schema: str | ContractRef | None = None,
    ) -> IngestResult: ...

    def deploy(
        self,
        entity_type: str,
        entity_id: str,
        payload: Any,
        *,
        compile: str = "sync",
        ship: Sequence[str] | None = None,
        cutover: str = "ready",
        version: str | None = None,
        schema: str | ContractRef | None = None,
        idempotency_key: str | None = None,
    ) -> Deploy: ...

    def delete(self, entity_type: str, entity_id: str, *, version: str | None = None) -> IngestResult: ...

    def compile(
        self, entity_type: str, entity_id: str, version: str | None = None, *, mode: str = "auto"
    ) -> CompileResult: ...

    def slices(self, entity_type: str, entity_id: str, version: str | None = None) -> Mapping[str, Slice]: ...


class Entity:
    """`shop.entity("BOOK", "978")`: the tenant's verbs without saying each time which entity."""

    key: EntityKey

    def __init__(self, verbs: EntityVerbs, key: EntityKey) -> None:
        self.key = key
        self._verbs = verbs

    def __repr__(self) -> str:
        return f"<Entity {self.key}>"

    def ingest(
        self, payload: Any, *, version: str | None = None, schema: str | ContractRef | None = None
    ) -> IngestResult:
        """Store a document as a version of this entity."""
        return self._verbs.ingest(self.key.type, self.key.id, payload, version=version, schema=schema)

    def deploy(
        self,
        payload: Any,
        *,
        compile: str = "sync",
        ship: Sequence[str] | None = None,
        cutover: str = "ready",
        version: str | None = None,
        schema: str | ContractRef | None = None,
        idempotency_key: str | None = None,
    ) -> Deploy:
        """Store a document of this entity, and have it compiled, served and shipped."""
        return self._verbs.deploy(
            self.key.type,
            self.key.id,
            payload,
            compile=compile,
            ship=ship,
            cutover=cutover,
            version=version,
            schema=schema,
            idempotency_key=idempotency_key,
        )

    def delete(self, *, version: str | None = None) -> IngestResult:
        """Store that this entity is no more."""
        return self._verbs.delete(self.key.type, self.key.id, version=version)

    def compile(self, version: str | None = None, *, mode: str = "auto") -> CompileResult:
        """Build its slices now."""
        return self._verbs.compile(self.key.type, self.key.id, version, mode=mode)

    def slices(self, version: str | None = None) -> Mapping[str, Slice]:
        """Its slices, by their types."""
        return self._verbs.slices(self.key.type, self.key.id, version)
