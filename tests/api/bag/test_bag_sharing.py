"""What a bag has in common with others: parts of old versions and other bags, and what programs hold that is in it."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import pytest

from analemma import App, SmartStateBag
from analemma.errors import Expired, Invalid
from tests.api.bag.saved_whole import root_of
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
WORDS = [random.Random(number).randbytes(4).hex() for number in range(400)]


def message(number: int) -> dict[str, Any]:
    return {"role": "user", "text": " ".join(random.Random(number).choices(WORDS, k=30))}


@pytest.fixture
def stored(store: Store) -> Iterator[App]:
    with store.open() as opened:
        yield opened


def bag_of(app: App, state: dict[str, Any] | None = None, **name: Any) -> SmartStateBag:
    if state is not None:
        app.kernel.save_state_delta(state, **(name or NAME))
    return app.kernel.load_latest_state(lazy=True, **(name or NAME))


def newest(app: App, **name: Any) -> dict[str, Any]:
    state: dict[str, Any] = app.kernel.load_latest_state(**(name or NAME))
    return state


# Parts of other versions and stores.


def test_a_part_of_an_old_version_is_moved_without_being_read(stored: App) -> None:
    old = bag_of(stored, {"big": [message(n) for n in range(2000)], "n": 1})
    stored.kernel.save_state_delta({"big": [], "n": 2}, **NAME)
    bag = bag_of(stored)
    bag["restored"] = old["big"]
    commit = stored.kernel.save(bag)
    assert commit.blocks_stored <= 2
    stored.kernel.set_retention(keep_last=1, **NAME)
    stored.kernel.expire(**NAME)
    assert newest(stored)["restored"] == [message(n) for n in range(2000)]
    assert stored.kernel.verify(**NAME).ok
    # It is a part of both bags: what is changed in it, both see, and each saves it for itself.
    old["big"].append("more")
    assert bag["restored"][-1] == "more" and bag.is_changed


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_a_part_of_a_version_that_expired_is_whole_or_expired_and_never_dangling(
    store: Store, swept: bool, changed: bool
) -> None:
    with store.open(cache_bytes=0) as app:
        old = bag_of(app, {"big": [message(n) for n in range(2000)], "n": 1})
        app.kernel.save_state_delta({"big": [], "n": 2}, **NAME)
        bag = bag_of(app)
        bag["restored"] = old["big"]
        if changed:
            old["big"].append("more")
        app.kernel.set_retention(keep_last=1, **NAME)
        assert len(app.kernel.expire(**NAME).expired) == 1
        if swept:
            with store.open() as other:
                for _ in range(2):
                    other.gc.run(grace_s=0, force=True)
            with pytest.raises(Expired):
                app.kernel.save(bag)
            assert bag["restored"] is old["big"] and newest(app) == {"big": [], "n": 2}
        else:
            # Nobody keeps its blocks any more, so they are written again.
            commit = app.kernel.save(bag)
            assert commit.blocks_reused > 10
            assert newest(app)["restored"] == [message(n) for n in range(2000)] + ["more"] * changed
    with store.open() as app:
        assert app.kernel.verify(**NAME).ok


def test_a_part_that_was_taken_out_stays_whole_while_its_version_is_there(stored: App) -> None:
    bag = bag_of(stored, {"big": [message(n) for n in range(2000)], "n": 1})
    big = bag.pop("big")
    stored.kernel.save(bag)
    big.append("more")
    bag["again"] = {"inside": big}
    commit = stored.kernel.save(bag)
    assert commit.blocks_stored < 10
    assert newest(stored)["again"]["inside"] == [*[message(n) for n in range(2000)], "more"]
    big.append("and more")
    stored.kernel.save(bag)
    assert newest(stored)["again"]["inside"][-2:] == ["more", "and more"] and stored.kernel.verify(**NAME).ok


def test_a_part_of_another_tenant_is_written_as_a_value(stored: App) -> None:
    shop = stored.tenant("shop")
    shop.kernel.save_state_delta({"big": [message(n) for n in range(500)], "small": {"a": [1]}}, **NAME)
    theirs = shop.kernel.load_latest_state(lazy=True, **NAME)
    bag = bag_of(stored, {"n": 1})
    bag["big"], bag["small"] = theirs["big"], theirs["small"]
    stored.kernel.save(bag)
    assert newest(stored)["big"] == [message(n) for n in range(500)] and newest(stored)["small"] == {"a": [1]}
    assert stored.kernel.verify(**NAME).ok
    with pytest.raises(Invalid, match="another store or tenant"):
        stored.kernel.save(theirs)


def test_two_bags_with_a_common_part_each_save_its_changes(stored: App) -> None:
    one = bag_of(stored, {"part": {"list": [1]}, "n": 1}, workflow_id="one", owner_id="ann")
    two = bag_of(stored, {"n": 2}, workflow_id="two", owner_id="ann")
    two["part"] = one["part"]
    for step in range(3):
        one["part"]["list"].append(step)
        stored.kernel.save(two)
        stored.kernel.save(one)
        for name in ("one", "two"):
            assert newest(stored, workflow_id=name, owner_id="ann")["part"]["list"][-1] == step
    assert not one.is_changed and not two.is_changed


# What is put in.


def test_what_somebody_holds_stays_the_same_object_and_is_watched(app: App) -> None:
    bag = bag_of(app, {"n": 1})
    inner: list[Any] = []
    mine = {"inner": inner, "own": [1]}
    bag["mine"] = mine
    bag["messages"] = [{"a": 1}]
    bag["messages"].append(inner)
    for step in range(4):
        inner.append(step)
        mine["own"].append(step)
        app.kernel.save(bag)
        assert bag["mine"] is mine and bag["messages"][1] is inner
        assert newest(app) == bag.to_dict() and newest(app)["messages"] == [{"a": 1}, list(range(step + 1))]
        assert not bag.is_changed
    del mine
    app.kernel.save(bag)
    assert bag["mine"]["inner"] is inner
    assert isinstance(bag["messages"], list) and type(bag["messages"]) is not list


def test_what_is_appended_to_a_large_list_and_still_held_is_watched(app: App) -> None:
    bag = bag_of(app, {"messages": [message(n) for n in range(2000)]})
    mine = {"a": [1]}
    wrapped = [2]
    bag["messages"].append(mine)
    bag["messages"].append({"inside": wrapped})
    bag["messages"].append({"nobody": ["holds this"]})
    app.kernel.save(bag)
    mine["a"].append(2)
    wrapped.append(3)
    bag["messages"].insert(0, "first")
    app.kernel.save(bag)
    assert newest(app)["messages"][2001:] == [{"a": [1, 2]}, {"inside": [2, 3]}, {"nobody": ["holds this"]}]
    assert bag["messages"][2001] is mine and bag["messages"][2003]["nobody"] == ["holds this"]


def test_values_that_change_by_themselves_are_compared(app: App) -> None:
    bag = bag_of(app, {"set": {1}, "pair": (1, [2]), "list": [{3}], "n": 1})
    assert not bag.is_changed
    held = bag["set"], bag["pair"], bag["list"][0]
    assert not bag.is_changed
    for step in range(10, 13):
        held[0].add(step)
        held[1][1].append(step)
        held[2].add(step)
        assert {operation.path for operation in bag.get_delta().operations} == {("set",), ("pair",), ("list", "0")}
        app.kernel.save(bag)
        assert newest(app) == bag.to_dict() and newest(app)["list"] == [held[2]] and not bag.is_changed
    held[0].add("x")
    bag.reset()
    assert bag["set"] == {1, 10, 11, 12} and not bag.is_changed


def test_a_container_that_contains_itself_is_refused(app: App) -> None:
    bag = bag_of(app, {"a": {"b": []}, "n": 1})
    bag["a"]["b"].append(bag["a"])
    for use in (app.kernel.save, SmartStateBag.get_delta):
        with pytest.raises(Invalid, match="contains itself") as refused:
            use(bag)
        assert refused.value.pointer == "/a/b/0"
    bag["a"]["b"].clear()
    plain: list[Any] = []
    plain.append(plain)
    bag["plain"] = plain
    with pytest.raises(Invalid, match="contains itself") as refused:
        app.kernel.save(bag)
    assert refused.value.pointer == "/plain/0"
    del bag["plain"]
    bag["n"] = 2
    app.kernel.save(bag)
    assert newest(app) == {"a": {"b": []}, "n": 2}


def test_what_cannot_be_stored_is_refused_with_its_place_and_can_be_taken_out(app: App) -> None:
    bag = bag_of(app, {"list": [{"a": 1}]})
    for version, wrong in enumerate([float("nan"), {1: 2}, object(), 2**70, "\ud800"], start=2):
        bag["list"][0]["bad"] = [wrong]
        with pytest.raises(Invalid) as refused:
            app.kernel.save(bag)
        assert refused.value.pointer.startswith("/list/0/bad/0"), wrong
        del bag["list"][0]["bad"]
        assert app.kernel.save(bag).version == version


def test_reset_forgets_changes_everywhere(app: App) -> None:
    state = {
        "a": {"b": [1, 2]},
        "big": [message(n) for n in range(800)],
        "map": {f"k{n}": {"v": n} for n in range(800)},
    }
    bag = bag_of(app, state)
    kept = bag["a"]["b"]
    kept.append(3)
    bag["big"][3]["role"] = "me"
    del bag["big"][0]
    bag["map"]["k3"]["v"] = bag["map"]["new"] = 5
    del bag["map"]["k4"]
    del bag["a"]
    bag["new"] = 1
    bag.reset()
    assert not bag.is_changed and bag == state and bag["a"]["b"] is kept and kept == [1, 2]
    kept.append(4)
    app.kernel.save(bag)
    assert newest(app)["a"] == {"b": [1, 2, 4]}
    made = SmartStateBag(n=1)
    made.reset()
    assert made == {}


def test_parts_of_a_bag_can_be_saved_by_other_verbs(app: App) -> None:
    bag = bag_of(app, {"big": [message(n) for n in range(800)], "small": {"a": [1]}})
    app.kernel.save_state_delta({"copy": bag["big"], "wrapped": (bag["small"], 1)}, workflow_id="other", owner_id="ann")
    assert newest(app, workflow_id="other", owner_id="ann") == {"copy": bag["big"], "wrapped": ({"a": [1]}, 1)}
    app.kernel.save_state_delta(bag, workflow_id="third", owner_id="ann")
    assert newest(app, workflow_id="third", owner_id="ann") == bag
    assert root_of(app, bag) == root_of(app, bag.to_dict())
    bag["pair"] = (bag["small"], bag)
    del bag["small"]
    with pytest.raises(Invalid):
        app.kernel.save(bag)
    bag["pair"] = (bag["pair"][0], 2)
    app.kernel.save(bag)
    bag["pair"][0]["a"].append(2)
    app.kernel.save(bag)
    assert newest(app)["pair"] == ({"a": [1, 2]}, 2)


def test_get_delta_is_a_copy_and_sums_up(app: App) -> None:
    bag = bag_of(app, {"a": {"x": 1}, "b": 2, "c": [1]})
    bag["a"]["y"] = {"z": [1]}
    del bag["b"]
    bag["c"].append(2)
    delta = bag.get_delta()
    assert (set(delta.changed_fields), delta.deleted_fields) == ({"a", "c"}, ("b",))
    bag["a"]["y"]["z"].append(2)
    assert [operation.value for operation in delta.operations if operation.path == ("a", "y")] == [{"z": [1]}]
    app.kernel.fork(bag.manifest_id or "", branch="idea", owner_id="ann")
    app.kernel.save_state_delta(delta, branch="idea", **NAME)
    assert newest(app, branch="idea", **NAME) == {"a": {"x": 1, "y": {"z": [1]}}, "c": [1, 2]}


def test_a_bag_leaves_no_cycles_behind(app: App) -> None:
    bag = bag_of(app, {"a": {"b": [{"c": 1}]}, "big": [message(n) for n in range(800)]})
    bag["a"]["b"][0]["c"] = 2
    bag["big"].append({"x": []})
    app.kernel.save(bag)
    bag.load()
    kinds = (SmartStateBag, type(bag["a"]), type(bag["big"]))
    gc.collect()
    gc.disable()
    try:
        del bag
        assert not [item for item in gc.get_objects() if isinstance(item, kinds)]
    finally:
        gc.enable()
