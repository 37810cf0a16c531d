"""Trees of slices that were built a moment ago: those that follow one change often hold the same."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from analemma.canon.trees import Edited, Trees

KEPT: Final = 64
"""Each of one block, so that they take little."""


class RecentTrees:
    """Builds trees of slices. Threads may share one: what one of them loses is built again."""

    def __init__(self, trees: Trees) -> None:
        self._trees = trees
        self._recent: OrderedDict[str, Edited] = OrderedDict()

    def build(self, digest: str, data: Any) -> Edited:
        """The tree of a slice, whose hash says what it holds."""
        found = self._recent.get(digest)
        if found is None:
            found = self._trees.build(data)
            if len(found.blocks) == 1:
                self._recent[digest] = found
                while len(self._recent) > KEPT:
                    try:
                        self._recent.popitem(last=False)
                    except KeyError:
                        break
        return found
