"""Rebasing a bag in which one container stands at several places: the store knows no such thing, so what others did to
one of the places must not show at the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from analemma import App, SmartStateBag
from analemma.errors import Conflict
from tests.api.bag.saved_whole import root_of
from tests.depth import some

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def saved_with(app: App, state: dict[str, Any], share: Callable[[Any], None]) -> SmartStateBag:
    app.kernel.save_state_delta(state, **NAME)
    bag = app.kernel.load_latest_state(lazy=True, **NAME)
    share(bag)
    app.kernel.save(bag)
    return bag


def alias(bag: Any) -> None:
    bag["copy"] = bag["plan"]


def twice(bag: Any) -> None:
    bag["plan"].append(bag["plan"][0])


def both_fields_of_mine(bag: Any) -> None:
    bag["plan"] = bag["copy"] = {"x": 1, "in": {"y": [1]}}


SHARED: dict[str, tuple[dict[str, Any], Callable[[Any], None], dict[str, Any]]] = {
    "a dict in two fields": ({"plan": {"x": 1, "y": 2}}, alias, {"/plan/x": 99}),
    "something deep in it": ({"plan": {"in": {"x": [1, {"y": 2}]}}}, alias, {"/copy/in/x/1/y": 99}),
    "an item that is in a list twice": ({"plan": [{"x": 1}, {"x": 2}]}, twice, {"/plan/0/x": 99}),
    "a list in two fields": ({"plan": [1, 2]}, alias, {"/plan/0": 99}),
    "a list of which both are emptied": ({"plan": [1]}, alias, {"plan": [], "copy": []}),
    "one field in place of it": ({"plan": [1, {"x": 1}]}, alias, {"copy": {"1": 5}}),
    "something that the program put in": ({}, both_fields_of_mine, {"/plan/in/y/0": 99, "/copy/x": 98}),
}


@pytest.mark.parametrize("kind", SHARED)
def test_a_bag_with_one_container_at_two_places_shows_what_was_committed(kind: str, app: App) -> None:
    state, share, theirs = SHARED[kind]
    bag = saved_with(app, state, share)
    app.kernel.save_state_delta(theirs, **NAME)
    bag["mine"] = 1
    commit = app.kernel.save(bag, rebase=True)
    newest = app.kernel.load_latest_state(**NAME)
    assert bag == newest and newest["mine"] == 1
    assert commit.root_hash == root_of(app, newest)
    # Nothing is left to be saved, and what is changed from now on is seen.
    assert app.kernel.save(bag).root_hash == commit.root_hash
    bag["plan"] = [bag["plan"]]
    app.kernel.save(bag)
    assert bag == app.kernel.load_latest_state(**NAME)


def test_a_list_whose_items_part_ways_stays_the_same_list(app: App) -> None:
    bag = saved_with(app, {"plan": [{"x": 1}, {"x": 2}]}, twice)
    plan = bag["plan"]
    app.kernel.save_state_delta({"/plan/0/x": 99}, **NAME)
    bag["mine"] = 1
    app.kernel.save(bag, rebase=True)
    assert plan is bag["plan"]
    plan.append("seen")
    app.kernel.save(bag)
    assert app.kernel.load_latest_state(**NAME)["plan"] == [{"x": 99}, {"x": 2}, {"x": 1}, "seen"]


@pytest.mark.parametrize("part", some(range(4), test=[0]))
def test_random_sharing_and_random_changes_of_others_end_as_committed(app: App, part: int) -> None:
    rebased = 0
    for seed in range(part * 10, part * 10 + 10):
        pick = random.Random(seed)
        name: dict[str, Any] = {"workflow_id": f"program {seed}", "owner_id": "ann"}
        app.kernel.save_state_delta({field: random_value(pick) for field in "abc"}, **name)
        bag = app.kernel.load_latest_state(lazy=True, **name)
        for _ in range(4):
            for _ in range(pick.randrange(1, 4)):
                change(bag, pick, share=True)
            theirs = app.kernel.load_latest_state(**name)
            for _ in range(pick.randrange(0, 3)):
                change(theirs, pick, share=False)
            app.kernel.save_state_delta(theirs, **name)
            mine = bag.to_dict()
            try:
                commit = app.kernel.save(bag, rebase=True)
            except Conflict:
                assert bag == mine
                bag = app.kernel.load_latest_state(lazy=True, **name)
                continue
            rebased += 1
            newest = app.kernel.load_latest_state(**name)
            assert bag == newest, seed
            assert commit.root_hash == root_of(app, newest), seed
            assert app.kernel.save(bag).root_hash == commit.root_hash, seed
    assert rebased >= 10


def random_value(pick: random.Random, depth: int = 0) -> Any:
    kind = pick.random()
    if depth > 2 or kind < 0.3:
        return pick.randrange(5)
    if kind < 0.65:
        return {pick.choice("xyz"): random_value(pick, depth + 1) for _ in range(pick.randrange(1, 4))}
    return [random_value(pick, depth + 1) for _ in range(pick.randrange(4))]


def containers(value: Any) -> list[Any]:
    if not isinstance(value, dict | list):
        return []
    inside = value.values() if isinstance(value, dict) else value
    return [value, *[found for item in list(inside) for found in containers(item)]]


def change(state: Any, pick: random.Random, *, share: bool) -> None:
    """One change somewhere in a state, perhaps to something that stands elsewhere in it already."""
    found = containers(state)
    target = pick.choice(found)
    value = pick.choice(found[1:]) if share and found[1:] and pick.random() < 0.6 else random_value(pick, 1)
    if any(inner is target for inner in containers(value)):
        value = 7
    if isinstance(target, dict):
        if target is not state and target and pick.random() < 0.25:
            del target[pick.choice(sorted(target))]
        else:
            target[pick.choice("xyzabc")] = value
    elif target and pick.random() < 0.5:
        target[pick.randrange(len(target))] = value
    elif target and pick.random() < 0.5:
        del target[pick.randrange(len(target))]
    else:
        target.insert(pick.randrange(len(target) + 1), value)
