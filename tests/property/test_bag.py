"""Whatever a program does to a bag, it does to plain dicts and lists: both end equal, and saving them gives the same
tree."""

from __future__ import annotations

import copy
import heapq
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import analemma
from analemma import App, SmartStateBag
from analemma.testing.strategies import shown
from tests.depth import count, some
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
KEYS = ["", "a", "b", "big", "list", "map", "texts", "k1", "k77", "k1500", "new", "~/"]
FIRST: dict[str, Any] = {"workflow_id": "first", "owner_id": "ann"}
Pair = tuple[Any, Any]
counter = iter(range(10**9))


def first_state() -> dict[str, Any]:
    return {
        "a": {"b": {"list": [1, 2, 3], "map": {"a": 1}}, "set": {1, 2}, "pair": (1, [2])},
        "b": [{"n": number, "inner": [number, {"deep": "x" * 300}]} for number in range(8)],
        "big": [{"n": number, "text": f"{number} " * 12, "inner": {"list": [number]}} for number in range(700)],
        "list": [5, 3, 9, 1],
        "map": {f"k{number}": {"v": number, "inner": [f"{number}" * 9]} for number in range(900)},
        "texts": ["long " * 900, "short", b"bytes" * 700, 1.5, None, True, -0.0],
    }


def fresh_value(pick: random.Random, depth: int = 0) -> Any:
    kind = pick.randrange(10)
    if kind < 5 or depth > 2:
        return pick.choice([0, 1, True, 1.0, -0.0, None, "text", b"x", "long " * 700, {1, 2}, (1, [2])])
    size = pick.choice([0, 1, 3])
    if kind < 7:
        return [fresh_value(pick, depth + 1) for _ in range(size)]
    if kind == 7:
        return [{"n": number, "text": "filler " * 9} for number in range(120)]
    return {pick.choice(KEYS): fresh_value(pick, depth + 1) for _ in range(size)}


