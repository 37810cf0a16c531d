"""Trees of values beside the least that could be done: encode everything as one DAG-CBOR block and hash it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import libipld

from analemma.canon.nodes import BlockId
from analemma.canon.pointer import Operation
from analemma.canon.trees import Trees
from analemma.canon.types import standard_registry
from bench.harness import Row, alternate

ONE_BLOCK = "one block, encoded and hashed whole"


def run(quick: bool) -> Iterator[Row]:
    """Building, reading and changing the state of an agent with a long conversation."""
    rounds = 10 if quick else 40
    state = conversation(1000)
    size = len(libipld.encode_dag_cbor(state))
    blocks: dict[BlockId, bytes] = {}
    trees = Trees(lambda ids: {block: blocks[block] for block in ids}, standard_registry())
    made = trees.build(state)
    blocks.update({block.id: block.data for block in made.blocks})
    root = made.root.id
    whole = libipld.encode_dag_cbor(state)
    yield _speed("build a state of 1,000 messages", lambda: trees.build(state), lambda: _one_block(state), size, rounds)
    yield _speed("read it", lambda: trees.read(root), lambda: libipld.decode_dag_cbor(whole), size, rounds)
    message = {"role": "user", "content": "x" * 1400}
    yield _change("append a message", trees, root, [Operation("add", ("messages", "-"), message)], state, rounds)
    yield _change("change a message", trees, root, [Operation("put", ("messages", "500", "role"), "x")], state, rounds)
    yield _change("insert a message", trees, root, [Operation("add", ("messages", "3"), message)], state, rounds)
    replaced = [*state["messages"], message]
    yield _change("replace the whole list", trees, root, [Operation("put", ("messages",), replaced)], state, rounds)


def conversation(count: int) -> dict[str, Any]:
    """A state of that many messages of 1.4 KB, and something that never changes."""
    pick = random.Random(1)
    words = [pick.randbytes(4).hex() for _ in range(500)]
    return {
        "messages": [
            {
                "role": "assistant" if number % 2 else "user",
                "id": number,
                "content": " ".join(pick.choices(words, k=155)),
            }
            for number in range(count)
        ],
        "plan": {"steps": [{"n": number, "done": False} for number in range(50)]},
        "constant": " ".join(pick.choices(words, k=5000)),
    }


def _one_block(value: Any) -> bytes:
    return sha256(libipld.encode_dag_cbor(value)).digest()


def _speed(name: str, ours: Callable[[], Any], floor: Callable[[], Any], size: int, rounds: int) -> Row:
    duel = alternate(ours, floor, rounds)
    return Row(name, size / duel.a.median_s / 1e6, "MB/s", duel.ratio, ONE_BLOCK)


def _change(name: str, trees: Trees, root: BlockId, change: list[Operation], state: Any, rounds: int) -> Row:
    duel = alternate(lambda: trees.edit(root, change), lambda: _one_block(state), rounds)
    emitted = trees.edit(root, change).blocks
    told = f"{name} ({len(emitted)} blocks, {sum(len(block.data) for block in emitted) / 1000:.1f} KB)"
    return Row(told, duel.a.median_s * 1e6, "us", duel.ratio, ONE_BLOCK)
