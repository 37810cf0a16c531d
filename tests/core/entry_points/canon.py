"""Values as bytes: trees of blocks, blocks from outside, and canonical JSON."""

from __future__ import annotations

from analemma.canon.canonical_json import canonical_json as canonical_json
from analemma.canon.canonical_json import parse_json as parse_json
from analemma.canon.standard_types import standard_registry as standard_registry
from analemma.canon.tree import Trees as Trees
from analemma.canon.tree import admit_block as admit_block
