"""Every way of changing a dict or list, on containers of a bag and on plain ones: the same answers, the same errors."""

from __future__ import annotations

import copy
import enum
import heapq
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import analemma
from analemma import App, BlockId, SmartStateBag
from analemma.bag.tracked_dict import TrackedDict
from analemma.bag.tracked_list import TrackedList
from analemma.canon.identity import parse_block_id

STATE: dict[str, Any] = {
    "small list": [3, 1, 2, "x", None, [1], {"a": 1}],
    "leaf list": [{"n": number, "text": "x" * 60} for number in range(60)],
    "large list": [{"n": number, "text": "x" * 60} for number in range(900)],
    "numbers": list(range(9000, 0, -1)),
    "small map": {"a": 1, "b": [1, 2], "c": {"d": None}},
    "leaf map": {f"k{number}": {"n": number, "text": "x" * 60} for number in range(60)},
    "large map": {f"k{number}": {"n": number, "text": "x" * 60} for number in range(900)},
    "": {"": {"": 1}},
}
LISTS = ["small list", "leaf list", "large list", "numbers"]
MAPS = ["small map", "leaf map", "large map", ""]
READ = {"untouched": False, "read before": True}


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with analemma.open("sqlite:///:memory:") as opened:
        for field, value in STATE.items():
            opened.kernel.save_state_delta({field: value, "n": 1}, **name_of(field))
        yield opened


def name_of(field: str) -> dict[str, Any]:
    """A workflow of its own for every field: a state of the others would only cost time."""
    return {"workflow_id": f"the {field}", "owner_id": "ann"}


def first(app: App, field: str) -> str:
    return app.kernel.history(limit=1, **name_of(field))[-1].manifest_id


def root_of(app: App, manifest_id: str) -> BlockId:
    return app.default.manifest(parse_block_id(manifest_id)).root.id


def same(app: App, field: str, change: Callable[[Any], Any], *, read: bool) -> None:
    """The change does to the bag what it does to a plain value, and the bag is saved as that."""
    start = first(app, field)
    plain: dict[str, Any] = app.kernel.load_state(start)
    bag = app.kernel.load_state(start, lazy=True)
    if read:
        list(bag[field])
    expected = outcome(change, plain[field])
    assert outcome(change, bag[field]) == expected
    trees = app.default.trees
    wanted = trees.build(plain).root
    assert trees.edit(root_of(app, start), bag.get_delta().operations).root == wanted
    assert bag.is_changed or wanted.id == root_of(app, start)
    app.kernel.fork(start, branch=(branch := f"branch {next(numbers)}"), owner_id="ann")
    forked = app.kernel.load_latest_state(lazy=True, branch=branch, **name_of(field))
    if read:
        list(forked[field])
    outcome(change, forked[field])
    assert app.kernel.save(forked).root_hash == wanted.id.hex()
    assert not forked.is_changed
    assert forked.to_dict() == plain
    assert bag.to_dict() == plain


def outcome(change: Callable[[Any], Any], target: Any) -> Any:
    try:
        return "gave", copy.deepcopy(change(target))
    except (KeyError, IndexError, ValueError, TypeError) as exc:
        return "raised", type(exc).__name__, str(exc) if not isinstance(exc, TypeError) else ""


def add_in_place(items: Any) -> None:
    items += ({"new": 1}, 2)


def multiply_in_place(times: int) -> Callable[[Any], None]:
    def multiply(items: Any) -> None:
        items *= times

    return multiply


def merge_in_place(fields: Any) -> None:
    fields |= {"a": 9, "new": [1]}


def merge_pairs_in_place(fields: Any) -> None:
    fields |= [("a", 9), ("new", [1])]


