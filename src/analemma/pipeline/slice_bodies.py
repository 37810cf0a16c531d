"""Bodies of slices that are damaged, made again: what a full compile builds is what should be stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from analemma.blocks.store import inline_rows
from analemma.canon.nodes import Block, BlockId
from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.entities import add_bodies, replace_bodies
from analemma.context import Context
from analemma.pipeline.recent_trees import RecentTrees
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.incremental import Compiled

log = logging.getLogger("analemma.pipeline")


class SliceBodies:
    """Repairs bodies of one tenant's slices."""

    def __init__(self, context: Context, recent: RecentTrees) -> None:
        self._context = context
        self._recent = recent

    def repair(self, made: Mapping[EntityKey, Compiled]) -> dict[EntityKey, tuple[str, ...]]:
        """Hold what is stored of these slices against what full compiles made of them, and store anew what is damaged
        or gone; the slices for which that was so. What a compile is about to write is left to it where nothing is
        stored: a transaction adds what is not there, and believes what is."""
        trees: dict[tuple[EntityKey, str], frozenset[BlockId]] = {}
        blocks: dict[BlockId, Block] = {}
        kept: set[BlockId] = set()
        for key, compiled in made.items():
            written = {each.type for each in compiled.written}
            for each in compiled.built:
                if each.hash is None:
                    continue
                tree = self._recent.build(each.hash, each.data).blocks
                trees[key, each.type] = frozenset(block.id for block in tree)
                blocks |= {block.id: block for block in tree}
                if each.type not in written:
                    kept |= trees[key, each.type]
        if not blocks:
            return {}
        damaged, missing = self._context.blocks.unsound(list(blocks))
        wrong = damaged | (missing & kept)
        if not wrong:
            return {}
        rows = tuple(inline_rows([blocks[each] for each in sorted(wrong)])[0])

        def store(tx: Transaction) -> None:
            add_bodies(tx, self._context.tenant, rows, ())
            replace_bodies(tx, self._context.tenant, [row for row in rows if row.id in damaged])

        self._context.engine.write(store)
        repaired: dict[EntityKey, tuple[str, ...]] = {}
        for (key, slice_type), ids in trees.items():
            if ids & wrong:
                repaired[key] = (*repaired.get(key, ()), slice_type)
        for key, types in repaired.items():
            log.warning("the stored %s of %s was damaged, and is made again", ", ".join(types), key)
        return repaired
