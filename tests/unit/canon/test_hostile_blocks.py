"""Blocks with the right hash and the wrong content: whatever they hold, reading and changing them soon ends, in a value
or in one of our errors."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from analemma.canon import diffing
from analemma.canon.editing import Operation
from analemma.canon.identity import BlockId, block_id, from_cid, to_cid
from analemma.canon.nodes import (
    DEEPEST_CONTENT,
    Node,
    block_links,
    check_node,
    decode,
    decode_node,
    encode,
    node_link_ids,
    node_links,
    read_special,
)
from analemma.canon.packing import MAXIMUM_DEPTH
from analemma.canon.reading import Reader
from analemma.canon.standard_types import standard_registry
from analemma.canon.tree import Trees
from analemma.errors import Corrupt, Invalid, Limit, NotFound

ALLOWED = (Corrupt, Invalid, NotFound, Limit)
PATHS = (("a",), ("0",), ("5",), ("a", "0"), ("a", "5"), ("a", "x"), ("a", "-"), ("",), ("zz",), ("0",) * 200)


class Forge:
    """A store of blocks whose names are right, whatever they hold."""

    def __init__(self) -> None:
        self.data: dict[BlockId, bytes] = {}
        self.trees = Trees(self.fetch, standard_registry())
        self.leaf = self.put(["list", 0, 0, [1, 2]])
        self.fields = self.put(["map", 0, 0, {"a": 1}])
        self.other = self.build({"a": {"x": 1}, "l": list(range(3000))})
        self.other_list = self.build(list(range(3000)))

    def fetch(self, blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
        try:
            return {block: self.data[block] for block in blocks}
        except KeyError:
            raise NotFound("no such block") from None

    def put(self, content: Any) -> BlockId:
        return self.put_bytes(bytes(encode(content)))

    def put_bytes(self, data: bytes) -> BlockId:
        block = block_id(data)
        self.data[block] = data
        return block

    def build(self, value: Any) -> BlockId:
        made = self.trees.build(value)
        self.data.update({block.id: block.data for block in made.blocks})
        return made.root.id

    def size(self, block: BlockId) -> int:
        """The size that an honest link to this block would tell."""
        node = decode_node(block, self.data[block])
        return len(self.data[block]) + sum(self.size(child) for child in node_link_ids(node))


def link(block: BlockId, kind: Any = "list", count: Any = 2, size: Any = 11, branching: Any = 0) -> dict[str, Any]:
    return {"": [to_cid(block), kind, count, size, branching]}


def nested(depth: int) -> Any:
    content: Any = 1
    for _ in range(depth):
        content = [content]
    return content


SHAPES: dict[str, Callable[[Forge], Any]] = {
    "empty": lambda f: [],
    "three parts": lambda f: ["list", 0, 0],
    "dict": lambda f: {"a": 1, "b": 2, "c": 3, "d": 4},
    "int": lambda f: 5,
    "text of four": lambda f: "list",
    "kind int": lambda f: [5, 0, 0, [1]],
    "kind list": lambda f: [[], 0, 0, [1]],
    "kind unknown": lambda f: ["zzz", 0, 0, [1]],
    "kind unknown with flags": lambda f: ["zzz", 0, 3, [1]],
    "level text": lambda f: ["list", "x", 0, [1]],
    "level negative": lambda f: ["list", -1, 1, [[to_cid(f.leaf), 2, 11, 0]]],
    "level float": lambda f: ["list", 1.5, 1, [[to_cid(f.leaf), 2, 11, 0]]],
    "level bool": lambda f: ["list", True, 1, [[to_cid(f.leaf), 2, 11, 0]]],
    "level 65": lambda f: ["list", 65, 1, [[to_cid(f.leaf), 2, 11, 0]]],
    "level skipped": lambda f: ["list", 2, 1, [[to_cid(f.leaf), 2, 11, 0]]],
    "flags text": lambda f: ["list", 0, "x", [1]],
    "flags none": lambda f: ["list", 0, None, [1]],
    "flags unknown": lambda f: ["list", 0, 999, [1]],
    "flags links only": lambda f: ["list", 0, 1, [1]],
    "index flags 0": lambda f: ["list", 1, 0, [[to_cid(f.leaf), 2, 11, 0]]],
    "list holds map": lambda f: ["list", 0, 0, {"a": 1}],
    "list holds map, flags": lambda f: ["list", 0, 3, {"a": 1}],
    "list holds int": lambda f: ["list", 0, 0, 5],
    "list holds int, flags": lambda f: ["list", 0, 3, 5],
    "map holds list": lambda f: ["map", 0, 0, [1]],
    "map holds list, flags": lambda f: ["map", 0, 3, [1]],
    "map holds int": lambda f: ["map", 0, 3, 5],
    "map holds text": lambda f: ["map", 0, 0, "abc"],
    "text holds int": lambda f: ["text", 0, 0, 5],
    "text with flags": lambda f: ["text", 0, 2, "x"],
    "bytes hold text": lambda f: ["bytes", 0, 2, "x"],
    "bytes without marker": lambda f: ["bytes", 0, 2, b"x"],
    "bytes empty": lambda f: ["bytes", 0, 2, b""],
    "bytes without flag": lambda f: ["bytes", 0, 0, b"\0x"],
    "index empty": lambda f: ["list", 1, 1, []],
    "index empty map": lambda f: ["map", 1, 1, []],
    "child empty": lambda f: ["list", 1, 1, [[]]],
    "child dict": lambda f: ["list", 1, 1, [{}]],
    "child dict of four": lambda f: ["list", 1, 1, [{"a": 1, "b": 2, "c": 3, "d": 4}]],
    "child short": lambda f: ["list", 1, 1, [[to_cid(f.leaf)]]],
    "child int": lambda f: ["list", 1, 1, [5]],
    "child text": lambda f: ["list", 1, 1, ["abcd"]],
    "index none": lambda f: ["list", 1, 1, None],
    "index text": lambda f: ["list", 1, 1, "abc"],
    "index dict": lambda f: ["list", 1, 1, {"a": 1}],
    "child cid short": lambda f: ["list", 1, 1, [[b"\0" * 36, 2, 11, 0]]],
    "child without key": lambda f: ["map", 1, 1, [[to_cid(f.fields), 1, 11, 0]]],
    "child key int": lambda f: ["map", 1, 1, [[to_cid(f.fields), 1, 11, 0, 7], [to_cid(f.fields), 1, 11, 0, "z"]]],
    "child count text": lambda f: ["list", 1, 1, [[to_cid(f.leaf), "x", 11, 0]]],
    "child count float": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2.0, 11, 0]]],
    "child count negative": lambda f: ["list", 1, 1, [[to_cid(f.leaf), -5, 11, 0]]],
    "child count 0": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 0, 11, 0]]],
    "child count huge": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2**63, 11, 0]]],
    "child counts overflow": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2**63 - 1, 11, 0]] * 3],
    "child size text": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2, "x", 0]]],
    "child sizes overflow": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2, 2**63 - 1, 0]] * 3],
    "child flags text": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2, 11, "x"]]],
    "child flags float": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2, 11, 1.0]]],
    "value list": lambda f: ["value", 0, 0, [1, [2]]],
    "value map": lambda f: ["value", 0, 0, {"a": 1}],
    "value index": lambda f: ["value", 1, 1, [[to_cid(f.leaf), 2, 11, 0]]],
    "tag passed for data": lambda f: ["map", 0, 0, {"a": {"": ["tuple", [1]]}}],
    "link passed for data": lambda f: ["map", 0, 0, {"a": link(f.leaf)}],
}
"""Refused by whatever looks at the block at all."""

PROMISES: dict[str, Callable[[Forge], Any]] = {
    "child of other kind": lambda f: ["list", 1, 1, [[to_cid(f.fields), 1, 11, 0]]],
    "child of map is list": lambda f: ["map", 1, 1, [[to_cid(f.leaf), 2, 11, 0, "a"]]],
    "child of text is list": lambda f: ["text", 1, 1, [[to_cid(f.leaf), 2, 11, 0]]],
    "child count too large": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 100, 11, 0]]],
    "child count too small": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 1, 11, 0]]],
    "child size": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2, 12, 0]]],
    "child said to have links": lambda f: ["list", 1, 1, [[to_cid(f.leaf), 2, 11, 1]]],
    "child last key": lambda f: ["map", 1, 1, [[to_cid(f.fields), 1, f.size(f.fields), 0, "z"]]],
    "child twice": lambda f: ["map", 1, 1, [[to_cid(f.fields), 1, f.size(f.fields), 0, "a"]] * 2],
    "link kind unknown": lambda f: ["map", 0, 3, {"a": link(f.leaf, "zzz")}],
    "link kind int": lambda f: ["map", 0, 3, {"a": link(f.leaf, 5)}],
    "link kind list": lambda f: ["map", 0, 3, {"a": link(f.leaf, [])}],
    "link to value": lambda f: ["map", 0, 3, {"a": link(f.put(["value", 0, 0, 1]), "value", 1, 10)}],
    "link says map": lambda f: ["map", 0, 3, {"a": link(f.leaf, "map")}],
    "link says list": lambda f: ["map", 0, 3, {"a": link(f.fields, "list", 1, 11)}],
    "link says text": lambda f: ["map", 0, 3, {"a": link(f.leaf, "text")}],
    "link count too large": lambda f: ["map", 0, 3, {"a": link(f.leaf, count=10)}],
    "link count too small": lambda f: ["map", 0, 3, {"a": link(f.leaf, count=1)}],
    "link count text": lambda f: ["map", 0, 3, {"a": link(f.leaf, count="x")}],
    "link count bool": lambda f: ["map", 0, 3, {"a": link(f.leaf, count=True)}],
    "link count negative": lambda f: ["map", 0, 3, {"a": link(f.leaf, count=-3)}],
    "link count huge": lambda f: ["map", 0, 3, {"a": link(f.leaf, count=2**64 - 1)}],
    "link size text": lambda f: ["map", 0, 3, {"a": link(f.leaf, size="x")}],
    "link size 0": lambda f: ["map", 0, 3, {"a": link(f.leaf, size=0)}],
    "link size huge": lambda f: ["map", 0, 3, {n: link(f.leaf, size=2**63 - 1) for n in "abcd"}],
    "link branching": lambda f: ["map", 0, 3, {"a": link(f.leaf, branching=1)}],
    "link branching text": lambda f: ["map", 0, 3, {"a": link(f.leaf, branching="x")}],
    "links that differ": lambda f: ["map", 0, 3, {"a": link(f.leaf), "b": link(f.leaf, count=10)}],
    "link without flag": lambda f: ["map", 0, 2, {"a": link(f.leaf)}],
    "special empty": lambda f: ["map", 0, 2, {"a": {"": []}}],
    "special text": lambda f: ["map", 0, 2, {"a": {"": "x"}}],
    "special of three": lambda f: ["map", 0, 2, {"a": {"": ["x", 1, 2]}}],
    "tag without name": lambda f: ["map", 0, 2, {"a": {"": ["", 1]}}],
    "tag float": lambda f: ["map", 0, 2, {"a": {"": ["float", 5]}}],
    "datetime of int": lambda f: ["map", 0, 2, {"a": {"": ["datetime", 5]}}],
    "set of lists": lambda f: ["map", 0, 2, {"a": {"": ["set", [[1]]]}}],
    "timedelta too long": lambda f: ["map", 0, 2, {"a": {"": ["timedelta", [10**18, 0, 0]]}}],
    "bytes unmarked inside": lambda f: ["map", 0, 2, {"a": b"x"}],
    "arrays in arrays": lambda f: ["list", 0, 2, nested(500)],
    "tags in tags": lambda f: ["list", 0, 2, [tags(200)]],
    "links in links": lambda f: ["list", 0, 3, [link(linked_chain(f, 3000), "list", 1, 99, 1)]],
    "indexes in indexes": lambda f: ["list", 64, 1, [[to_cid(index_chain(f, 3000)), 1, 99, 1]]],
}
"""Refused, at the latest, by whoever reads the whole."""

HARMLESS: dict[str, Callable[[Forge], Any]] = {
    "plain arrays in arrays": lambda f: ["list", 0, 0, nested(500)],
    "map field without name": lambda f: ["map", 0, 0, {"": 1}],
    "flags too many": lambda f: ["map", 0, 3, {"a": 1}],
    "integer out of range": lambda f: ["list", 0, 0, [-(2**64), 1]],
    "plain bytes": lambda f: ["list", 0, 0, [b"\0x"]],
}
"""Read as what they say, or refused; never anything else."""


def tags(depth: int) -> Any:
    content: Any = 1
    for _ in range(depth):
        content = {"": ["tuple", content]}
    return content


def linked_chain(forge: Forge, length: int) -> BlockId:
    block, size = forge.put(["list", 0, 0, [1]]), 10
    for number in range(length):
        block = forge.put(["list", 0, 3, [link(block, "list", 1, size, 1 if number else 0)]])
        size += len(forge.data[block])
    return block


def index_chain(forge: Forge, length: int) -> BlockId:
    block = forge.put(["list", 0, 0, [1]])
    for _ in range(length):
        block = forge.put(["list", 64, 1, [[to_cid(block), 1, 99, 1]]])
    return block


def try_everything(forge: Forge, root: BlockId) -> None:
    """Run every verb on this root; anything but our own errors gets out."""

    def attempt(verb: Callable[[], object]) -> None:
        try:
            verb()
        except ALLOWED:
            pass

    trees = forge.trees
    attempt(lambda: trees.read(root))
    attempt(lambda: trees.get(root, ""))
    attempt(lambda: trees.get_many(root, PATHS))
    for path in PATHS:
        attempt(lambda path=path: trees.get(root, path))  # type: ignore[misc]
        for op in ("put", "add", "remove", "discard"):
            change = Operation(op, path, list(range(1500)))
            attempt(lambda change=change: trees.edit(root, [change]))  # type: ignore[misc]
    attempt(lambda: trees.edit(root, []))
    attempt(lambda: trees.edit(root, [Operation("put", (), list(range(3000)))]))
    attempt(lambda: trees.edit(root, [Operation("remove", ("0",)), Operation("add", ("0", "a", "-"), 1)]))
    for other in (forge.other, forge.other_list, forge.leaf, forge.fields):
        attempt(lambda other=other: trees.diff(root, other))  # type: ignore[misc]
        attempt(lambda other=other: trees.diff(other, root))  # type: ignore[misc]


@pytest.mark.parametrize("name", [*SHAPES, *PROMISES, *HARMLESS])
def test_only_our_errors_come_out_of_a_forged_block(name: str) -> None:
    forge = Forge()
    forged = {**SHAPES, **PROMISES, **HARMLESS}[name](forge)
    try_everything(forge, forge.put(forged))


@pytest.mark.parametrize("name", SHAPES)
def test_a_block_of_the_wrong_shape_is_refused_when_it_is_decoded(name: str) -> None:
    forge = Forge()
    block = forge.put(SHAPES[name](forge))
    if name != "level skipped":
        with pytest.raises(Corrupt):
            decode_node(block, forge.data[block])
    with pytest.raises(Corrupt):
        forge.trees.read(block)


def test_the_same_blocks_are_read_when_they_tell_the_truth() -> None:
    forge = Forge()
    entry = [to_cid(forge.leaf), 2, 11, 0]
    keyed = [to_cid(forge.fields), 1, 11, 0, "a"]
    assert forge.trees.read(forge.put(["list", 1, 1, [entry, entry]])) == [1, 2, 1, 2]
    assert forge.trees.read(forge.put(["map", 1, 1, [keyed]])) == {"a": 1}
    assert forge.trees.read(forge.put(["map", 0, 3, {"a": link(forge.leaf)}])) == {"a": [1, 2]}
    assert forge.trees.read(forge.put(["map", 0, 2, {"a": {"": ["tuple", [1]]}}])) == {"a": (1,)}
    assert forge.trees.read(forge.put(["list", 0, 0, nested(127)[0]])) == nested(127)[0]
    assert forge.trees.read(linked_chain(forge, 127))


@pytest.mark.parametrize("name", PROMISES)
def test_a_block_that_lies_about_others_is_refused_when_it_is_read(name: str) -> None:
    forge = Forge()
    with pytest.raises(Corrupt):
        forge.trees.read(forge.put(PROMISES[name](forge)))


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x81" * 3000 + b"\x01", b"\x82\x41x\x01", b"\x01\x01"])
def test_bytes_that_are_no_block_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_node(block_id(data), data)
    with pytest.raises(Corrupt):
        block_links(data)


def test_a_lie_about_a_list_is_not_an_item_that_is_missing() -> None:
    forge = Forge()
    for count in (1, 10):
        root = forge.put(["map", 0, 3, {"a": link(forge.leaf, count=count)}])
        for path in (("a", "1"), ("a", "5"), ("a", "-")):
            with pytest.raises(Corrupt):
                forge.trees.get(root, path)
    root = forge.put(["map", 0, 3, {"a": link(forge.leaf, "text")}])
    with pytest.raises(Corrupt):
        forge.trees.get(root, ("a", "0"))


@pytest.mark.parametrize(
    "content",
    [
        ["map", 0, 3, {"a": 1}],
        ["map", 0, 2, {"a": 1}],
        ["list", 0, 0, [b"\0x"]],
        ["list", 0, 2, [b"x"]],
        ["list", 0, 2, [link(BlockId(b"x" * 32))]],
        ["list", 0, 3, [link(BlockId(b"x" * 32), size=0)]],
        ["list", 0, 3, [link(BlockId(b"x" * 32), "value")]],
        ["list", 0, 2, [{"": ["float", 5]}]],
        ["list", 0, 0, nested(200)],
        ["list", 0, 2, [tags(200)]],
        ["list", 0, 0, [-(2**64)]],
        ["list", 1, 1, [[to_cid(BlockId(b"x" * 32)), True, 1, 0]]],
        ["map", 1, 1, [[to_cid(BlockId(b"x" * 32)), 1, 1, 0, key] for key in ("b", "a")]],
    ],
)
def test_admission_refuses_content_that_we_would_not_have_written(content: Any) -> None:
    data = bytes(encode(content))
    block = block_id(data)
    with pytest.raises(Corrupt):
        check_node(block, decode_node(block, data))


def test_admission_takes_everything_that_we_write() -> None:
    forge = Forge()
    forge.build(deepest())
    for value in seeds(random.Random(2)):
        forge.build(value)
    for block, data in forge.data.items():
        check_node(block, decode_node(block, data))


def deepest() -> Any:
    """The deepest value that can be stored, every level of it a tag around a tree that does not fit into one block."""
    value: Any = 1
    for number in range(MAXIMUM_DEPTH):
        value = (value, *[f"{number}:{item}" * 40 for item in range(150 if number % 8 == 0 else 5)])
    return value


def test_the_deepest_value_can_be_read_with_half_the_stack_in_use() -> None:
    assert DEEPEST_CONTENT == MAXIMUM_DEPTH
    forge = Forge()
    root = forge.build(deepest())

    def below(frames: int) -> Any:
        return below(frames - 1) if frames else forge.trees.read(root)

    assert below(300) == deepest()


def bomb(forge: Forge, levels: int, *, index: bool) -> BlockId:
    """A few blocks that stand for 2 ** levels items, and say so."""
    block, count, size = forge.leaf, 2, len(forge.data[forge.leaf])
    for level in range(1, levels + 1):
        if index:
            block = forge.put(["list", level, 1, [[to_cid(block), count, size, 1 if level > 1 else 0]] * 2])
            count *= 2
        else:
            block = forge.put(["list", 0, 3, [link(block, "list", count, size, 1 if level > 1 else 0)] * 2])
            count = 2
        size = size * 2 + len(forge.data[block])
    return block


@pytest.mark.parametrize("index", [True, False])
def test_a_few_blocks_that_stand_for_a_huge_value_are_refused(index: bool) -> None:
    forge = Forge()
    with pytest.raises(Limit):
        forge.trees.read(bomb(forge, 40, index=index))
    small = bomb(forge, 10, index=index)
    assert forge.trees.read(small)
    with pytest.raises(Limit):
        Reader(forge.fetch, forge.trees.registry, largest_bytes=10_000).read(small)


@pytest.mark.parametrize("index", [True, False])
def test_a_few_blocks_that_hide_how_huge_they_are_are_corrupt(index: bool) -> None:
    forge = Forge()
    block = forge.leaf
    for level in range(1, 41):
        if index:
            block = forge.put(["list", level, 1, [[to_cid(block), 2, 11, 1 if level > 1 else 0]] * 2])
        else:
            block = forge.put(["list", 0, 3, [link(block, "list", 2, 11, 1 if level > 1 else 0)] * 2])
    with pytest.raises(Corrupt):
        forge.trees.read(block)


@pytest.mark.parametrize("index", [True, False])
def test_comparing_with_a_huge_value_ends(index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffing, "MOST_DIFFERING", 2**12)
    forge = Forge()
    huge = bomb(forge, 40, index=index)
    forge.leaf = forge.put(["list", 0, 0, [3, 4]])
    another = bomb(forge, 40, index=index)
    with pytest.raises(Limit):
        forge.trees.diff(huge, another)


def seeds(pick: random.Random) -> list[Any]:
    return [
        {"a": {"x": [1, (2, 3), b"raw", -0.0, {"": 5}]}, "b": "text " * 600, "0": [None, True, 2.5]},
        [{"n": number, "t": "word " * pick.randrange(30)} for number in range(300)],
        {f"key{number}": [number] * pick.randrange(9) for number in range(900)},
        {"a": ["x" * 3000, b"y" * 3000, [list(range(2000))]], "b": list(range(2000))},
        "é" * 200_000,
        pick.randbytes(300_000),
    ]


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
        content = decode(self.forge.data[path[-1]])
        for _ in range(self.pick.randrange(1, 4)):
            # The body mostly: a node whose head is wrong is seen through at once.
            if type(content) is list and len(content) == 4 and self.pick.random() < 0.9:
                content = [*content[:3], self._changed(content[3])]
            else:
                content = self._changed(content)
        block = self._put(content, path[-1])
        honest = self.pick.random() < 0.7
        for above, old in zip(path[-2::-1], path[:0:-1], strict=True):
            block = self._put(self._renamed(decode(self.forge.data[above]), old, block, honest), above)
        return block

    def _below(self, block: BlockId) -> list[BlockId]:
        try:
            return [link for link in block_links(self.forge.data[block]) if link in self.forge.data]
        except Corrupt:
            return []

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
        before, after = self.forge.data[old], self.forge.data[new]
        try:
            sizes = [
                sum(link.size for link in node_links(decode_node(block_id(data), data))) for data in (before, after)
            ]
            return [decode_node(new, after).length, promised[1] + len(after) - len(before) + sizes[1] - sizes[0]]
        except (Corrupt, TypeError):
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


@pytest.mark.parametrize("seed", range(4))
def test_only_our_errors_come_out_of_mutated_trees(seed: int) -> None:
    pick = random.Random(seed)
    forge = Forge()
    roots = [forge.build(value) for value in seeds(pick)[:4]]
    small = forge.build({"a": [1, 2], "0": {"x": (1, b"y")}})
    mutator = Mutator(forge, pick)
    trees = forge.trees
    for number in range(400):
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


def test_what_is_taken_apart_is_what_was_put_together() -> None:
    forge = Forge()
    target = read_special(link(forge.leaf)).link
    assert target is not None and target.id == from_cid(to_cid(forge.leaf)) and target.count == 2
    node = decode_node(forge.leaf, forge.data[forge.leaf])
    assert node == Node("list", 0, 0, [1, 2], 2)


@pytest.mark.parametrize("path", [("m", 3), ("l", 0), ("m", "\ud800"), ("l", "0", None)], ids=range(4))
@pytest.mark.parametrize("op", ["put", "remove", "discard"])
def test_a_path_that_is_none_is_invalid_before_anything_is_read_along_it(op: Any, path: Any) -> None:
    forge = Forge()
    value = {"m": {str(number): "x" * 40 for number in range(900)}, "l": ["y" * 40] * 900}
    root = forge.build(value)
    with pytest.raises(Invalid):
        forge.trees.edit(root, [Operation("put", ("n",), 1), Operation(op, path, 1)])