LIST_CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda items: items.append({"new": [1]}),
    "extend": lambda items: items.extend(iter([1, {"new": 2}])),
    "extend by itself": lambda items: items.extend(items) if len(items) < 100 else None,
    "extend nothing": lambda items: items.extend([]),
    "extend no iterable": lambda items: items.extend(1),
    "+=": add_in_place,
    "*= 0": multiply_in_place(0),
    "*= 1": multiply_in_place(1),
    "*= 2": multiply_in_place(2),
    "insert first": lambda items: items.insert(0, "new"),
    "insert in the middle": lambda items: items.insert(len(items) // 2, {"new": 1}),
    "insert from the end": lambda items: items.insert(-2, "new"),
    "insert beyond": lambda items: items.insert(10**6, "new"),
    "insert before": lambda items: items.insert(-(10**6), "new"),
    "pop": lambda items: items.pop(),
    "pop first": lambda items: items.pop(0),
    "pop from the end": lambda items: items.pop(-3),
    "pop beyond": lambda items: items.pop(10**6),
    "pop no index": lambda items: items.pop("x"),
    "remove": lambda items: items.remove(items[2]),
    "remove what is not there": lambda items: items.remove("not there"),
    "set": lambda items: items.__setitem__(1, {"new": 1}),
    "set last": lambda items: items.__setitem__(-1, "new"),
    "set the same": lambda items: items.__setitem__(1, items[1]),
    "set beyond": lambda items: items.__setitem__(10**6, 1),
    "set no index": lambda items: items.__setitem__("x", 1),
    "set slice": lambda items: items.__setitem__(slice(1, 3), ["a", "b", {"c": 1}]),
    "set empty slice": lambda items: items.__setitem__(slice(2, 2), ["a"]),
    "set backward slice": lambda items: items.__setitem__(slice(3, 1), ["a"]),
    "set everything": lambda items: items.__setitem__(slice(None), ["a"]),
    "set to itself": lambda items: items.__setitem__(slice(None), items),
    "set extended slice": lambda items: items.__setitem__(slice(0, 4, 2), ["a", "b"]),
    "set reversed": lambda items: items.__setitem__(slice(None, None, -1), list(items)),
    "set extended slice of another size": lambda items: items.__setitem__(slice(0, 4, 2), ["a"]),
    "set slice to no iterable": lambda items: items.__setitem__(slice(0, 1), 1),
    "del": lambda items: items.__delitem__(1),
    "del beyond": lambda items: items.__delitem__(10**6),
    "del slice": lambda items: items.__delitem__(slice(1, 4)),
    "del every second": lambda items: items.__delitem__(slice(None, None, 2)),
    "del backwards": lambda items: items.__delitem__(slice(4, 0, -2)),
    "del everything": lambda items: items.__delitem__(slice(None)),
    "clear": lambda items: items.clear(),
    "reverse": lambda items: items.reverse(),
    "sort by text": lambda items: items.sort(key=str),
    "sort backwards": lambda items: items.sort(key=lambda item: str(item), reverse=True),
    "sort by nothing": lambda items: items.sort(),
    "init": lambda items: items.__init__([1, 2]),
    "change inside": lambda items: items[-1].update(n=-1) if isinstance(items[-1], dict) else None,
    "change inside after a move": lambda items: (items.insert(0, items.pop()), isinstance(items[0], dict)
                                                 and items[0].update(n=-1)),
    "index": lambda items: items.index(items[3]),
    "index between": lambda items: items.index(items[3], 4),
    "count": lambda items: items.count(items[3]),
    "in": lambda items: (items[3] in items, "not there" in items),
    "get slices": lambda items: (items[1:3], items[-2:], items[::100], items[5:1]),
    "get beyond": lambda items: items[10**6],
    "get no index": lambda items: items["x"],
    "len": lambda items: len(items),
    "bool": lambda items: bool(items),
    "iterate": lambda items: list(items),
    "iterate backwards": lambda items: list(reversed(items)),
    "+": lambda items: (items.__add__([1]), operator.add([1], items), operator.add(items, [1]), items + items),
    "*": lambda items: (items * 2 == 2 * items, len(items * 2)),
    "+ no list": lambda items: items + 1,
    "no list +": lambda items: 1 + items,
    "copy": lambda items: items.copy(),
}  # fmt: skip

