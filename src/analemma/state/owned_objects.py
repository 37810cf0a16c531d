"""The objects of a store, as far as they are its own: it reads them all, puts new ones where it may, and deletes only
as their owner."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from analemma.blocks.port import ObjectInfo, ObjectStore, StoreWrapper, check_key, check_prefix, missing
from analemma.errors import NotFound
from analemma.state.object_ownership import FOLDERS, MARKER, ObjectOwnership

T = TypeVar("T")


class OwnedObjects(StoreWrapper):
    """An object store whose deletions ask first whose the objects are. What a copy of the catalog wrote lies below
    folders of its own and is read as if it lay among the others: names of objects are random, so none is in two
    places."""

    def __init__(self, store: ObjectStore, ownership: ObjectOwnership) -> None:
        super().__init__(store)
        self._ownership = ownership

    def _pass(self, operation: str, call: Callable[..., T], *given: Any, **options: Any) -> T:
        if not given:
            return call()
        key, *rest = given
        if operation in ("put", "put_stream", "replace"):
            folder = self._ownership.folder_to_write()
            return call(key if folder is None else f"{folder}/{check_key(key)}", *rest, **options)
        try:
            return call(key, *rest)
        except NotFound:
            return call(self._elsewhere(key), *rest)

    def open_read(self, key: str) -> Iterator[bytes]:
        begun = False
        try:
            for piece in self._store.open_read(key):
                begun = True
                yield piece
            return
        except NotFound:
            if begun:
                raise
        yield from self._store.open_read(self._elsewhere(key))

    def head(self, key: str) -> ObjectInfo | None:
        info = self._store.head(key)
        if info is None:
            try:
                info = self._store.head(self._elsewhere(key))
            except NotFound:
                return None
        return None if info is None else replace(info, key=key)

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        chosen = [check_key(key) for key in keys]
        if chosen:
            self._ownership.check()
            folders = self._ownership.folders()
            self._store.delete_many([*chosen, *(f"{folder}/{key}" for folder in folders for key in chosen)])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        listings = [self._among_all(folder)]
        listings += [self._below(each, folder) for each in self._ownership.folders()]
        return heapq.merge(*listings, key=lambda info: info.key.encode()) if len(listings) > 1 else listings[0]

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        # By its tags the bucket's own rules may delete it.
        self._ownership.check()
        super().tag(key, tags)

    def _elsewhere(self, key: str) -> str:
        """The same object below a folder of this catalog's, if it is there; NotFound by its own name if it is not."""
        for folder in self._ownership.folders():
            if self._store.head(f"{folder}/{key}") is not None:
                return f"{folder}/{key}"
        self._ownership.check_present()
        raise missing(key)

    def _among_all(self, prefix: str) -> Iterator[ObjectInfo]:
        """Without the marker and what copies have put below their folders, which is nobody else's."""
        for info in self._store.list(prefix):
            if prefix or (info.key != MARKER and not info.key.startswith(f"{FOLDERS}/")):
                yield info

    def _below(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        for info in self._store.list(f"{folder}/{prefix}" if prefix else folder):
            yield replace(info, key=info.key.removeprefix(f"{folder}/"))
