"""What the program holds and a bag contains is compared with what was saved last, however it was saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analemma.app import App
from analemma.bag.state_bag import SmartStateBag

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
