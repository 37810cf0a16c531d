"""What the program holds and a bag contains is compared with what was saved last, however it was saved."""

from __future__ import annotations

import dataclasses
import gc
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from analemma import App, SmartStateBag
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def newest(app: App) -> dict[str, Any]:
    state: dict[str, Any] = app.kernel.load_latest_state(**NAME)
    return state


def into_a_list(bag: Any) -> None:
    bag["list"].append(bag.pop("map"))


def into_another_dict(bag: Any) -> None:
    bag["other"] = {"moved": bag.pop("map")}


def most_of_its_list_replaced(bag: Any) -> None:
    bag["around"][1:] = range(100, 140)


MOVES: dict[str, Callable[[Any], None]] = {
    "its dict went into a list": into_a_list,
    "its dict went into another dict": into_another_dict,
    "most of its list was replaced": most_of_its_list_replaced,
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("undo", ["set back", "reset"])
def test_what_was_written_with_its_container_is_compared_with_that(
    move: Callable[[Any], None], undo: str, app: App
) -> None:
    held = {"v": 0}
    removed: list[Any] = [1]
    bag = SmartStateBag({"list": [1], "around": [held, *range(20), removed]})
    bag["map"] = {"held": held}
    app.kernel.save(bag, **NAME)
    held["v"] = 1
    removed.append(object())  # In the way only where it still is.
    bag["around"].pop()
    move(bag)
    app.kernel.save(bag)
    if undo == "reset":
        held["v"] = 2
        bag.reset()
        assert bag == newest(app) and bag["around"][0] == {"v": 1}
        return
    held["v"] = 0
    assert bag.is_changed
    app.kernel.save(bag)
    assert bag == newest(app) and newest(app)["around"][0] == {"v": 0}


def test_looking_at_a_value_with_a_class_that_has_fewer_fields_loses_none(store: Store) -> None:
    """As two versions of a program that work on one store do for a while."""
    newer, older = [
        dataclasses.make_dataclass("Plan", fields, namespace={"__module__": "shop"})
        for fields in ([("n", int), ("notes", list[int])], [("n", int)])
    ]
    with store.open() as app:
        app.kernel.save_state_delta({"plan": newer(1, [2]), "all": [newer(3, [4]), newer(5, [6])], "n": 1}, **NAME)
    with store.open() as app:
        app.types.register(older)
        bag = app.kernel.load_latest_state(**NAME, lazy=True)
        assert (bag["plan"], bag["all"]) == (older(1), [older(3), older(5)])
        assert not bag.is_changed
        bag["n"] = 2
        bag["all"][1].n = 7
        app.kernel.save(bag)
        assert not bag.is_changed
        bag["plan"].n = 8
        app.kernel.save(bag)
        bag["n"] = 3
        app.kernel.save(bag)
        assert newest(app) == {"plan": older(8), "all": [older(3), older(7)], "n": 3}
        first = app.kernel.history(**NAME)[2].manifest_id
    with store.open() as app:
        app.types.register(newer)
        assert app.kernel.load_fields(first, ["n", "plan", "/all/0"]) == {
            "n": 2,
            "plan": newer(1, [2]),
            "/all/0": newer(3, [4]),
        }


def test_a_large_list_lets_go_of_what_nobody_holds_any_more(app: App) -> None:
    app.kernel.save_state_delta({"log": [{"n": number} for number in range(3_000)]}, **NAME)
    bag = app.kernel.load_latest_state(lazy=True, **NAME)
    item = {"id": uuid.uuid4()}
    expected, kept = {"id": uuid.UUID(int=item["id"].int)}, weakref.ref(item["id"])
    bag["log"].append(item)
    app.kernel.save(bag)
    assert bag["log"][-1] is item
    del item
    app.kernel.save(bag)
    gc.collect()
    assert kept() is None
    assert bag["log"][-1] == newest(app)["log"][-1] == expected
