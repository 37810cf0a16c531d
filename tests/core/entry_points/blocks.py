"""Stored blocks: how bodies are compressed and checked, what a pack is, and what the errors of clouds mean."""

from analemma.blocks.cloud import in_key_order as in_key_order
from analemma.blocks.cloud import translate as translate
from analemma.blocks.memory import MemoryStore as MemoryStore
from analemma.blocks.packs import PackEntry as PackEntry
from analemma.blocks.packs import build_pack as build_pack
from analemma.blocks.packs import read_entries as read_entries
from analemma.blocks.packs import verify_pack as verify_pack
from analemma.blocks.port import ObjectInfo as ObjectInfo
from analemma.blocks.port import is_transient as is_transient
from analemma.blocks.store import compress as compress
from analemma.blocks.store import decode_block as decode_block
from analemma.blocks.store import decode_blocks as decode_blocks
from analemma.blocks.store import inline_rows as inline_rows
from analemma.canon.nodes import Block as Block
from analemma.canon.nodes import block_id as block_id
from analemma.catalog.port import BlockRow as BlockRow
