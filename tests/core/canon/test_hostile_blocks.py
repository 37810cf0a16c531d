"""Blocks with the right hash and the wrong content: whatever they hold, reading and changing them soon ends, in a value
or in one of our errors."""

from __future__ import annotations

import random
from typing import Any

import pytest

from analemma import BlockId, Operation
from analemma.canon import diffing
from analemma.canon.identity import block_id, from_cid, to_cid
from analemma.canon.nodes import (
    Node,
    block_links,
    check_node,
    decode_node,
)
from analemma.canon.packing import MAXIMUM_DEPTH
from analemma.canon.reading import Reader
from analemma.canon.wire import DEEPEST_CONTENT, encode, read_special
from analemma.errors import Corrupt, Invalid, Limit
from tests.core.canon.forged_blocks import (
    HARMLESS,
    PROMISES,
    SHAPES,
    Forge,
    link,
    linked_chain,
    nested,
    seeds,
    tags,
    try_everything,
)


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
