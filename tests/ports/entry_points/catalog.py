"""The catalog: how one is opened, its port, and the engines beneath."""

from analemma.catalog.engine.sql import load as load
from analemma.catalog.engine.sql import load_migrations as load_migrations
from analemma.catalog.engine.sql import load_procedures as load_procedures
from analemma.catalog.engine.sqlite.engine import SqliteEngine as SqliteEngine
from analemma.catalog.engine.steps import steps as steps
from analemma.catalog.opening import open_catalog as open_catalog
from analemma.catalog.port import KernelCatalog as KernelCatalog
from analemma.catalog.port import TenantId as TenantId
from analemma.catalog.port import UploadId as UploadId
