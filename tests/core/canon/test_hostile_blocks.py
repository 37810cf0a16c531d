"""Blocks with the right hash and the wrong content: whatever they hold, reading and changing them soon ends, in a value
or in one of our errors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import libipld
import pytest

from analemma import BlockId, Operation
from analemma.errors import Corrupt, Invalid, Limit
from tests.core.canon.forged_blocks import (
    HARMLESS,
    PROMISES,
    SHAPES,
    Forge,
    link,
    linked_chain,
    links,
    nested,
    seeds,
    tags,
    to_cid,
    try_everything,
)
from tests.core.entry_points.canon import Promises, admit_block

DEEPEST = 128


def taken(what: Callable[[str], object], names: Any) -> list[str]:
    """Those for which it does not end in Corrupt."""
    found = []
    for name in names:
        try:
            what(name)
        except Corrupt:
            continue
        found.append(name)
    return found


def is_tree_node(content: Any) -> bool:
    kinds = ("list", "map", "text", "bytes", "value")
    return type(content) is list and len(content) == 4 and content[0] in kinds


@pytest.mark.parametrize("table", [SHAPES, PROMISES, HARMLESS], ids=["shapes", "promises", "harmless"])
def test_only_our_errors_come_out_of_a_forged_block(table: dict[str, Callable[[Forge], Any]]) -> None:
    forge = Forge()
    wrong = []
    for name, forged in table.items():
        try:
            try_everything(forge, forge.put(forged(forge)))
        except Exception as exc:
            wrong.append(f"{name}: {exc!r}")
    assert wrong == []


def test_a_block_of_the_wrong_shape_is_neither_read_nor_admitted() -> None:
    forge = Forge()
    assert taken(lambda name: forge.trees.read(forge.put(SHAPES[name](forge))), SHAPES) == []
    admitted = taken(lambda name: admit_block(forge.data[forge.put(SHAPES[name](forge))]), SHAPES)
    # Blocks of other kinds have readers of their own; and only the block below knows how high it is.
    others = {name for name, made in SHAPES.items() if not is_tree_node(made(forge))}
    assert set(admitted) - others == {"level skipped"}


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


def test_a_block_that_lies_about_others_is_refused_when_it_comes_in_with_them() -> None:
    forge = Forge()
    taken_in = taken(lambda name: admit_tree(forge, forge.put(PROMISES[name](forge))), PROMISES)
    # These have the wrong values for their types, which only the types can tell.
    assert taken_in == ["datetime of int", "set of lists", "timedelta too long"]


def test_what_a_walk_relies_on_is_held_against_each_block_that_is_read() -> None:
    forge = Forge()
    read = taken(lambda name: forge.trees.read(forge.put(PROMISES[name](forge))), PROMISES)
    # What others say of a block's size, of its own links and of its last key leads no reader astray.
    assert read == [
        "child size",
        "child said to have links",
        "child last key",
        "link size 0",
        "link size huge",
        "link branching",
    ]


@pytest.mark.parametrize("order", [1, -1], ids=["from the root", "from the leaves"])
def test_lies_are_found_in_whatever_order_blocks_come_in(order: int) -> None:
    forge = Forge()
    value = {"m": {str(number): "x" * 40 for number in range(900)}, "l": [["y" * 40, "z" * 3000]] * 900}
    blocks = reachable(forge, forge.build(value))[::order]
    promises = Promises()
    for block in blocks:
        admit_block(forge.data[block], block, promises)
    for liar in (block for block in blocks if is_linking(forge.data[block])):
        for lie in (0, 1, 2):
            # The link is spoiled and nothing else: as if every other block had kept its name.
            told = [spoiled(forge.data[block], lie) if block == liar else forge.data[block] for block in blocks]
            with pytest.raises(Corrupt):
                check_all(told)


def check_all(blocks: list[bytes]) -> None:
    promises = Promises()
    for data in blocks:
        promises.check(BlockId(sha256(data).digest()), data)


def reachable(forge: Forge, root: BlockId) -> list[BlockId]:
    found = {root: None}
    for block in (waiting := [root]):
        for target in links(libipld.decode_dag_cbor(forge.data[block])):
            if target not in found:
                found[target] = None
                waiting.append(target)
    return [*found]


def is_linking(data: bytes) -> bool:
    return any(True for _ in links(libipld.decode_dag_cbor(data)))


def spoiled(data: bytes, lie: int) -> bytes:
    """The block with another count, size or flag in the first of its links."""
    content = libipld.decode_dag_cbor(data)
    kind, level, flags, body = content
    if level:
        body[0][1 + lie] = body[0][1 + lie] ^ 1 if lie == 2 else body[0][1 + lie] + 1
    else:
        told = next(each for each in specials(body) if len(each) == 5)
        told[2 + lie] = told[2 + lie] ^ 1 if lie == 2 else told[2 + lie] + 1
    return bytes(libipld.encode_dag_cbor([kind, level, flags, body]))


def specials(content: Any) -> Iterator[list[Any]]:
    if type(content) is dict and list(content) == [""]:
        yield content[""]
    elif type(content) in (list, dict):
        for item in content.values() if type(content) is dict else content:
            yield from specials(item)


def admit_tree(forge: Forge, root: BlockId) -> None:
    """Take in a block with all that it leads to, as an import does."""
    promises = Promises()
    for block in reachable(forge, root):
        admit_block(forge.data[block], block, promises)


def test_bytes_that_are_no_block_are_corrupt() -> None:
    forge = Forge()
    for data in (b"", b"\xff", b"\x81" * 3000 + b"\x01", b"\x82\x41x\x01", b"\x01\x01"):
        with pytest.raises(Corrupt):
            forge.trees.read(forge.put_bytes(data))
        with pytest.raises(Corrupt):
            admit_block(data)


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


def test_admission_refuses_content_that_we_would_not_have_written() -> None:
    nowhere = BlockId(b"x" * 32)
    contents: list[Any] = [
        ["map", 0, 3, {"a": 1}],
        ["map", 0, 2, {"a": 1}],
        ["list", 0, 0, [b"\0x"]],
        ["list", 0, 2, [b"x"]],
        ["list", 0, 2, [link(nowhere)]],
        ["list", 0, 3, [link(nowhere, size=0)]],
        ["list", 0, 3, [link(nowhere, "value")]],
        ["list", 0, 2, [{"": ["float", 5]}]],
        ["list", 0, 0, nested(200)],
        ["list", 0, 2, [tags(200)]],
        ["list", 0, 0, [-(2**64)]],
        ["list", 1, 1, [[to_cid(nowhere), True, 1, 0]]],
        ["map", 1, 1, [[to_cid(nowhere), 1, 1, 0, key] for key in ("b", "a")]],
    ]
    assert taken(lambda content: admit_block(bytes(libipld.encode_dag_cbor(content))), contents) == []


def test_admission_takes_everything_that_we_write() -> None:
    forge = Forge()
    forge.build(deepest())
    for value in seeds(random.Random(2)):
        forge.build(value)
    promises = Promises()
    for block, data in forge.data.items():
        assert admit_block(data, block, promises).data == data


def deepest() -> Any:
    """The deepest value that can be stored, every level of it a tag around a tree that does not fit into one block."""
    value: Any = 1
    for number in range(DEEPEST):
        value = (value, *[f"{number}:{item}" * 40 for item in range(150 if number % 8 == 0 else 5)])
    return value


def test_the_deepest_value_can_be_read_with_half_the_stack_in_use() -> None:
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


INDEX = pytest.mark.parametrize("index", [True, False], ids=["of indexes", "of links"])


@INDEX
def test_a_few_blocks_that_stand_for_a_huge_value_are_refused(index: bool) -> None:
    forge = Forge()
    with pytest.raises(Limit):
        forge.trees.read(bomb(forge, 40, index=index))
    assert forge.trees.read(bomb(forge, 10, index=index))


@INDEX
def test_a_few_blocks_that_hide_how_huge_they_are_are_refused_all_the_same(index: bool) -> None:
    forge = Forge()
    block = forge.leaf
    for level in range(1, 41):
        if index:
            block = forge.put(["list", level, 1, [[to_cid(block), 2, 11, 1 if level > 1 else 0]] * 2])
        else:
            block = forge.put(["list", 0, 3, [link(block, "list", 2, 11, 1 if level > 1 else 0)] * 2])
    with pytest.raises(Limit):
        forge.trees.read(block)
    with pytest.raises(Corrupt):
        admit_tree(forge, block)


@pytest.mark.deep("looks at 16 million items before it gives up")
def test_comparing_with_a_huge_value_ends() -> None:
    forge = Forge()
    huge = bomb(forge, 40, index=True)
    forge.leaf = forge.put(["list", 0, 0, [3, 4]])
    another = bomb(forge, 40, index=True)
    with pytest.raises(Limit):
        forge.trees.diff(huge, another)


def test_a_path_that_is_none_is_invalid_before_anything_is_read_along_it() -> None:
    forge = Forge()
    value = {"m": {str(number): "x" * 40 for number in range(900)}, "l": ["y" * 40] * 900}
    root = forge.build(value)
    paths: list[Any] = [("m", 3), ("l", 0), ("m", "\ud800"), ("l", "0", None)]
    operations: list[Any] = ["put", "remove", "discard"]
    for path in paths:
        for op in operations:
            with pytest.raises(Invalid):
                forge.trees.edit(root, [Operation("put", ("n",), 1), Operation(op, path, 1)])
