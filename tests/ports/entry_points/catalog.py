"""The catalog: how one is opened, its port, and the engines beneath."""

from analemma import App
from analemma.blocks import ownership
from analemma.catalog.engine.postgres.names import names as names
from analemma.catalog.engine.schema import BASELINE as BASELINE
from analemma.catalog.engine.schema import OLDER as OLDER
from analemma.catalog.engine.schema import checksum_of as checksum_of
from analemma.catalog.engine.schema import migrations as migrations
from analemma.catalog.engine.schema import older_migrations as older_migrations
from analemma.catalog.engine.sql import Dialect as Dialect
from analemma.catalog.engine.sql import load as load
from analemma.catalog.engine.sql import load_procedures as load_procedures
from analemma.catalog.engine.sql import translate_script as translate_script
from analemma.catalog.engine.sqlite.engine import SqliteEngine as SqliteEngine
from analemma.catalog.engine.steps import steps as steps
from analemma.catalog.engine.wakeups import Wakeups
from analemma.catalog.opening import open_catalog as open_catalog
from analemma.catalog.port import BranchStart as BranchStart
from analemma.catalog.port import Head as Head
from analemma.catalog.port import KernelCatalog as KernelCatalog
from analemma.catalog.port import PolicyRow as PolicyRow
from analemma.catalog.port import RecordRequest as RecordRequest
from analemma.catalog.port import RetentionPolicy as RetentionPolicy
from analemma.catalog.port import TenantId as TenantId
from analemma.catalog.port import UploadId as UploadId
from analemma.catalog.sql_catalog import SqlCatalog as SqlCatalog


def identity_of(app: App) -> ownership.CatalogIdentity:
    """Which catalog this is."""
    return ownership.identity_of(app.catalog.engine)


def wakeups_of(app: App) -> Wakeups:
    """What wakes those who deliver events."""
    return app.catalog.wakeups
