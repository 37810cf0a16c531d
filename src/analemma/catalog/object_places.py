"""Where a store keeps its objects, as its catalog remembers it: no block may go where nobody will look for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.catalog.engine.db import Engine
    from analemma.catalog.sql_catalog import SqlCatalog

BESIDE = "beside its catalog"
"""In the directory where an embedded store has its objects unless told otherwise: it may be moved as a whole."""
MEMORY = "in memory"
FILE_NAME = "catalog.db"
"""What the database is called inside a store's directory."""


def object_place(url: str, beside: Path | None = None) -> str:
    """What is remembered of an object store's URL: the place, without settings and secrets.

    >>> object_place("s3://bucket/some/prefix/?region=eu-central-1")
    's3://bucket/some/prefix'
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory":
        return MEMORY
    if separator and scheme != "file":
        parts = urlsplit(url)
        return f"{scheme}://{parts.netloc}/{unquote(parts.path).strip('/')}".rstrip("/")
    path = os.path.realpath(unquote(rest) if separator else url)
    return BESIDE if beside is not None and path == os.path.realpath(beside) else Path(path).as_uri()


def known_objects(catalog: SqlCatalog) -> str | None:
    """The objects of a store for which none were named: a directory that is there, or None if there are none. Invalid
    if they are not to be found by their place alone: without them, nothing may be read, expired or collected."""
    known = catalog.objects_place()
    if known is None:
        if catalog.engine.value("has_uploads"):
            raise Invalid(
                "this store has objects, and was opened without them",
                hint="name them: `objects`, ANALEMMA_OBJECTS or --objects",
            )
        return None
    if known.startswith("file:") and Path(unquote(urlsplit(known).path)).is_dir():
        return known
    if not catalog.engine.value("has_objects"):
        return None
    raise Invalid(
        f"the objects of this store are {_where(known)}, and it was opened without them",
        hint=f"name them: `objects`, ANALEMMA_OBJECTS or --objects is {known}, with the settings that it needs",
        objects=known,
    )


def hold_to_place(catalog: SqlCatalog, place: str, *, chosen: bool, moved: bool, beside: Path | None = None) -> None:
    """Raise Invalid if the objects of this store are elsewhere. Another place may be chosen as long as there are none,
    and is remembered when the first is put there: opening a store changes nothing, unless they were `moved`. Memory is
    remembered by nobody."""
    known = catalog.objects_place()
    if known == place or (known is None and place == MEMORY):
        return
    if place != MEMORY:
        if known is None and not chosen and catalog.engine.value("has_objects") and not _has_files(beside):
            # A store of an earlier release, whose objects are somewhere else.
            raise Invalid(
                "this store has objects, and they are not beside its catalog",
                hint="name them once: `objects`, ANALEMMA_OBJECTS or --objects",
            )
        if moved:
            move_objects(catalog.engine, place, before=known, unless_used=False)
            known = catalog.objects_place()
        if known in (None, place) or (chosen and not catalog.engine.value("has_objects")):
            return
    raise elsewhere(known, place)


def move_objects(engine: Engine, place: str, *, before: str | None, unless_used: bool) -> bool:
    """Remember another place for them; False if they are no longer where they were before or, `unless_used`, there are
    any."""
    return engine.execute("move_objects", place=place, before=before or "", unless_used=unless_used) == 1


def catalog_beside(place: str) -> str | None:
    """The file of the embedded store in whose own directory this place is, if it is in one."""
    if not place.startswith("file:"):
        return None
    file = Path(unquote(urlsplit(place).path)).parent / FILE_NAME
    return str(file) if file.is_file() else None


def elsewhere(known: str | None, place: str) -> Invalid:
    """The error for objects of another place than those of the store."""
    back = "leave `objects` out" if known == BESIDE else "name those: `objects`, ANALEMMA_OBJECTS or --objects"
    return Invalid(
        f"the objects of this store are {_where(known)}, and it was opened with those {_where(place)}",
        hint=f"{back}; a copy of a store, such as staging, may read them and gets its own by `analemma objects detach "
        "--to`; if all of them were copied already, `analemma init --objects-moved` says so",
        objects=known,
        opened_with=place,
    )


def _where(place: str | None) -> str:
    return place if place in (BESIDE, MEMORY) else f"at {place}"


def _has_files(directory: Path | None) -> bool:
    return directory is not None and any(names for _, _, names in os.walk(directory))
