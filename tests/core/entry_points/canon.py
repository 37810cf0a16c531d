"""Values as bytes: trees of blocks, blocks from outside, and canonical JSON."""

from __future__ import annotations

from analemma.canon.canonical_json import canonical_json as canonical_json
from analemma.canon.canonical_json import parse_json as parse_json
from analemma.canon.nodes import Promises as Promises
from analemma.canon.nodes import admit_block as admit_block
from analemma.canon.trees import Trees as Trees
from analemma.canon.types import standard_registry as standard_registry