MAP_CHANGES: dict[str, Callable[[Any], Any]] = {
    "set": lambda fields: fields.__setitem__("a", {"new": 1}),
    "set new": lambda fields: fields.__setitem__("new", [1, {"b": 2}]),
    "set the same": lambda fields: fields.__setitem__("k1", fields.get("k1", 1)),
    "set inside": lambda fields: fields["k7"].__setitem__("n", -1),
    "del": lambda fields: fields.__delitem__("k7"),
    "del what is not there": lambda fields: fields.__delitem__("not there"),
    "del and set again": lambda fields: (fields.pop("k7"), fields.__setitem__("k7", 1)),
    "del and put back": lambda fields: fields.__setitem__("k7", fields.pop("k7")),
    "pop": lambda fields: fields.pop("k7"),
    "pop default": lambda fields: fields.pop("not there", 5),
    "pop what is not there": lambda fields: fields.pop("not there"),
    "popitem": lambda fields: fields.popitem(),
    "popitem until empty": lambda fields: [fields.popitem() for _ in range(len(fields) + 1)],
    "setdefault": lambda fields: fields.setdefault("k7", 1),
    "setdefault new": lambda fields: fields.setdefault("new", []).append(1),
    "update": lambda fields: fields.update({"k1": 1, "new": {}}, other=2),
    "update with pairs": lambda fields: fields.update([("k1", 1), ("new", 2)]),
    "update with itself": lambda fields: fields.update(fields),
    "update with nothing": lambda fields: fields.update(),
    "update with no mapping": lambda fields: fields.update(5),
    "|=": merge_in_place,
    "|= pairs": merge_pairs_in_place,
    "clear": lambda fields: fields.clear(),
    "get": lambda fields: (fields.get("k7"), fields.get("not there"), fields.get("not there", 3)),
    "get what is not there": lambda fields: fields["not there"],
    "in": lambda fields: ("k7" in fields, "not there" in fields, 5 in fields, len(fields)),
    "unhashable": lambda fields: [] in fields,
    "keys": lambda fields: (list(fields), list(fields.keys()), list(reversed(fields)), fields.keys() & {"k7"}),
    "values": lambda fields: list(fields.values()),
    "items": lambda fields: (list(fields.items()), len(fields.items())),
    "|": lambda fields: (fields | {"a": 2}, {"a": 2} | fields, fields | fields),
    "| no dict": lambda fields: fields | 5,
    "copy": lambda fields: fields.copy(),
    "new keys come last": lambda fields: (fields.update(b2=1, a2=2), list(fields)[-2:]),
    "number as a key and gone again": lambda fields: (fields.__setitem__(5, 1), fields[5], fields.pop(5)),
}

numbers = iter(range(10**9))


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("field", LISTS)
@pytest.mark.parametrize("change", LIST_CHANGES)
def test_lists_of_a_bag_do_what_lists_do(app: App, change: str, field: str, read: bool) -> None:
    same(app, field, LIST_CHANGES[change], read=read)


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("field", MAPS)
@pytest.mark.parametrize("change", MAP_CHANGES)
def test_dicts_of_a_bag_do_what_dicts_do(app: App, change: str, field: str, read: bool) -> None:
    same(app, field, MAP_CHANGES[change], read=read)


def test_heapq_is_seen_or_refused(app: App) -> None:
    bag = app.kernel.load_state(first(app, "numbers"), lazy=True)
    for function in (
        heapq.heapify,
        heapq.heappop,
        lambda items: heapq.heappush(items, 1),
        lambda items: heapq.heapreplace(items, 1),
        lambda items: heapq.heappushpop(items, 10**6),
    ):
        with pytest.raises(TypeError):
            function(bag["numbers"])
    assert bag.get_delta().operations == ()
    numbers = bag["numbers"].load()
    plain = STATE["numbers"][:]
    for items in (numbers, plain):
        heapq.heapify(items)
        heapq.heappush(items, -5)
        assert heapq.heapreplace(items, 7) == -5
    assert bag.is_changed
    assert bag.get_delta().changed_fields == ("numbers",)
    assert bag["numbers"] == plain
    trees, base = app.default.trees, root_of(app, first(app, "numbers"))
    assert trees.edit(base, bag.get_delta().operations).root == trees.build({"numbers": plain, "n": 1}).root


# A member of this kind equals its value, and str() gives its name.
class Name(str, enum.Enum):  # noqa: UP042
    KNOWN = "k7"
    NEW = "new"


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("field", ["leaf map", "large map"])
def test_keys_are_what_they_equal(field: str, read: bool, app: App) -> None:
    def change(fields: Any) -> Any:
        before = Name.KNOWN in fields, fields[Name.KNOWN]["n"], Name.NEW in fields
        fields[Name.KNOWN] = 1
        del fields[Name("k7")]
        return *before, len(fields), fields.pop(Name.KNOWN, None)

    same(app, field, change, read=read)


def test_any_name_can_be_given_as_a_keyword() -> None:
    bag = SmartStateBag(self=1, cls=2)
    bag.update(self=3)
    assert bag == {"self": 3, "cls": 2}


def test_containers_are_dicts_and_lists_and_others_like_them_are_plain(app: App) -> None:
    maps = app.kernel.load_state(first(app, "large map"), lazy=True)
    lists = app.kernel.load_state(first(app, "large list"), lazy=True)
    assert type(maps) is SmartStateBag and issubclass(SmartStateBag, dict)
    assert type(maps["large map"]) is TrackedDict and type(lists["large list"]) is TrackedList
    assert type(type(maps["large map"])({"a": 1})) is dict
    assert type(type(lists["large list"])([1])) is list
    assert type(lists["large list"][:2]) is list
    assert type(TrackedDict.fromkeys(["a"])) is dict
