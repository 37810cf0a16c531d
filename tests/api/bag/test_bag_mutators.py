"""Every way of changing a dict or list, on containers of a bag and on plain ones: the same answers, the same errors."""

from __future__ import annotations

import copy
import enum
import heapq
import operator
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

import analemma
from analemma import App, SmartStateBag
from tests.api.bag.saved_whole import root_of

LISTS: dict[str, Any] = {
    "small list": [3, 1, 2, "x", None, [1], {"a": 1}],
    "leaf list": [{"n": number, "text": "x" * 60} for number in range(60)],
    "large list": [{"n": number, "text": "x" * 60} for number in range(300)],
    "numbers": list(range(2000, 0, -1)),
}
MAPS: dict[str, Any] = {
    "small map": {"a": 1, "b": [1, 2], "c": {"d": None}},
    "leaf map": {f"k{number}": {"n": number, "text": "x" * 60} for number in range(60)},
    "large map": {f"k{number}": {"n": number, "text": "x" * 60} for number in range(400)},
    "empty key": {"": {"": 1}},
}
READ = {"untouched": False, "read before": True}
BRANCHES = count(1)


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with analemma.open("sqlite:///:memory:") as opened:
        yield opened


def save(app: App, value: Any, names: Any) -> str:
    """A version in which the value stands once for each name: what is done to one does not touch the others."""
    name = f"workflow {next(BRANCHES)}"
    state = dict.fromkeys(names, value)
    return app.kernel.save_state_delta(state, workflow_id=name, owner_id="ann").manifest_id


def forked(app: App, manifest: str) -> dict[str, Any]:
    name: dict[str, Any] = {"workflow_id": f"fork {next(BRANCHES)}", "owner_id": "ann"}
    app.kernel.fork(manifest, **name)
    return name


def differences(app: App, value: Any, changes: dict[str, Callable[[Any], Any]], *, read: bool) -> list[str]:
    """What each change does to a bag's container and not to a plain one, or the other way round; all of them saved."""
    start = save(app, value, changes)
    plain: dict[str, Any] = app.kernel.load_state(start)
    name = forked(app, start)
    bag = app.kernel.load_latest_state(lazy=True, **name)
    wrong: list[str] = []
    for each, change in changes.items():
        if read:
            list(bag[each])
        expected, found = outcome(change, plain[each]), outcome(change, bag[each])
        if found != expected:
            wrong.append(f"{each}: {found!r:.200} instead of {expected!r:.200}")
    delta = bag.get_delta()
    unseen = {each for each in changes if plain[each] != value} - {operation.path[0] for operation in delta.operations}
    wrong += [f"{each}: the change is not noticed" for each in sorted(unseen)]
    assert bag.is_changed == bool(delta.operations)
    root = root_of(app, plain)
    by_delta = app.kernel.save_state_delta(delta, **forked(app, start))
    by_bag = app.kernel.save(bag)
    for how, commit in {"delta": by_delta, "bag": by_bag}.items():
        if commit.root_hash != root:
            stored = app.kernel.load_state(commit.manifest_id)
            other = [each for each in changes if stored[each] != plain[each]]
            wrong.append(f"saved as something else by its {how}: {other}")
    assert not bag.is_changed
    shown = bag.to_dict()
    return wrong + [f"{each}: shown otherwise after the save" for each in changes if shown[each] != plain[each]]


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


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_a_bag_do_what_lists_do(app: App, kind: str, read: bool) -> None:
    assert differences(app, LISTS[kind], LIST_CHANGES, read=read) == []


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("kind", MAPS)
def test_dicts_of_a_bag_do_what_dicts_do(app: App, kind: str, read: bool) -> None:
    assert differences(app, MAPS[kind], MAP_CHANGES, read=read) == []


def test_heapq_is_seen_or_refused(app: App) -> None:
    start = save(app, LISTS["numbers"], ["numbers"])
    bag = app.kernel.load_state(start, lazy=True)
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
    plain = LISTS["numbers"][:]
    for items in (numbers, plain):
        heapq.heapify(items)
        heapq.heappush(items, -5)
        assert heapq.heapreplace(items, 7) == -5
    assert bag.is_changed
    assert bag.get_delta().changed_fields == ("numbers",)
    assert bag["numbers"] == plain
    commit = app.kernel.save_state_delta(bag.get_delta(), **forked(app, start))
    assert commit.root_hash == root_of(app, {"numbers": plain})


# A member of this kind equals its value, and str() gives its name.
class Name(str, enum.Enum):  # noqa: UP042
    KNOWN = "k7"
    NEW = "new"


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("kind", ["leaf map", "large map"])
def test_keys_are_what_they_equal(kind: str, read: bool, app: App) -> None:
    def change(fields: Any) -> Any:
        before = Name.KNOWN in fields, fields[Name.KNOWN]["n"], Name.NEW in fields
        fields[Name.KNOWN] = 1
        del fields[Name("k7")]
        return *before, len(fields), fields.pop(Name.KNOWN, None)

    assert differences(app, MAPS[kind], {"member": change}, read=read) == []


def test_any_name_can_be_given_as_a_keyword() -> None:
    bag = SmartStateBag(self=1, cls=2)
    bag.update(self=3)
    assert bag == {"self": 3, "cls": 2}


def test_containers_are_dicts_and_lists_and_others_like_them_are_plain(app: App) -> None:
    parts: dict[Any, Any] = {}
    for kind in ("large map", "large list"):
        bag = app.kernel.load_state(save(app, {**MAPS, **LISTS}[kind], ["field"]), lazy=True)
        assert type(bag) is SmartStateBag and isinstance(bag, dict)
        parts[dict if "map" in kind else list] = bag["field"]
    for plain, part in parts.items():
        assert isinstance(part, plain) and type(part) is not plain
        assert type(type(part)(plain())) is plain
    assert type(parts[list][:2]) is list
    assert type(type(parts[dict]).fromkeys(["a"])) is dict
