"""Trees of ours with something changed in their blocks: only our own errors come out of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import libipld
import pytest

from analemma import BlockId, Operation
from tests.core.canon.forged_blocks import ALLOWED, Forge, links, seeds, to_cid
from tests.depth import count


class Mutator:
    """Changes something somewhere in a tree and gives every block above it the name it then has."""

    def __init__(self, forge: Forge, pick: random.Random) -> None:
        self.forge = forge
        self.pick = pick

    def mutated(self, root: BlockId) -> BlockId:
        """The root of a tree that differs in one to three places of one of its blocks."""
        path = [root]
        while self.pick.random() < 0.6 and (below := self._below(path[-1])):
            path.append(self.pick.choice(below))
        content = self._content(path[-1])
        for _ in range(self.pick.randrange(1, 4)):
            # The body mostly: a node whose head is wrong is seen through at once.
            if type(content) is list and len(content) == 4 and self.pick.random() < 0.9:
                content = [*content[:3], self._changed(content[3])]
            else:
                content = self._changed(content)
        block = self._put(content, path[-1])
        honest = self.pick.random() < 0.7
        for above, old in zip(path[-2::-1], path[:0:-1], strict=True):
            block = self._put(self._renamed(self._content(above), old, block, honest), above)
        return block

    def _content(self, block: BlockId) -> Any:
        return libipld.decode_dag_cbor(self.forge.data[block])

    def _below(self, block: BlockId) -> list[BlockId]:
        return [link for link in links(self._content(block)) if link in self.forge.data]

    def _put(self, content: Any, instead: BlockId) -> BlockId:
        try:
            return self.forge.put(content)
        except (ValueError, TypeError):
            return instead

    def _renamed(self, content: Any, old: BlockId, new: BlockId, honest: bool) -> Any:
        """The same with another block linked; an honest one tells the count and size of that."""
        if type(content) is list:
            items = [self._renamed(item, old, new, honest) for item in content]
            if content and content[0] == to_cid(old):
                items[0] = to_cid(new)
                if honest and len(items) >= 4:
                    at = 1 if type(items[1]) is int else 2
                    items[at : at + 2] = self._told(old, new, items[at : at + 2])
            return items
        if type(content) is dict:
            return {key: self._renamed(item, old, new, honest) for key, item in content.items()}
        return content

    def _told(self, old: BlockId, new: BlockId, promised: list[Any]) -> list[Any]:
        grown = len(self.forge.data[new]) - len(self.forge.data[old])
        try:
            sizes = [sum(_sizes(self._content(block))) for block in (old, new)]
            return [_length(self._content(new)), promised[1] + grown + sizes[1] - sizes[0]]
        except (AttributeError, LookupError, TypeError, ValueError):
            return promised

    def _changed(self, content: Any) -> Any:
        pick = self.pick
        if type(content) in (list, dict) and content and pick.random() < 0.85:
            twin = content.copy()
            place = pick.randrange(len(content)) if type(content) is list else pick.choice(list(content))
            fate = pick.random()
            if fate < 0.1:
                del twin[place]
            elif fate < 0.2 and type(twin) is list:
                twin.insert(place, twin[pick.randrange(len(twin))])
            elif fate < 0.25 and type(twin) is dict:
                twin[pick.choice(["", "a", "zz"])] = twin.pop(place)
            else:
                twin[place] = self._changed(content[place])
            return twin
        if type(content) is int and pick.random() < 0.6:
            return max(-(2**63), min(2**64 - 1, content + pick.choice([-1, 1, 7, 2**40, -(2**40), 2**63])))
        if type(content) is bytes and pick.random() < 0.5:
            return pick.choice([content[:-1], content + b"x", to_cid(pick.choice(list(self.forge.data)))])
        kinds: list[Any] = ["list", "map", "text", "bytes", "value", "", "tuple", "datetime", "set"]
        odd: list[Any] = [None, True, -1, 0, 1, 2, 3, 4, 5, 1.5, 2**63, [], {}, b"\0x", {"": []}, {"": ["tuple", 1]}]
        return pick.choice([*kinds, *odd, [content], {"": content}, {"a": content}])


def _length(node: Any) -> int:
    """What a link to this node gives as its count: items, or bytes of a text or of bytes."""
    kind, level, _, body = node
    if level:
        return sum(child[1] for child in body)
    return len(body.encode()) if kind == "text" else len(body) - (kind == "bytes")


def _sizes(node: Any) -> list[int]:
    """Of all that a node links to, as it says."""
    _, level, _, body = node
    if level:
        return [child[2] for child in body]
    found: list[int] = []
    stack = [body]
    while stack:
        item = stack.pop()
        if type(item) is dict and list(item) == [""] and type(item[""]) is list and len(item[""]) == 5:
            found.append(item[""][3])
        elif type(item) in (list, dict):
            stack.extend(item.values() if type(item) is dict else item)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_only_our_errors_come_out_of_mutated_trees(seed: int) -> None:
    pick = random.Random(seed)
    forge = Forge()
    roots = [forge.build(value) for value in seeds(pick)[:4]]
    small = forge.build({"a": [1, 2], "0": {"x": (1, b"y")}})
    mutator = Mutator(forge, pick)
    trees = forge.trees
    for number in range(count(test=150, deep=400)):
        # Mutants of small trees mostly: there a change more often hits what holds the tree together.
        original = small if number % 2 else pick.choice(roots)
        root = mutator.mutated(original)
        if pick.random() < 0.3:
            root = mutator.mutated(root) if root in forge.data else root
        path = pick.choice([("a",), ("0",), ("5",), ("a", "0"), ("a", "-"), ("key7",), ("150", "n"), ("b", "1000")])
        op = pick.choice(["put", "add", "remove", "discard"])
        change = Operation(op, path, pick.choice([1, "x" * 3000, [1, 2]]))  # type: ignore[arg-type]
        verbs: list[Callable[[], object]] = [
            lambda root=root: trees.read(root),  # type: ignore[misc]
            lambda root=root, path=path: trees.get_many(root, [path, (), ("a", "x")]),  # type: ignore[misc]
            lambda root=root, change=change: trees.edit(root, [change]),  # type: ignore[misc]
            lambda root=root, original=original: trees.diff(original, root),  # type: ignore[misc]
            lambda root=root, original=original: trees.diff(root, original),  # type: ignore[misc]
        ]
        for verb in verbs:
            try:
                verb()
            except ALLOWED:
                pass
