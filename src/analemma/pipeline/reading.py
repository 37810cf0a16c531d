"""Reading slices: what an entity was compiled to, checked against its hashes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from analemma.catalog.entities.entities import MAXIMUM_VERSION, EntityPlace
from analemma.catalog.entities.slices import CompileRow, SliceRow, WantedSlice, compile_starts, find_slices
from analemma.context import Context
from analemma.errors import Corrupt, NotFound
from analemma.pipeline.dependencies import parse_dependencies
from analemma.pipeline.deploy_records import HeldBack
from analemma.pipeline.documents import check_slice, damaged_slice, format_hash
from analemma.slicing.changes import Document
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.evaluate import Tombstone, TombstoneReason
from analemma.slicing.joining import Dependency
from analemma.slicing.tsid import Version, format_version, parse_version

_HINT: Final = "compile it, or run a worker"


@dataclass(frozen=True)
class Slice:
    """A slice of an entity at a version, or the tombstone in its place."""

    type: str
    data: Document | None = field(repr=False)
    hash: str | None
    version: str
    """The version that last changed it."""
    revision: int
    tombstone: Tombstone | None
    ruleset: str
    """By which the version was compiled, as `id@version`."""
    dependencies: tuple[Dependency, ...] = ()
    """The slices of other entities that it was made of."""


class SliceReader:
    """Reads slices of one tenant."""

    def __init__(
        self,
        context: Context,
        held_back: Callable[[Collection[int]], Mapping[int, HeldBack]],
    ) -> None:
        """`held_back` says which deploys entities wait for, by their numbers."""
        self._held_back = held_back
        self._context = context

    def read(self, entity_type: str, entity_id: str, version: str | None = None) -> dict[str, Slice]:
        """All slices of a version, or of the one that is served, by type; NotFound if it is not there or not compiled,
        Corrupt if a slice is not what its hash says."""
        key = EntityKey(entity_type, self._context.tenant_name, entity_id)
        place = EntityPlace(entity_type, entity_id)
        wanted_version = None if version is None else parse_version(version)
        beyond = wanted_version is not None and wanted_version > MAXIMUM_VERSION
        asked = {"type": place.type, "key": place.id, "version": None if beyond else wanted_version}
        row = self._context.engine.one("slices_start", tenant=self._context.tenant, **asked)
        if row is None or row[1] is None:
            raise NotFound(f"there is no {key}", hint="ids keep their case", entity=str(key))
        if beyond:
            raise _no_version(key, version)
        number, compiled = row[0], None if row[2] is None else CompileRow(*row[2:])
        if compiled is None:
            if version is not None and not self._was_ingested(place, wanted_version):
                raise _no_version(key, version)
            held = self._held_back([number]).get(number)
            if held is not None and version in (None, held.deploy.version):
                raise held.error(key)
            what = str(key) if version is None else f"version {version} of {key}"
            raise NotFound(f"{what} is not compiled", hint=_HINT, entity=str(key), version=version)
        dependencies = parse_dependencies(compiled.dependencies, self._context.tenant_name)
        wanted = [WantedSlice(place, slice_type, compiled.version) for slice_type in dependencies]
        rows = [each.row for each in find_slices(self._context.engine, self._context.tenant, wanted) if each.row]
        ruleset = f"{compiled.ruleset_id}@{compiled.ruleset_version}"
        try:
            values = {row.type: check_slice(data, row.hash, f"{key}.{row.type}") for row, data in self._values(rows)}
        except Corrupt as exc:
            raise damaged_slice(key, exc) from exc
        return {
            row.type: Slice(
                type=row.type,
                data=values.get(row.type),
                hash=None if row.hash is None else format_hash(row.hash),
                version=format_version(Version(row.version)),
                revision=row.revision,
                tombstone=_tombstone(row),
                ruleset=ruleset,
                dependencies=dependencies[row.type],
            )
            for row in rows
        }

    def _values(self, rows: list[SliceRow]) -> list[tuple[SliceRow, object]]:
        """What those of the slices hold that are there: each has its own, even where two are equal."""
        found = [(row, row.root) for row in rows if row.root is not None]
        values = self._context.trees.read_many([root for _, root in found]) if found else []
        return [(row, value) for (row, _), value in zip(found, values, strict=True)]

    def _was_ingested(self, place: EntityPlace, version: int | None) -> bool:
        (start,) = compile_starts(self._context.engine, self._context.tenant, [(place, version)])
        return start is not None and start.document is not None


def _no_version(key: EntityKey, version: str | None) -> NotFound:
    return NotFound(
        f"{key} has no version {version}", hint="leave it out for the newest", entity=str(key), version=version
    )


def _tombstone(row: SliceRow) -> Tombstone | None:
    return None if row.tombstone is None else Tombstone(TombstoneReason(row.tombstone), row.detail or "")
