"""Opens a store: which catalog, which objects. Nothing else in the package chooses a backend."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from analemma.blocks.urls import open_objects
from analemma.catalog.object_places import BESIDE, hold_to_place, known_objects, object_place
from analemma.catalog.object_places import MEMORY as IN_MEMORY
from analemma.catalog.opening import MEMORY, database_path, in_memory, open_catalog
from analemma.errors import Invalid, NotFound
from analemma.settings import Settings
from analemma.store.store import Place, Store

OBJECTS_IN_MEMORY = "memory://"


def open_app(
    where: str | os.PathLike[str] | None = None,
    *,
    objects: str | None = None,
    settings: Settings | None = None,
    migrate: bool | None = None,
    create: bool = True,
    objects_moved: bool = False,
) -> Store:
    """Open a store: a directory, `sqlite:///path` or `postgresql://...`; nothing given, what the settings name.

    An embedded store that does not exist is made, unless `create` is False: then it is NotFound. Large objects go to
    `objects` (`file:///...`, `s3://bucket/prefix?...`, `gs://`, `az://`); without it, beside an embedded catalog, or
    into the database of a server. A store remembers where its objects are: a directory is used without being named,
    and without the others, or with those of another place, it is Invalid, unless they were all copied there:
    `objects_moved` says so, once."""
    settings = settings or Settings()
    chosen = where if where is not None else settings.url
    if chosen is None:
        raise Invalid("no store is named", hint="pass a directory or a URL, or set ANALEMMA_URL")
    url = os.fspath(chosen)
    place = _place(url, database_path(url), objects or settings.objects)
    file = place.file
    embedded = file is not None
    if file is not None and not create and not place.in_memory and not Path(file).is_file():
        raise NotFound(
            f"there is no store at {place.url}", hint="run `analemma init -u` with its path, or check the path"
        )
    if migrate is None:
        migrate = embedded if settings.auto_migrate is None else settings.auto_migrate
    if file is not None and Path(file).parent.is_file():
        raise Invalid(f"{Path(file).parent} is a file, and no directory", hint="name a directory, or sqlite:///PATH")
    # Objects first: an unusable object store should not leave a fresh catalog behind; nor objects without a catalog.
    fresh = migrate and file is not None and not Path(file).exists()
    opened = str(place.beside) if place.in_memory and place.objects == OBJECTS_IN_MEMORY else place.objects
    store = None if opened is None else open_objects(opened, create=fresh)
    options: dict[str, Any] = {}
    if not embedded:
        options = {
            "max_connections": settings.postgres_pool_max,
            "connect_timeout_s": settings.connect_timeout_s,
            "statement_timeout_s": settings.statement_timeout_s,
            "pgbouncer": not settings.postgres_prepare,
        }
    try:
        catalog = open_catalog(
            f"sqlite:///{quote(str(file))}" if place.in_memory else url,
            synchronous="full" if settings.sqlite_synchronous == "FULL" else "normal",
            patience_s=settings.sqlite_lock_timeout_s,
            migrate=migrate,
            **options,
        )
    except BaseException:
        if store is not None:
            store.close()
        raise
    try:
        catalog.key_keep_us = round(settings.idempotency_keep_s * 1_000_000)
        beside = place.beside
        shared: str | None = None
        if store is None and (known := known_objects(catalog)) is not None:
            place = replace(place, objects=known)
            store = open_objects(known, create=False)
        if place.objects is not None and not place.in_memory:
            named = bool(objects or settings.objects)
            remembered = object_place(place.objects, beside)
            hold_to_place(catalog, remembered, chosen=named, moved=objects_moved, beside=beside)
            if remembered != IN_MEMORY:
                catalog.hold_objects(remembered)
            shared = None if remembered in (BESIDE, IN_MEMORY) else remembered
        return Store(catalog, store, settings, place=place, shared_place=shared)
    except BaseException:
        catalog.close()
        if store is not None:
            store.close()
        raise


open = open_app
"""Its name in `analemma`."""


def _place(url: str, file: str | None, objects: str | None) -> Place:
    if file is None:
        return Place("postgresql", url, objects, None)
    if file == MEMORY:
        return Place("sqlite", url, objects or OBJECTS_IN_MEMORY, in_memory(), in_memory=True)
    place = Place("sqlite", url, objects, file)
    return place if objects else replace(place, objects=str(place.beside))
