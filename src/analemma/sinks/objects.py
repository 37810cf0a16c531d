"""A sink that keeps one object per document in an object store: S3, Google Cloud Storage, Azure, or a directory.

The object is the body, and its metadata has the `ship_seq`. The sink looks at that before it writes, which is not the
same as a guard: two processes may both look, and then both write. Whoever ships a document from several processes at
once has to see to the order."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal, Self

from pydantic import Field

from analemma.blocks.port import ObjectStore, check_key, is_transient, open_objects
from analemma.errors import AnalemmaError, Invalid
from analemma.sinks.batching import BatchingSink, Parcel, PlaceIsDown
from analemma.sinks.naming import safe_name
from analemma.sinks.port import SHIPPED, STALE, Health, Shipped, SinkDocument, retry
from analemma.sinks.settings import Route, Secret, SinkContext, SinkSettings, TemplateText

_SUFFIX: Final = ".json"
_LOCKS: Final = 64


class ObjectsSettings(SinkSettings):
    """Settings of OBJECTS sinks."""

    url: Secret = Field(
        description="The store: `s3://bucket/prefix?region=...`, `gs://...`, `az://...`, or a directory."
    )
    prefix: TemplateText | None = Field(None, description="A folder in it.")
    deletes: Literal["remove", "mark"] = Field(
        "remove",
        description="`remove` deletes the object; `mark` leaves an empty one, so that older states stay out.",
    )
    concurrency: int = Field(8, ge=1, le=64, description="Objects written at once.")


class ObjectsSink(BatchingSink):
    """Writes objects named by the documents' ids."""

    settings_class = ObjectsSettings

    def __init__(self, settings: ObjectsSettings, store: ObjectStore) -> None:
        super().__init__()
        self._store = store
        self._route = None if settings.prefix is None else Route(settings.prefix.strip("/"))
        self._marks = settings.deletes == "mark"
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="analemma-objects")
        # Within this process at least nobody gets between a look and the write.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    @classmethod
    def open(cls, settings: ObjectsSettings, context: SinkContext) -> Self:
        url = settings.url.get_secret_value()
        return cls(settings, open_objects(url if "://" in url else str(context.base / url)))

    def refuse(self, parcel: Parcel) -> str | None:
        reason = None if self._route is None else self._route.why_not(parcel.document)
        if reason is None:
            try:
                check_key(self.key_of(parcel.document))
            except Invalid as exc:
                return exc.message
        return reason

    def identity(self, document: SinkDocument) -> Hashable:
        return self.key_of(document)

    def key_of(self, document: SinkDocument) -> str:
        """The object of a document."""
        folder = "" if self._route is None else self._route.place(document) + "/"
        return f"{folder}{safe_name(document.doc_id)}{_SUFFIX}"

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        down: list[Shipped] = []

        def write(parcel: Parcel) -> Shipped:
            if not down:
                try:
                    return self._write(parcel)
                except PlaceIsDown as exc:
                    down.append(exc.answer)
            return down[0]

        return [write(parcels[0])] if len(parcels) == 1 else list(self._threads.map(write, parcels))

    def check_health(self) -> Health:
        try:
            self._store.health()
        except AnalemmaError as exc:
            return Health(False, exc.message)
        return Health(True, "the object store answers")

    def release(self) -> None:
        self._threads.shutdown()
        self._store.close()

    def _write(self, parcel: Parcel) -> Shipped:
        document = parcel.document
        key = self.key_of(document)
        try:
            with self._locks[hash(key) % _LOCKS]:
                if self._ship_seq(key) > document.ship_seq:
                    return STALE
                if parcel.body is None and not self._marks:
                    self._store.delete(key)
                else:
                    self._store.put(key, parcel.body or b"", metadata=_metadata(parcel))
        except AnalemmaError as exc:
            if is_transient(exc):
                raise PlaceIsDown(retry(exc.message)) from exc
            return retry(exc.message)
        return SHIPPED

    def _ship_seq(self, key: str) -> int:
        """That of the object that is there; -1 if none is, or nobody knows."""
        info = self._store.head(key)
        text = "" if info is None else info.metadata.get("ship_seq", "")
        return int(text) if text.isascii() and text.isdigit() else -1


def _metadata(parcel: Parcel) -> dict[str, str]:
    return {
        "ship_seq": str(parcel.document.ship_seq),
        "version": str(parcel.document.version),
        "op": "delete" if parcel.body is None else "upsert",
    }
