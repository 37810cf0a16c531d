"""Blocks that nobody of ours wrote, and everything that can be done with a tree that has one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import libipld

from analemma import BlockId, Operation
from analemma.errors import Corrupt, Invalid, Limit, NotFound
from tests.core.entry_points.canon import Trees, standard_registry
from tests.depth import count

CID_PREFIX = b"\x01\x71\x12\x20"
"""CID version 1, DAG-CBOR, SHA-256."""
ALLOWED = (Corrupt, Invalid, NotFound, Limit)
CHAIN = count(test=400, deep=3000)
"""So many blocks, each in the one before: more than anything may be nested."""
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
        return self.put_bytes(bytes(libipld.encode_dag_cbor(content)))

    def put_bytes(self, data: bytes) -> BlockId:
        block = BlockId(sha256(data).digest())
        self.data[block] = data
        return block

    def build(self, value: Any) -> BlockId:
        made = self.trees.build(value)
        self.data.update({block.id: block.data for block in made.blocks})
        return made.root.id

    def size(self, block: BlockId) -> int:
        """The size that an honest link to this block would tell."""
        below = links(libipld.decode_dag_cbor(self.data[block]))
        return len(self.data[block]) + sum(self.size(child) for child in below)


def to_cid(block: BlockId) -> bytes:
    return CID_PREFIX + block


def links(content: Any) -> Iterator[BlockId]:
    """The blocks that content names: these are the only bytes in it that do not begin with 0x00."""
    if type(content) is bytes:
        if content[:4] == CID_PREFIX and len(content) == 36:
            yield BlockId(content[4:])
    elif type(content) in (list, dict):
        for item in content.values() if type(content) is dict else content:
            yield from links(item)


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
    "links in links": lambda f: ["list", 0, 3, [link(linked_chain(f, CHAIN), "list", 1, 99, 1)]],
    "indexes in indexes": lambda f: ["list", 64, 1, [[to_cid(index_chain(f, CHAIN)), 1, 99, 1]]],
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


def seeds(pick: random.Random) -> list[Any]:
    return [
        {"a": {"x": [1, (2, 3), b"raw", -0.0, {"": 5}]}, "b": "text " * 600, "0": [None, True, 2.5]},
        [{"n": number, "t": "word " * pick.randrange(30)} for number in range(300)],
        {f"key{number}": [number] * pick.randrange(9) for number in range(900)},
        {"a": ["x" * 3000, b"y" * 3000, [list(range(2000))]], "b": list(range(2000))},
        "é" * 200_000,
        pick.randbytes(300_000),
    ]
