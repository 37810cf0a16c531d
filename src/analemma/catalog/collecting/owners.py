"""What a catalog knows of who owns its objects: which catalog it is itself, the generation of the marker that it last
saw, and the folders of a copy."""

from __future__ import annotations

import os
from dataclasses import dataclass

from analemma.catalog.engine.sqlite.engine import SqliteEngine
from analemma.catalog.sql_catalog import SqlCatalog


@dataclass(frozen=True, slots=True)
class CatalogIdentity:
    """What tells a catalog from its copies, as far as anything does."""

    system: str | None
    """PostgreSQL's system identifier, which replicas share; of SQLite, `sqlite`. None: this role may not ask."""
    database: str
    """The OID of the database, and behind a point that of the schema if it is not `public`; of SQLite, the inode of its
    file."""

    def __str__(self) -> str:
        if self.system == "sqlite":
            return f"the SQLite file of inode {self.database}"
        return f"database {self.database} of PostgreSQL system {self.system or '(unknown)'}"

    def may_be(self, other: CatalogIdentity) -> bool:
        """Whether nothing tells the two apart."""
        known = self.system is not None and other.system is not None
        return self.database == other.database and (not known or self.system == other.system)


@dataclass(frozen=True, slots=True)
class ObjectClaim:
    """How far this catalog has followed the marker of its objects."""

    store: str
    generation: int
    """The one that was last confirmed; 0: there was none."""
    token: str | None
    """What tells it from the same generation of a clone."""
    intent: str | None
    """The token of the next generation, if its marker may have been written."""
    place: str | None
    """Where the marker was."""


class ObjectOwnerRows:
    """Reads and writes these rows of a catalog."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self._engine = catalog.engine

    def identity(self) -> CatalogIdentity:
        """Which catalog this is. Asked each time: a URL may lead to another server from one moment to the next."""
        engine = self._engine
        if isinstance(engine, SqliteEngine):
            # A copy is another file. Not the device: that changes when the same disk is mounted again.
            return CatalogIdentity("sqlite", str(os.stat(engine.path).st_ino))
        (row,) = engine.all("database_oid")
        system = engine.one("system_identifier") if row[1] else None
        return CatalogIdentity(None if system is None else str(system[0]), str(row[0]))

    def claim(self) -> ObjectClaim:
        """How far this catalog has followed the marker."""
        return self._engine.rows(ObjectClaim, "object_claim")[0]

    def intend(self, claim: ObjectClaim, intent: str) -> ObjectClaim:
        """Record, durably, that the marker is to be raised; as it is then, also if somebody else did that."""
        self._engine.write(
            lambda tx: tx.execute(
                "intend_generation", generation=claim.generation, token=claim.token or "", intent=intent
            ),
            durable=True,
        )
        return self.claim()

    def confirm(self, claim: ObjectClaim, place: str) -> None:
        """Record that the marker says what was intended."""
        self._engine.write(
            lambda tx: tx.execute(
                "confirm_generation", generation=claim.generation, intent=claim.intent or "", place=place
            ),
            durable=True,
        )

    def adopt(self, claim: ObjectClaim, *, generation: int, token: str | None, intent: str) -> bool:
        """Go on from another's generation with this intent; False if the claim has changed meanwhile."""
        was = {"was": claim.generation, "was_token": claim.token or ""}
        return (
            self._engine.write(
                lambda tx: tx.execute("adopt_generation", generation=generation, token=token, intent=intent, **was),
                durable=True,
            )
            == 1
        )

    def folders(self) -> dict[str, str]:
        """Where a copy has put objects of its own: folders, and the catalog that each was made for."""
        return {str(name): str(catalog) for name, catalog in self._engine.all("object_folders")}

    def add_folder(self, name: str, catalog: str) -> None:
        """Have another."""
        self._engine.write(lambda tx: tx.execute("add_object_folder", name=name, catalog=catalog), durable=True)
