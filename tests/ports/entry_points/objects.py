"""Object stores: the port, the stores, what wraps them, and how one is found by its URL."""

from analemma.blocks.hardened import Hardened as Hardened
from analemma.blocks.hardened import ObjectMetrics as ObjectMetrics
from analemma.blocks.local import LocalStore as LocalStore
from analemma.blocks.memory import MemoryStore as MemoryStore
from analemma.blocks.packs import object_metadata as object_metadata
from analemma.blocks.port import ObjectInfo as ObjectInfo
from analemma.blocks.port import ObjectStore as ObjectStore
from analemma.blocks.port import check_key as check_key
from analemma.blocks.port import check_prefix as check_prefix
from analemma.blocks.port import is_transient as is_transient
from analemma.blocks.port import open_objects as open_objects
from analemma.blocks.redis_tier import RedisTier as RedisTier
from analemma.blocks.store import BlockStore as BlockStore
from analemma.blocks.store import Lru as Lru
from analemma.clock import SystemClock as SystemClock
