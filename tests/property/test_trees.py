"""Trees do not remember how they came about: any way of editing gives the root that building afresh gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings

import analemma
from analemma import DeltaUpdate, Operation
from analemma.testing.strategies import SeededValues, shown, values
from tests.core.canon.memory_blocks import MemoryBlocks
from tests.core.entry_points.canon import Trees, standard_registry
from tests.depth import count


def check_edit_history(seed: int, steps: int) -> None:
    """One random value through random batches of edits, each compared with building afresh, diffed and undone."""
    seeded = SeededValues(seed)
    blocks = MemoryBlocks()
    trees = Trees(blocks.fetch, standard_registry())
    value = seeded.container()
    root = blocks.build(value)
    assert shown(trees.read(root)) == shown(value)
    for _ in range(steps):
        before = root
        operations = seeded.edits(value, seeded.random.choice([1, 1, 2, 5, 20, 60]))
        edited = trees.edit(root, operations)
        root = blocks.save(edited)
        assert edited.root == trees.build(value).root, "editing and building disagree"
        assert shown(trees.read(root)) == shown(value)
        assert trees.edit(before, trees.diff(before, root)).root.id == root, "the diff does not lead to the new tree"
        assert trees.edit(root, trees.diff(root, before)).root.id == before, "the diff does not lead back"


@pytest.mark.parametrize("part", range(count(test=4, deep=16)))
def test_editing_gives_the_root_that_building_gives(part: int) -> None:
    for seed in range(part * 6, part * 6 + 6):
        check_edit_history(seed, steps=count(test=2, deep=6))


def check_saved_history(app: analemma.App, seed: int, steps: int) -> None:
    """The same by a program that goes on saving: it remembers nodes of the versions before, of several workflows."""
    seeded = SeededValues(seed)
    place: dict[str, Any] = {"workflow_id": f"edited {seed}", "owner_id": "ann"}
    state: dict[str, Any] = {"value": seeded.container()}
    app.kernel.save_state_delta(state, **place)
    for step in range(steps):
        operations = seeded.edits(state["value"], seeded.random.choice([1, 1, 2, 5, 20, 60]))
        update = DeltaUpdate(tuple(Operation(each.op, ("value", *each.path), each.value) for each in operations))
        saved = app.kernel.save_state_delta(update, **place)
        whole = app.kernel.save_state_delta(state, workflow_id=f"whole {seed} {step}", owner_id="ann")
        assert saved.root_hash == whole.root_hash, f"seed {seed}, step {step}"


def test_saving_edits_gives_the_root_that_saving_the_whole_gives() -> None:
    with analemma.open("sqlite:///:memory:") as app:
        for seed in range(count(test=10, deep=80)):
            check_saved_history(app, seed, steps=count(test=2, deep=4))
        assert all(app.kernel.verify(workflow_id=f"edited {seed}", owner_id="ann").ok for seed in range(10))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(64))
def test_editing_gives_the_root_that_building_gives_at_length(part: int) -> None:
    for seed in range(1_000_000 + part * 200, 1_000_000 + part * 200 + 200):
        check_edit_history(seed, steps=12)


@given(values())
@settings(max_examples=count(test=40, deep=100))
def test_any_value_comes_back_exactly(value: Any) -> None:
    blocks = MemoryBlocks()
    made = blocks.made(value)
    assert shown(blocks.read(blocks.save(made))) == shown(value)
    assert made.root.size >= sum(len(block.data) for block in made.blocks)


@given(values(tags=False), values(tags=False))
@settings(max_examples=count(test=60, deep=200))
def test_different_values_have_different_roots(one: Any, other: Any) -> None:
    trees = Trees(MemoryBlocks().fetch, standard_registry())
    assert (trees.build(one).root.id == trees.build(other).root.id) == (shown(one) == shown(other))


def test_roots_do_not_depend_on_hash_seed_or_key_order() -> None:
    program = (
        "import sys, json, random\n"
        "from analemma.testing.strategies import SeededValues\n"
        "from tests.core.canon.memory_blocks import MemoryBlocks\n"
        "order = random.Random(sys.argv[1])\n"
        "def shuffled(value):\n"
        "    if type(value) is dict:\n"
        "        keys = list(value); order.shuffle(keys)\n"
        "        return {key: shuffled(value[key]) for key in keys}\n"
        "    return [shuffled(item) for item in value] if type(value) is list else value\n"
        "values = [SeededValues(seed).container() for seed in range(int(sys.argv[2]))]\n"
        "values.append({'set': {'a', 'b', 'c', 'dd', 'ee'}, 'frozen': frozenset(map(str, range(500)))})\n"
        "print(json.dumps([MemoryBlocks().build(shuffled(value)).hex() for value in values]))\n"
    )
    answers = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", program, seed, str(count(test=10, deep=60))],
                env={**os.environ, "PYTHONHASHSEED": seed},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for seed in ["0", "4242", "1"][: count(test=2, deep=3)]
    ]
    assert all(answer == answers[0] for answer in answers)


def test_the_difference_of_two_lists_leads_from_one_to_the_other() -> None:
    blocks = MemoryBlocks()
    for seed in range(count(test=400, deep=3000)):
        pick = SeededValues(seed).random
        old = [pick.randrange(pick.choice([2, 5, 50])) for _ in range(pick.randrange(30))]
        new = list(old)
        for _ in range(pick.randrange(6)):
            if new and pick.random() < 0.5:
                del new[pick.randrange(len(new))]
            else:
                new.insert(pick.randrange(len(new) + 1), pick.randrange(5))
        roots = blocks.build(old), blocks.build(new)
        assert blocks.edit(roots[0], blocks.diff(*roots)) == roots[1], (old, new)


def staircase(steps: int) -> tuple[list[str], list[str]]:
    """Two lists in which every look finds one more item that occurs once on both sides."""
    shared = ["u"] + [name for number in range(steps) for name in (f"e{number + 1}", f"e{number}")]
    old = ["p", "p"] + [piece for name in shared for piece in (name, "S")]
    new = ["q", "q"] + [piece for name in shared for piece in (name, "T", "T")]
    return old, new


def test_lists_that_are_hard_to_align_are_compared_all_the_same() -> None:
    """Without a limit to the looks this takes the square of the time: half a minute instead of a second."""
    blocks = MemoryBlocks()
    old, new = staircase(count(test=300, deep=4000))
    roots = blocks.build(old), blocks.build(new)
    assert blocks.edit(roots[0], blocks.diff(*roots)) == roots[1]
