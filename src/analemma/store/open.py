"""Opens a store: which catalog, which objects. Nothing else in the package chooses a backend."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from analemma.blocks.port import open_objects
from analemma.catalog.engine.sqlite.memory import is_in_memory
from analemma.catalog.object_places import BESIDE, hold_to_place, known_objects, object_place
from analemma.catalog.object_places import MEMORY as IN_MEMORY
from analemma.catalog.opening import database_path, open_database
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
    named = objects or settings.objects
    place = _place(os.fspath(chosen), named)
    file = None if place.file is None else Path(place.file)
    if file is not None and not create and not place.in_memory and not file.is_file():
        raise NotFound(
            f"there is no store at {place.url}", hint="run `analemma init -u` with its path, or check the path"
        )
    if migrate is None:
        migrate = file is not None if settings.auto_migrate is None else settings.auto_migrate
    if file is not None and file.parent.is_file():
        raise Invalid(f"{file.parent} is a file, and no directory", hint="name a directory, or sqlite:///PATH")
    # Objects first: an unusable object store should not leave a fresh catalog behind; nor objects without a catalog.
    fresh = migrate and file is not None and not file.exists()
    opened = str(place.beside) if place.in_memory and place.objects == OBJECTS_IN_MEMORY else place.objects
    with ExitStack() as failed:
        store = None if opened is None else failed.enter_context(closing(open_objects(opened, create=fresh)))
        catalog = failed.enter_context(closing(open_database(place.url, place.file, settings, migrate)))
        if store is None and (known := known_objects(catalog)) is not None:
            place = replace(place, objects=known)
            store = failed.enter_context(closing(open_objects(known, create=False)))
        shared = None
        if place.objects is not None and not place.in_memory:
            remembered = object_place(place.objects, place.beside)
            hold_to_place(catalog, remembered, chosen=bool(named), moved=objects_moved, beside=place.beside)
            if remembered != IN_MEMORY:
                catalog.hold_objects(remembered)
                shared = None if remembered == BESIDE else remembered
        found = Store(catalog, store, settings, place=place, shared_place=shared)
        failed.pop_all()
    return found


open = open_app
"""Its name in `analemma`."""


def _place(url: str, objects: str | None) -> Place:
    file = database_path(url)
    place = Place(url, objects, file, in_memory=file is not None and is_in_memory(file))
    if objects or file is None:
        return place
    return replace(place, objects=OBJECTS_IN_MEMORY if place.in_memory else str(place.beside))
