"""Where a store keeps its objects, as its catalog remembers it: no block may go where nobody will look for it."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from analemma.catalog.sql_catalog import SqlCatalog
from analemma.errors import Invalid

BESIDE = "beside its catalog"
"""In the directory where an embedded store has its objects unless told otherwise: it may be moved as a whole."""


def object_place(url: str, beside: Path | None = None) -> str | None:
    """What is remembered of an object store's URL: the place, without settings and secrets; None for memory, which
    forgets.

    >>> object_place("s3://bucket/some/prefix/?region=eu-central-1")
    's3://bucket/some/prefix'
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory":
        return None
    if separator and scheme != "file":
        parts = urlsplit(url)
        return f"{scheme}://{parts.netloc}/{unquote(parts.path).strip('/')}".rstrip("/")
    path = os.path.realpath(unquote(rest) if separator else url)
    return BESIDE if beside is not None and path == os.path.realpath(beside) else Path(path).as_uri()


def hold_to_place(catalog: SqlCatalog, place: str, *, chosen: bool, moved: bool) -> None:
    """Raise Invalid if the objects of this store are elsewhere. A place that somebody chose is taken as long as there
    are none, and whenever they were `moved`."""
    known = catalog.objects_place()
    if known == place:
        return
    if known is None or moved or (chosen and not catalog.has_objects()):
        if catalog.move_objects(place, before=known):
            return
        known = catalog.objects_place()
        if known == place:
            return
    back = (
        "leave `objects` out" if known == BESIDE else f"name them: `objects` (ANALEMMA_OBJECTS, --objects) is {known}"
    )
    raise Invalid(
        f"the objects of this store are {_where(known)}, and it was opened with those {_where(place)}",
        hint=f"{back}; if they were copied, `analemma init --objects-moved` says so",
        objects=known,
        opened_with=place,
    )


def _where(place: str | None) -> str:
    return BESIDE if place == BESIDE else f"at {place}"