def order(value: Any) -> str:
    """A sort key that does not depend on the order of fields."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{order(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(order, value)) + "]"
    return shown(value)


def contains(value: Any, target: Any) -> bool:
    if value is target:
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(contains(item, target) for item in inner)


class Program:
    """The same steps on a bag and on plain containers, side by side."""

    def __init__(self, app: App, name: dict[str, Any], seed: int) -> None:
        self.app = app
        self.name = name
        self.pick = random.Random(seed)
        self.bag: SmartStateBag = app.kernel.load_latest_state(lazy=True, **name)
        self.plain: dict[str, Any] = app.kernel.load_latest_state(**name)
        self.saved = pickle.dumps(self.plain)
        self.held: list[Pair] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.check_delta()
        self.save()
        assert shown(self.bag.to_dict()) == shown(self.plain)
        assert shown(self.app.kernel.load_latest_state(**self.name)) == shown(self.plain)

    def step(self) -> None:
        kind = self.pick.randrange(20)
        if kind == 0:
            self.save()
        elif kind == 1:
            self.check_delta()
        elif kind == 2 and self.pick.random() < 0.2:
            self.reset()
        elif kind == 3:
            self.held.append(self.container())
        elif kind == 4:
            self.held = self.held[-2:] if self.held else []
        else:
            mine, plain = self.container()
            (self.change_list if isinstance(plain, list) else self.change_dict)(mine, plain)

    def save(self) -> None:
        commit = self.app.kernel.save(self.bag)
        assert commit.root_hash == self.whole(), "saved as something else"
        assert self.bag.manifest_id == commit.manifest_id
        self.saved = pickle.dumps(self.plain)

    def reset(self) -> None:
        self.bag.reset()
        assert not self.bag.is_changed
        assert shown(self.bag.to_dict()) == shown(pickle.loads(self.saved))
        # What was contained twice may by now be two; so both sides begin again.
        self.bag = self.app.kernel.load_latest_state(lazy=True, **self.name)
        self.plain = self.app.kernel.load_latest_state(**self.name)
        self.held = []

    def check_delta(self) -> None:
        delta = self.bag.get_delta()
        twin: dict[str, Any] = {"workflow_id": f"twin {next(counter)}", "owner_id": "ann"}
        self.app.kernel.fork(self.bag.manifest_id or "", **twin)
        assert self.app.kernel.save_state_delta(delta, **twin).root_hash == self.whole(), "the delta leads elsewhere"
        assert self.bag.is_changed == bool(delta.operations)

    def whole(self) -> str:
        """The root of the plain state, saved by itself."""
        name = f"whole {next(counter)}"
        return self.app.kernel.save_state_delta(self.plain, workflow_id=name, owner_id="ann").root_hash

    def container(self) -> Pair:
        """Some container, reached from the root or from one that was kept."""
        mine, plain = self.pick.choice([(self.bag, self.plain), *self.held])
        while True:
            places = list(plain) if isinstance(plain, dict) else range(len(plain))
            inner = [place for place in places if isinstance(plain[place], (dict, list))]
            if not inner or self.pick.random() < 0.25:
                return mine, plain
            place = self.pick.choice(inner)
            mine, plain = mine[place], plain[place]
            assert isinstance(mine, type(plain))

    def value(self, target: Any) -> Pair:
        """What is put somewhere: something new, perhaps kept by the program, or a container from anywhere."""
        if self.pick.random() < 0.3:
            mine, plain = self.container()
            if not contains(plain, target):
                return mine, plain
        mine = fresh_value(self.pick)
        plain = copy.deepcopy(mine)
        if isinstance(mine, (dict, list)) and self.pick.random() < 0.3:
            self.held.append((mine, plain))
        return mine, plain

    def both(self, mine: Any, plain: Any, call: Callable[[Any], Any]) -> None:
        """The same call on both: the same answer, or the same kind of error."""
        try:
            expected = call(plain)
        except (KeyError, IndexError, ValueError) as exc:
            with pytest.raises(type(exc)):
                call(mine)
            return
        found = call(mine)
        assert order(found) == order(expected)

    def change_dict(self, mine: Any, plain: Any) -> None:
        pick = self.pick
        key = pick.choice(list(plain)[:5] + list(plain)[-3:]) if plain and pick.random() < 0.5 else pick.choice(KEYS)
        kind = pick.randrange(12)
        if kind < 3:
            new_mine, new_plain = self.value(plain)
            mine[key], plain[key] = new_mine, new_plain
        elif kind == 3:
            self.both(mine, plain, lambda fields: fields.pop(key))
        elif kind == 4:
            self.both(mine, plain, lambda fields: fields.__delitem__(key))
        elif kind == 5 and plain and len(plain) < 100:
            # The order of fields is that of the store for what was read from it, so which is last may differ.
            gone, _ = mine.popitem()
            plain.pop(gone)
        elif kind == 6:
            new_mine, new_plain = self.value(plain)
            assert order(mine.setdefault(key, new_mine)) == order(plain.setdefault(key, new_plain))
        elif kind == 7:
            new_mine, new_plain = self.value(plain)
            mine.update({key: new_mine}, k1=2)
            plain.update({key: new_plain}, k1=2)
        elif kind == 8:
            mine |= {key: 7}
            plain |= {key: 7}
        elif kind == 9:
            self.both(mine, plain, lambda fields: (key in fields, len(fields), fields.get(key, "none")))
        elif kind == 10 and pick.random() < 0.2:
            self.both(mine, plain, lambda fields: fields.clear())
        elif kind == 11 and key in plain:
            self.move(mine, plain, key)

    def move(self, mine: Any, plain: Any, key: Any) -> None:
        target_mine, target_plain = self.container()
        if contains(plain[key], target_plain):
            return
        moved_mine, moved_plain = mine.pop(key), plain.pop(key)
        if isinstance(target_plain, list):
            target_mine.insert(1, moved_mine)
            target_plain.insert(1, moved_plain)
        else:
            target_mine["new"], target_plain["new"] = moved_mine, moved_plain

    def change_list(self, mine: Any, plain: Any) -> None:
        pick = self.pick
        place = pick.randrange(-2, len(plain) + 2)
        if pick.random() < 0.3:
            place = pick.choice([0, -1, len(plain) - 1])
        start, stop = sorted([pick.randrange(-1, len(plain) + 2), pick.randrange(-1, len(plain) + 2)])
        if pick.random() < 0.5:
            stop = min(stop, start + 3)
        span = slice(start, stop, pick.choice([None, None, 1, 2, -1, 300]))
        kind = pick.randrange(18)
        if kind < 4:
            new_mine, new_plain = self.value(plain)
            mine.append(new_mine)
            plain.append(new_plain)
        elif kind == 4:
            new_mine, new_plain = self.value(plain)
            mine.insert(place, new_mine)
            plain.insert(place, new_plain)
        elif kind == 5 and -len(plain) <= place < len(plain):
            new_mine, new_plain = self.value(plain)
            mine[place], plain[place] = new_mine, new_plain
        elif kind == 6:
            self.both(mine, plain, lambda items: items.__setitem__(span, [1, "two", None]))
        elif kind == 7:
            self.both(mine, plain, lambda items: items.__delitem__(span))
        elif kind == 8:
            self.both(mine, plain, lambda items: items.__delitem__(place))
        elif kind == 9:
            self.both(mine, plain, lambda items: items.pop(place))
        elif kind == 10:
            self.both(mine, plain, lambda items: items.remove(1))
        elif kind == 11:
            mine.extend(iter([1, [2]]))
            plain.extend(iter([1, [2]]))
        elif kind == 12:
            new_mine, new_plain = self.value(plain)
            mine += [new_mine, 3]
            plain += [new_plain, 3]
        elif kind == 13 and len(plain) < 200:
            times = pick.choice([0, 1, 2])
            mine *= times
            plain *= times
        elif kind == 14:
            self.both(mine, plain, lambda items: items.reverse())
        elif kind == 15 and pick.random() < 0.5:
            self.both(mine, plain, lambda items: items.sort(key=order))
        elif kind == 16:
            self.both(mine, plain, lambda items: (len(items), items[span], items[place]))
        elif kind == 17 and plain and all(type(item) is int for item in plain) and type(mine) is not list:
            list(mine)
            for items in (mine, plain):
                heapq.heapify(items)
                heapq.heappush(items, 4)


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with analemma.open("sqlite:///:memory:") as opened:
        prepare(opened)
        yield opened


def prepare(app: App) -> None:
    """The state that programs begin with, saved once: making it takes longer than many a program."""
    app.kernel.save_state_delta(first_state(), previous_manifest_id=None, **FIRST)


def begin(app: App, label: str) -> dict[str, Any]:
    name: dict[str, Any] = {"workflow_id": label, "owner_id": "ann"}
    (first,) = app.kernel.history(limit=1, **FIRST)
    app.kernel.fork(first.manifest_id, **name)
    return name


@pytest.mark.parametrize("part", some(range(8), test=[0]))
def test_programs_on_a_bag_and_on_plain_containers_end_equal(app: App, part: int) -> None:
    for seed in range(part * 6, part * 6 + 6):
        Program(app, begin(app, f"seed {seed}"), seed).run(60)


@settings(max_examples=count(5, deep=30), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_any_program_on_a_bag_and_on_plain_containers_ends_equal(app: App, seed: int, steps: int) -> None:
    Program(app, begin(app, f"example {next(counter)}"), seed).run(steps)


@pytest.mark.parametrize("seed", [1_001_870])
def test_programs_that_once_ended_otherwise(app: App, seed: int) -> None:
    # A list written as a whole, in which something watched holds a container that changed: after the save that was
    # looked for where it does not stand.
    Program(app, begin(app, f"once {seed}"), seed).run(250)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(40))
def test_long_programs_on_a_bag_end_equal(app: App, part: int) -> None:
    for seed in range(1_000_000 + part * 50, 1_000_000 + part * 50 + 50):
        Program(app, begin(app, f"long {seed}"), seed).run(250)


def test_programs_end_equal_on_every_catalog(store: Store) -> None:
    with store.open() as app:
        prepare(app)
        for seed in range(count(1, deep=2)):
            Program(app, begin(app, f"seed {seed}"), seed).run(60)
            assert app.kernel.verify(workflow_id=f"seed {seed}", owner_id="ann").ok
