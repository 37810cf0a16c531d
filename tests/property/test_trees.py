"""Trees do not remember how they came about: any way of editing gives the root that building afresh gives."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from analemma.canon.aligning import align
from analemma.canon.source import NodeCache
from analemma.testing.strategies import SeededValues, shown, values
from tests.core.canon.memory_blocks import MemoryBlocks


def check_edit_history(seed: int, steps: int) -> None:
    """One random value through random batches of edits, each compared with building afresh, diffed and undone."""
    seeded = SeededValues(seed)
    blocks = MemoryBlocks()
    trees = blocks.trees
    # A program that goes on editing finds its nodes in a cache; this one is so small that it often has lost them again.
    remembering = replace(trees, nodes=NodeCache(20))
    value = seeded.container()
    root = blocks.save(trees.build(value))
    assert shown(trees.read(root)) == shown(value)
    for _ in range(steps):
        before = root
        operations = seeded.edits(value, seeded.random.choice([1, 1, 2, 5, 20, 60]))
        edited = trees.edit(root, operations)
        root = blocks.save(edited)
        assert edited.root == trees.build(value).root, "editing and building disagree"
        remembered = remembering.edit(before, operations)
        # It looks at less of the old tree, so it may hand back more blocks that the old tree has, never fewer.
        assert remembered.root == edited.root, "the cache misleads"
        assert {block.id for block in remembered.blocks} >= {block.id for block in edited.blocks}
        assert shown(trees.read(root)) == shown(value)
        assert trees.edit(before, trees.diff(before, root)).root.id == root, "the diff does not lead to the new tree"
        assert trees.edit(root, trees.diff(root, before)).root.id == before, "the diff does not lead back"


@pytest.mark.parametrize("part", range(16))
def test_editing_gives_the_root_that_building_gives(part: int) -> None:
    for seed in range(part * 6, part * 6 + 6):
        check_edit_history(seed, steps=6)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(64))
def test_editing_gives_the_root_that_building_gives_at_length(part: int) -> None:
    for seed in range(1_000_000 + part * 200, 1_000_000 + part * 200 + 200):
        check_edit_history(seed, steps=12)


@given(values())
def test_any_value_comes_back_exactly(value: Any) -> None:
    blocks = MemoryBlocks()
    made = blocks.trees.build(value)
    assert shown(blocks.trees.read(blocks.save(made))) == shown(value)
    assert made.root.size >= sum(len(block.data) for block in made.blocks)


@given(values(tags=False), values(tags=False))
@settings(max_examples=200)
def test_different_values_have_different_roots(one: Any, other: Any) -> None:
    trees = MemoryBlocks().trees
    assert (trees.build(one).root.id == trees.build(other).root.id) == (shown(one) == shown(other))


def test_roots_do_not_depend_on_hash_seed_or_key_order() -> None:
    program = (
        "import sys, json, random\n"
        "from analemma.testing.strategies import SeededValues\n"
        "from analemma.canon.standard_types import standard_registry\n"
        "from analemma.canon.editing import build\n"
        "order = random.Random(sys.argv[1])\n"
        "def shuffled(value):\n"
        "    if type(value) is dict:\n"
        "        keys = list(value); order.shuffle(keys)\n"
        "        return {key: shuffled(value[key]) for key in keys}\n"
        "    return [shuffled(item) for item in value] if type(value) is list else value\n"
        "values = [SeededValues(seed).container() for seed in range(60)]\n"
        "values.append({'set': {'a', 'b', 'c', 'dd', 'ee'}, 'frozen': frozenset(map(str, range(500)))})\n"
        "print(json.dumps([build(shuffled(value), standard_registry()).root.id.hex() for value in values]))\n"
    )
    answers = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", program, seed],
                env={**os.environ, "PYTHONHASHSEED": seed},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for seed in ("0", "1", "4242")
    ]
    assert answers[0] == answers[1] == answers[2]


def test_alignment_leaves_only_what_differs() -> None:
    for seed in range(3000):
        seeded = SeededValues(seed)
        pick = seeded.random
        old = [pick.randrange(pick.choice([2, 5, 50])) for _ in range(pick.randrange(30))]
        new = copy.copy(old)
        for _ in range(pick.randrange(6)):
            if new and pick.random() < 0.5:
                del new[pick.randrange(len(new))]
            else:
                new.insert(pick.randrange(len(new) + 1), pick.randrange(5))
        at_old = at_new = 0
        for gap in align(old, new):
            assert old[at_old : gap.old_start] == new[at_new : gap.new_start]
            at_old, at_new = gap.old_stop, gap.new_stop
        assert old[at_old:] == new[at_new:]
