"""The composition root: opens a store and hands out its parts. Nothing else in the package chooses a backend."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from analemma.blocks.cache import BlockCache, BodyCache, CacheStack
from analemma.blocks.metrics import MeteredStore, ObjectMetrics
from analemma.blocks.port import ObjectStore
from analemma.blocks.redis_tier import open_redis_tier
from analemma.blocks.retry import RetryStore
from analemma.blocks.urls import open_objects
from analemma.canon.identity import BlockId
from analemma.canon.registry import TypeRegistry
from analemma.canon.standard_types import standard_registry
from analemma.canon.tree import Trees
from analemma.catalog.opening import database_path, open_catalog
from analemma.catalog.port import BranchKey, Head
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.catalog.sqlite import MEMORY
from analemma.clock import Clock, Entropy, SystemClock, SystemEntropy
from analemma.errors import Invalid, NotFound
from analemma.settings import Settings, redact
from analemma.state.block_store import BlockStore
from analemma.state.committer import Committer
from analemma.state.kernel import Kernel
from analemma.state.manifests import Manifest, decode_manifest
from analemma.state.verifying import Report, Verifier

OBJECTS_DIRECTORY = "objects"


@dataclass(frozen=True, slots=True)
class Stats:
    """What the store holds, over all tenants or in one."""

    tenants: int
    blocks: int
    logical_bytes: int
    stored_bytes: int
    manifests: int
    heads: int
    uploads: int


class App:
    """An open store. Safe to share between threads; close it, or use it as a context manager."""

    def __init__(
        self,
        catalog: SqlCatalog,
        objects: ObjectStore | None,
        settings: Settings,
        *,
        place: Place,
        registry: TypeRegistry | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.settings = settings
        self.types = registry or standard_registry()
        """The types this program can store; register your own classes here."""
        self.catalog = catalog
        self.object_metrics = ObjectMetrics()
        self._place = place
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self.objects = None if objects is None else self._hardened(objects)
        self._tenants: dict[str, Tenant] = {}
        self._cache: BlockCache | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tenant(self, name: str) -> Tenant:
        """One tenant's part of the store, made if it is new. Nothing is shared between tenants, not even equal
        blocks."""
        with self._lock:
            if name not in self._tenants:
                self._tenants[name] = Tenant(self, name)
            return self._tenants[name]

    @property
    def default(self) -> Tenant:
        """The tenant that the settings name (`default` unless told otherwise)."""
        return self.tenant(self.settings.tenant)

    @property
    def kernel(self) -> Kernel:
        """The state kernel of the default tenant."""
        return self.default.kernel

    def stats(self, tenant: str | None = None) -> Stats:
        """How many blocks there are, what they hold (logical bytes) and what they take (stored bytes)."""
        number = None
        if tenant is not None and (number := self.catalog.find_tenant(tenant)) is None:
            raise NotFound(f"there is no tenant {tenant!r}")
        return Stats(tenants=self.catalog.tenant_count() if number is None else 1, **asdict(self.catalog.stats(number)))

    def info(self) -> dict[str, str | int]:
        """Where everything is, without secrets."""
        return {
            "backend": self._place.backend,
            "url": redact(self._place.url),
            "objects": "in the catalog" if self._place.objects is None else redact(self._place.objects),
            "store_id": self.catalog.store_id(),
            "schema_version": self.catalog.schema_version(),
        }

    @property
    def migrated(self) -> list[str]:
        """The migrations that opening the store applied."""
        return self.catalog.migrated

    def close(self) -> None:
        """Give back connections and files; safe to call twice."""
        with ExitStack() as closing:
            closing.callback(self.catalog.close)
            if self.objects is not None:
                closing.callback(self.objects.close)
            if self._cache is not None:
                closing.callback(self._cache.close)

    @property
    def cache(self) -> BlockCache:
        """Verified blocks, kept near."""
        with self._lock:
            if self._cache is None:
                self._cache = BodyCache(self.settings.cache_bytes)
                if self.settings.redis_url is not None:
                    store, ttl_s = self.catalog.store_id(), self.settings.redis_ttl_s
                    tier = open_redis_tier(self.settings.redis_url, store, ttl_s=ttl_s)
                    self._cache = CacheStack([self._cache, tier])
            return self._cache

    def _hardened(self, objects: ObjectStore) -> ObjectStore:
        return RetryStore(
            MeteredStore(objects, self.object_metrics, clock=self._clock),
            tries=self.settings.object_retries,
            first_wait_s=self.settings.object_retry_base_s,
            clock=self._clock,
        )


class Tenant:
    """One isolation boundary: its own rows, blocks and deduplication."""

    def __init__(self, app: App, name: str) -> None:
        self.name = name
        self.id = app.catalog.tenant(name)
        self._catalog = app.catalog
        self._clock = app._clock
        self.blocks = BlockStore(
            app.catalog,
            self.id,
            objects=app.objects,
            cache=app.cache,
            pack_threshold_bytes=app.settings.pack_threshold_bytes,
            clock=app._clock,
            entropy=app._entropy,
        )
        self.trees = Trees(self.blocks.fetch, app.types, app.settings.unknown_types)
        self.committer = Committer(app.catalog, self.id, self.blocks, clock=app._clock, entropy=app._entropy)

    @cached_property
    def kernel(self) -> Kernel:
        """The verbs on this tenant's state."""
        return Kernel(
            self._catalog,
            self.id,
            blocks=self.blocks,
            trees=self.trees,
            committer=self.committer,
            clock=self._clock,
        )

    def head(self, key: BranchKey) -> Head | None:
        """Where a branch stands."""
        return self._catalog.head(self.id, key)

    def manifest(self, manifest: BlockId) -> Manifest:
        """What a version's manifest says."""
        return decode_manifest(manifest, self.blocks.fetch([manifest])[manifest])

    def verify(self, key: BranchKey) -> Report:
        """Re-hash a branch's journal, its head's manifest and every block below."""
        return Verifier(self._catalog, self.id, self.blocks).branch(key)


