"""The catalog: how one is opened, its port, and the engines beneath."""

from analemma import App
from analemma.blocks import ownership
from analemma.catalog.engine.db import Statement as Statement
from analemma.catalog.engine.db import Transaction as Transaction
from analemma.catalog.engine.postgres.engine import names as names
from analemma.catalog.engine.postgres.pool import LONGEST_IDLE_S as LONGEST_IDLE_S
from analemma.catalog.engine.postgres.pool import PostgresPool
from analemma.catalog.engine.schema import BASELINE as BASELINE
from analemma.catalog.engine.schema import OLDER as OLDER
from analemma.catalog.engine.schema import checksum_of as checksum_of
from analemma.catalog.engine.schema import migrations as migrations
from analemma.catalog.engine.schema import older_migrations as older_migrations
from analemma.catalog.engine.sql import POSTGRES as POSTGRES
from analemma.catalog.engine.sql import SQLITE as SQLITE
from analemma.catalog.engine.sql import Sql as Sql
from analemma.catalog.engine.sqlite.engine import SqliteEngine as SqliteEngine
from analemma.catalog.engine.wakeups import Wakeups
from analemma.catalog.kernel.versions import BranchStart as BranchStart
from analemma.catalog.opening import open_catalog as open_catalog
from analemma.catalog.port import BranchKey as BranchKey
from analemma.catalog.port import Head as Head
from analemma.catalog.port import KernelCatalog as KernelCatalog
from analemma.catalog.port import RecordRequest as RecordRequest
from analemma.catalog.port import TenantId as TenantId
from analemma.catalog.port import UploadId as UploadId
from analemma.catalog.sql_catalog import SqlCatalog as SqlCatalog

SQLITE_WRITER = "analemma.catalog.engine.sqlite.writer"
"""Where a write to SQLite is told how long it may wait, and how long a log may become."""


def identity_of(app: App) -> ownership.CatalogIdentity:
    """Which catalog this is."""
    return ownership.CatalogIdentity(*app.catalog.engine.identity())


def wakeups_of(app: App) -> Wakeups:
    """What wakes those who deliver events."""
    return app.catalog.wakeups


def pool_of(app: App) -> PostgresPool:
    """The connections of a store on PostgreSQL."""
    pool: PostgresPool = app.catalog.engine.pool  # type: ignore[attr-defined]
    return pool
