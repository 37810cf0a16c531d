"""Gives a copy of a catalog objects of its own: copies what its rows need to another place, which it then remembers, or
forgets what they no longer need. No object is deleted; until the last step nothing has changed, and all may be done
again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from analemma.archives.names import unit_prefix
from analemma.blocks.packs import pack_key
from analemma.blocks.port import ObjectStore
from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.errors import Conflict, Corrupt, Invalid
from analemma.failpoints import declare, hit

AFTER_COPY = declare("detach.after_copy", "the objects of a copy are copied, and its catalog still names the old place")
AFTER_DETACH = declare("detach.after_detach", "a catalog names its new place, where no marker names the catalog yet")

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Detached:
    """What was copied, and what the catalog has forgotten."""

    place: str | None
    """Where the objects are now; None, there are none."""
    objects: int
    bytes: int
    forgotten: int
    """Uploads that nothing named, whose objects were left alone."""


class Detachment:
    """Takes a catalog away from the objects at one place."""

    def __init__(self, catalog: SqlCatalog, objects: ObjectStore) -> None:
        self._catalog = catalog
        self._objects = objects

    def copy_to(self, target: ObjectStore, place: str) -> Detached:
        """Copy all objects that the catalog needs, and have it remember that they are there."""
        before = self._catalog.objects_place()
        done: set[str] = set()
        copied: dict[str, int] = {}
        while True:
            for prefix, key in _needed(self._catalog.engine):
                if prefix not in done:
                    keys = [key] if key is not None else [info.key for info in self._objects.list(prefix)]
                    copied.update({each: self._copy(each, target) for each in keys})
                    done.add(prefix)
            hit(AFTER_COPY)
            forgotten = self._catalog.engine.write(lambda tx: _detach(tx, place, before, done), durable=True)
            if forgotten is not None:
                break
        hit(AFTER_DETACH)
        return Detached(place, len(copied), sum(copied.values()), forgotten)

    def forget(self) -> Detached:
        """Have the catalog forget its objects, if it needs none of them."""
        before = self._catalog.objects_place()
        forgotten = self._catalog.engine.write(lambda tx: _detach(tx, None, before, set()), durable=True)
        if forgotten is None:
            raise Invalid(
                "blocks or archives of this store lie in its objects",
                hint="copy them to a place of its own, with --to",
            )
        return Detached(None, 0, 0, forgotten)

    def _copy(self, key: str, target: ObjectStore) -> int:
        info = self._objects.head(key)
        if info is None:
            raise Corrupt(
                f"object {key}, which this catalog needs, is missing",
                hint="nothing was changed; run verify, and restore it from a second copy",
                key=key,
            )
        there = target.head(key)
        if there is None or there.size != info.size:
            target.put_stream(key, self._objects.open_read(key), metadata=info.metadata)
            there = target.head(key)
        if there is None or there.size != info.size:
            raise Corrupt(f"object {key} was copied, and is not the same there", hint="check the new place", key=key)
        return info.size


def _detach(tx: Transaction, place: str | None, before: str | None, done: Collection[str]) -> int | None:
    """How many uploads were forgotten; None, and nothing is changed, if something is needed that was not copied."""
    if any(prefix not in done for prefix, _ in _needed(tx)):
        return None
    if tx.execute("detach_objects", place=place, before=before or "") != 1:
        raise Conflict("somebody else moved the objects meanwhile", hint="look where they are: analemma status")
    tx.execute("forget_object_folders")
    return tx.execute("forget_uploads")


def _needed(source: Statements) -> Iterator[tuple[str, str | None]]:
    """What rows name: a pack by its key, an archive by the folder of its objects."""
    for tenant, _ in source.all("tenant_names"):
        for page in source.pages("needed_uploads", {"after": b""}, limit=_PAGE, tenant=tenant):
            yield from [(pack_key(row[0]), pack_key(row[0])) for row in page]
    for tenant_name, workspace, op_id in source.all("needed_archives"):
        yield unit_prefix(tenant_name, workspace, op_id), None