@dataclass(frozen=True, slots=True)
class Place:
    """What was opened."""

    backend: Literal["sqlite", "postgresql"]
    url: str
    objects: str | None


def open_app(
    where: str | os.PathLike[str] | None = None,
    *,
    objects: str | None = None,
    settings: Settings | None = None,
    migrate: bool | None = None,
    create: bool = True,
) -> App:
    """Open a store: a directory, `sqlite:///path` or `postgresql://...`; nothing given, what the settings name.

    An embedded store that does not exist is made, unless `create` is False: then it is NotFound. Large objects go to
    `objects` (`file:///...`, `s3://bucket/prefix?...`, `gs://`, `az://`); without it, beside an embedded catalog, or
    into the database of a server."""
    settings = settings or Settings()
    chosen = where if where is not None else settings.url
    if chosen is None:
        raise Invalid("no store is named", hint="pass a directory or a URL, or set ANALEMMA_URL")
    url = os.fspath(chosen)
    file = database_path(url)
    place = _place(url, file, objects or settings.objects)
    embedded = file is not None
    if file is not None and file != MEMORY and not create and not Path(file).is_file():
        raise NotFound(f"there is no store at {place.url}", hint="run `analemma init` there, or check the path")
    if migrate is None:
        migrate = embedded if settings.auto_migrate is None else settings.auto_migrate
    # Objects first: an unusable object store should not leave a fresh catalog behind.
    store = None if place.objects is None else open_objects(place.objects)
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
            place.url,
            synchronous="full" if settings.sqlite_synchronous == "FULL" else "normal",
            migrate=migrate,
            **options,
        )
    except BaseException:
        if store is not None:
            store.close()
        raise
    return App(catalog, store, settings, place=place)


def _place(url: str, file: str | None, objects: str | None) -> Place:
    if file is None:
        return Place("postgresql", url, objects)
    if objects is None:
        objects = "memory://" if file == MEMORY else str(Path(file).absolute().parent / OBJECTS_DIRECTORY)
    return Place("sqlite", url, objects)
