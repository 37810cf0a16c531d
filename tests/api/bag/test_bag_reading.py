"""A bag reads when it is asked, no more than it is asked for, and never shows anything but the truth."""

from __future__ import annotations

import copy
import json
import operator
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from analemma import SmartStateBag
from analemma.errors import Corrupt, Expired, NotFound
from tests.api.bag.read_counts import IN_OBJECTS, Reads, counted
from tests.raw_rows import change
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
COUNT = 900
WORDS = [random.Random(number).randbytes(4).hex() for number in range(400)]

STATE: dict[str, Any] = {
    "n": 1,
    "messages": [{"role": "user", "text": " ".join(random.Random(n).choices(WORDS, k=20))} for n in range(COUNT)],
    "plan": {"steps": [{"done": False, "notes": ["x" * 100] * 3} for _ in range(30)]},
    "index": {f"key {n}": {"at": n, "words": random.Random(n).choices(WORDS, k=5)} for n in range(COUNT)},
    "text": "long " * 5000,
    "empty": {"list": [], "map": {}},
    "numbers": [1, 2],
}


@pytest.fixture(scope="module")
def saved(module_store: Store) -> Store:
    """A store that holds the state; it is large, and nobody changes it."""
    with module_store.open(**IN_OBJECTS) as app:
        app.kernel.save_state_delta(STATE, **NAME)
    return module_store


@pytest.fixture
def reads(saved: Store) -> Iterator[Reads]:
    with counted(saved) as reads:
        yield reads


def loaded(reads: Reads) -> SmartStateBag:
    bag = reads.app.kernel.load_latest_state(lazy=True, **NAME)
    reads.since()
    return bag


def test_nothing_is_read_before_something_is_asked_for(reads: Reads) -> None:
    bag = loaded(reads)
    assert len(bag) == len(STATE)
    assert reads.since() == (0, 0)
    assert bag["n"] == 1
    assert reads.since()[0] == 1


def test_keys_and_membership_read_no_values(reads: Reads) -> None:
    bag = loaded(reads)
    assert list(bag) == list(bag.keys()) == sorted(STATE, key=lambda key: (len(key), key))
    assert "messages" in bag and "missing" not in bag
    assert reads.since()[0] == 1
    assert len(bag["messages"]) == len(bag["index"]) == COUNT
    assert reads.since() == (0, 0)


def test_one_item_or_field_of_a_large_container_reads_little_of_it(reads: Reads) -> None:
    bag = loaded(reads)
    assert bag["messages"][COUNT // 2] == STATE["messages"][COUNT // 2]
    assert bag["messages"][-1]["text"] == STATE["messages"][-1]["text"]
    assert bag["index"]["key 77"]["at"] == 77
    assert "key 78" in bag["index"] and "no key" not in bag["index"]
    few = reads.since()[1]
    bag.load()
    assert few < reads.since()[1] / 5


def test_iterating_a_list_reads_it_level_by_level(reads: Reads) -> None:
    bag = loaded(reads)
    messages = bag["messages"]
    reads.since()
    assert [message["role"] for message in messages] == ["user"] * COUNT
    assert reads.since()[0] <= 3


EVERYTHING: list[Callable[[Any], Any]] = [
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
]


@pytest.mark.parametrize("half", [0, 1])
def test_every_way_to_everything_has_the_lazy_fields(reads: Reads, half: int) -> None:
    wrong: list[int] = []
    for number in range(half, len(EVERYTHING), 2):
        bag = loaded(reads)
        if EVERYTHING[number](bag) != STATE or bag.is_changed:
            wrong.append(number)
    assert wrong == []


def test_bags_equal_dicts_and_each_other(reads: Reads) -> None:
    bag = loaded(reads)
    assert bag == STATE and operator.eq(STATE, loaded(reads))
    assert loaded(reads) == loaded(reads)
    assert not bag.is_changed


def test_comparing_tells_apart(reads: Reads) -> None:
    bag = loaded(reads)
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


def test_parts_can_be_serialised_alone(reads: Reads) -> None:
    bag = loaded(reads)
    assert json.loads(json.dumps(bag["messages"])) == STATE["messages"]
    assert json.loads(json.dumps(bag["index"])) == STATE["index"]
    assert pickle.loads(pickle.dumps(loaded(reads)["messages"])) == STATE["messages"]
    assert type(pickle.loads(pickle.dumps(bag))) is type(copy.copy(bag)) is type(copy.deepcopy(bag)) is dict
    assert type(copy.deepcopy(bag)["messages"]) is list
    assert " ".join(item["role"] for item in loaded(reads)["messages"][:2]) == "user user"


def test_what_is_contained_twice_is_so_in_copies_and_pickles() -> None:
    bag = SmartStateBag(a=[1])
    bag["b"] = bag["a"]
    for twin in (copy.deepcopy(bag), pickle.loads(pickle.dumps(bag))):
        twin["a"].append(2)
        assert twin == {"a": [1, 2], "b": [1, 2]}


def test_code_that_reads_past_the_methods_fails_loudly(reads: Reads) -> None:
    bag = loaded(reads)
    for part in (bag, bag["messages"], bag["index"], bag["plan"]):
        with pytest.raises(TypeError):
            orjson.dumps(part)
        with pytest.raises(TypeError):
            orjson.dumps(part, default=str)
        with pytest.raises(TypeError):
            orjson.dumps(part, default=repr, option=orjson.OPT_NON_STR_KEYS)


def test_what_stands_for_something_that_was_not_read_can_be_nothing_else(reads: Reads) -> None:
    bag, messages = loaded(reads), loaded(reads)["messages"]
    stored = [*dict.__iter__(bag), *dict.values(bag), *list.__iter__(messages)]
    placeholders = [each for each in stored if type(each).__module__.startswith("analemma")]
    assert len(placeholders) >= 2
    for placeholder in placeholders[:20]:
        for use in (str, repr, bool, len, list, pickle.dumps, copy.copy, copy.deepcopy, lambda it: it == it):
            with pytest.raises(TypeError):
                use(placeholder)


def test_the_same_object_is_handed_out_every_time(reads: Reads) -> None:
    bag = loaded(reads)
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
    with store.open(cache_bytes=0) as app, store.open() as other:
        kernel = app.kernel
        kernel.save_state_delta(STATE, **NAME)
        bag = kernel.load_latest_state(lazy=True, **NAME)
        assert bag["n"] == 1
        messages = bag["messages"]
        kernel.save_state_delta({"messages": [], "n": 2}, **NAME)
        kernel.set_retention(keep_last=1, **NAME)
        assert len(kernel.expire(**NAME).expired) == 1
        for _ in range(2):
            other.gc.run(grace_s=0, force=True)
        with pytest.raises(Expired):
            kernel.load_state(bag.manifest_id or "", lazy=True)
        # What was read is still there; what was not is gone, and says which version it was of.
        assert bag["n"] == 1
        with pytest.raises(Expired, match="has expired"):
            messages[0]


def test_a_damaged_block_is_corrupt_and_nothing_else(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"list": [{"n": n, "text": "x" * 90} for n in range(500)]}, **NAME)
    with store.open() as app:
        bag = app.kernel.load_latest_state(lazy=True, **NAME)
        list(bag)
        assert change(store, "UPDATE block SET body = ?", [b"damaged"]) > 3
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
