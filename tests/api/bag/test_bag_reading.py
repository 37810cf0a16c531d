"""A bag reads when it is asked, no more than it is asked for, and never shows anything but the truth."""

from __future__ import annotations

import copy
import json
import operator
import pickle
import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from analemma import App, BlockId, SmartStateBag
from analemma.bag.placeholders import NotLoaded
from analemma.canon.identity import parse_block_id
from analemma.canon.nodes import block_links
from analemma.errors import Corrupt, Expired, NotFound
from tests.api.state.raw_access import Rows
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
WORDS = [random.Random(number).randbytes(4).hex() for number in range(400)]

STATE: dict[str, Any] = {
    "n": 1,
    "messages": [{"role": "user", "text": " ".join(random.Random(n).choices(WORDS, k=20))} for n in range(3000)],
    "plan": {"steps": [{"done": False, "notes": ["x" * 100] * 3} for _ in range(30)]},
    "index": {f"key {n}": {"at": n, "words": random.Random(n).choices(WORDS, k=5)} for n in range(3000)},
    "text": "long " * 5000,
    "empty": {"list": [], "map": {}},
    "numbers": [1, 2],
}


class Counted:
    """A store that was opened afresh, with the blocks counted that it reads."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.fetches: list[int] = []
        self._fetch = app.default.trees.fetch
        object.__setattr__(app.default.trees, "fetch", self._counted)

    def _counted(self, blocks: Any) -> Any:
        self.fetches.append(len(blocks))
        return self._fetch(blocks)

    def bag(self) -> SmartStateBag:
        return self.app.kernel.load_latest_state(lazy=True, **NAME)

    def blocks(self) -> int:
        """Blocks read since the last call."""
        total = sum(self.fetches)
        self.fetches.clear()
        return total


@pytest.fixture(scope="module")
def saved(module_store: Store) -> Store:
    """A store that holds the state; it is large, and nobody changes it."""
    with module_store.open() as app:
        app.kernel.save_state_delta(STATE, **NAME)
    return module_store


@pytest.fixture
def counted(saved: Store) -> Iterator[Counted]:
    with saved.open() as app:
        yield Counted(app)


def test_nothing_is_read_before_something_is_asked_for(counted: Counted) -> None:
    bag = counted.bag()
    assert counted.blocks() == 0
    assert len(bag) == len(STATE)
    assert counted.blocks() == 0
    assert bag["n"] == 1
    assert counted.blocks() == 1


def test_keys_and_membership_read_no_values(counted: Counted) -> None:
    bag = counted.bag()
    assert list(bag) == list(bag.keys()) == sorted(STATE, key=lambda key: (len(key), key))
    assert "messages" in bag and "missing" not in bag
    assert counted.blocks() == 1
    assert len(bag["messages"]) == len(bag["index"]) == 3000
    assert counted.blocks() == 0


def test_one_item_or_field_of_a_large_container_reads_one_block_per_level(counted: Counted) -> None:
    bag = counted.bag()
    assert bag["messages"][1234] == STATE["messages"][1234]
    assert bag["messages"][-1]["text"] == STATE["messages"][-1]["text"]
    assert bag["index"]["key 77"]["at"] == 77
    assert "key 78" in bag["index"] and "no key" not in bag["index"]
    assert counted.blocks() <= 14
    assert bag["messages"]._shell is not None and bag["index"]._shell is not None


def test_iterating_a_list_reads_it_in_one_fetch_per_level(counted: Counted) -> None:
    bag = counted.bag()
    messages = bag["messages"]
    counted.fetches.clear()
    assert [message["role"] for message in messages] == ["user"] * 3000
    assert len(counted.fetches) <= 3


@pytest.mark.parametrize(
    "everything",
    [
        lambda bag: dict(bag),
        lambda bag: {**bag},
        lambda bag: bag.to_dict(),
        lambda bag: dict(bag.items()),
        lambda bag: dict(zip(bag.keys(), bag.values(), strict=True)),
        lambda bag: json.loads(json.dumps(bag)),
        lambda bag: json.loads(json.dumps({"inside": [bag]}))["inside"][0],
        lambda bag: json.loads("".join(json.JSONEncoder().iterencode(bag))),
        lambda bag: orjson.loads(orjson.dumps(bag.load())),
        lambda bag: pickle.loads(pickle.dumps(bag)),
        lambda bag: copy.copy(bag),
        lambda bag: copy.deepcopy(bag),
        lambda bag: bag.copy(),
        lambda bag: bag | {},
        lambda bag: {} | bag,
        lambda bag: eval(repr(bag)),  # noqa: S307
        lambda bag: (lambda **fields: fields)(**bag),
        lambda bag: {key: bag[key] for key in bag},
    ],
    ids=range(18),
)
def test_every_way_to_everything_has_the_lazy_fields(counted: Counted, everything: Any) -> None:
    bag = counted.bag()
    assert everything(bag) == STATE
    assert not bag.is_changed


def test_bags_equal_dicts_and_each_other(counted: Counted) -> None:
    bag = counted.bag()
    assert bag == STATE and operator.eq(STATE, counted.bag())
    assert counted.bag() == counted.bag()
    assert not bag.is_changed


def test_comparing_tells_apart(counted: Counted) -> None:
    bag = counted.bag()
    assert bag != {**STATE, "n": 2} and bag != {} and bag != 5 and bag != {**STATE, "text": "other"}
    assert bag["messages"] != STATE["messages"][:-1]
    assert bag["index"] == STATE["index"] and STATE["index"] == bag["index"]
    numbers = bag["numbers"]
    assert numbers < [1, 3] and numbers > [1, 1] and numbers >= [1, 2] and numbers <= [1, 2]
    assert operator.gt([1, 3], numbers) and not numbers < list(numbers)
    with pytest.raises(TypeError):
        assert numbers < 5
    with pytest.raises(TypeError):
        hash(bag)


def test_parts_can_be_serialised_alone(counted: Counted) -> None:
    bag = counted.bag()
    assert json.loads(json.dumps(bag["messages"])) == STATE["messages"]
    assert json.loads(json.dumps(bag["index"])) == STATE["index"]
    assert pickle.loads(pickle.dumps(counted.bag()["messages"])) == STATE["messages"]
    assert type(pickle.loads(pickle.dumps(bag))) is type(copy.copy(bag)) is type(copy.deepcopy(bag)) is dict
    assert type(copy.deepcopy(bag)["messages"]) is list
    assert " ".join(item["role"] for item in counted.bag()["messages"][:2]) == "user user"


def test_what_is_contained_twice_is_so_in_copies_and_pickles() -> None:
    bag = SmartStateBag(a=[1])
    bag["b"] = bag["a"]
    for twin in (copy.deepcopy(bag), pickle.loads(pickle.dumps(bag))):
        twin["a"].append(2)
        assert twin == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize("path", [(), ("messages",), ("index",), ("plan",)], ids=str)
def test_code_that_reads_past_the_methods_fails_loudly(counted: Counted, path: tuple[str, ...]) -> None:
    part: Any = counted.bag()
    for key in path:
        part = part[key]
    with pytest.raises(TypeError):
        orjson.dumps(part)
    with pytest.raises(TypeError):
        orjson.dumps(part, default=str)
    with pytest.raises(TypeError):
        orjson.dumps(part, default=repr, option=orjson.OPT_NON_STR_KEYS)


def test_a_placeholder_can_be_nothing_else() -> None:
    placeholder = NotLoaded([1])
    for use in (str, repr, bool, len, list, pickle.dumps, copy.copy, copy.deepcopy, lambda it: it == it):
        with pytest.raises(TypeError):
            use(placeholder)


def test_the_same_object_is_handed_out_every_time(counted: Counted) -> None:
    bag = counted.bag()
    assert bag["messages"] is bag["messages"] and bag["messages"][5] is bag["messages"][5]
    assert bag["index"]["key 1"] is bag["index"].get("key 1")
    item = bag["messages"][7]
    list(bag["messages"])
    assert bag["messages"][7] is item and bag["messages"][6:8][1] is item
    field = bag["index"]["key 9"]
    list(bag["index"])
    assert bag["index"]["key 9"] is field
    bag.load()
    assert bag["messages"][7] is item and bag["index"]["key 9"] is field


def test_a_version_that_expired_says_so(store: Store) -> None:
    with store.open() as app:
        kernel = app.kernel
        kernel.save_state_delta(STATE, **NAME)
        bag = kernel.load_latest_state(lazy=True, **NAME)
        kernel.save_state_delta({"messages": [], "n": 2}, **NAME)
        kernel.set_retention(keep_last=1, **NAME)
        assert len(kernel.expire(**NAME).expired) == 1
        messages = bag["messages"]
        reachable = reachable_blocks(app)
    with Rows(store) as rows:
        for number in rows.numbers("block"):
            if bytes(rows.get("block", number, "id")) not in reachable:
                rows.delete("block", number)
    with store.open() as app, pytest.raises(Expired):
        app.kernel._bag(parse_block_id(bag.manifest_id or ""))
    with store.open() as app:
        # What was read is still there; what was not is gone, and says which version it was of.
        assert bag["n"] == 1
        messages._base.store = app.kernel._bag_store
        app.kernel._bag_store.parts.trees.fetch([])
        with pytest.raises(Expired, match="has expired"):
            messages[0]


def test_a_damaged_block_is_corrupt_and_nothing_else(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"list": [{"n": n, "text": "x" * 90} for n in range(500)]}, **NAME)
    with store.open() as app, Rows(store) as rows:
        bag = app.kernel.load_latest_state(lazy=True, **NAME)
        list(bag)
        for number in rows.numbers("block"):
            rows.set("block", number, "body", b"damaged")
        with pytest.raises(Corrupt):
            bag["list"][3]
        with pytest.raises(Corrupt):
            json.dumps(bag)


def test_there_is_no_bag_of_what_is_not_there(store: Store) -> None:
    with store.open() as app:
        with pytest.raises(NotFound):
            app.kernel.load_latest_state(lazy=True, **NAME)
        with pytest.raises(NotFound):
            app.kernel.load_state("0" * 64, lazy=True)
        first = app.kernel.save_state_delta({"n": 1}, execution_id="run 1", **NAME)
        app.kernel.save_state_delta({"n": 2}, **NAME)
        bag = app.kernel.load_latest_state(lazy=True, execution_id="run 1", **NAME)
        assert (bag.manifest_id, bag.version, bag["n"]) == (first.manifest_id, 1, 1)
        assert (bag.workflow_id, bag.owner_id, bag.branch) == ("report", "ann", "main")
        with pytest.raises(NotFound):
            app.kernel.load_latest_state(lazy=True, execution_id="run 2", **NAME)
        with pytest.raises(NotFound):
            app.kernel.load_state(first.manifest_id, owner_id="bob", lazy=True)


def reachable_blocks(app: App) -> set[bytes]:
    """Every block that a version which is still there needs."""
    found: set[BlockId] = set()
    blocks = [parse_block_id(row.manifest_id) for row in app.kernel.history(limit=1000, **NAME)]
    while blocks:
        block = blocks.pop()
        if block not in found:
            found.add(block)
            blocks += block_links(app.default.blocks.read_uncached([block])[block])
    return set(found)
