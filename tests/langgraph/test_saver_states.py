"""What a checkpoint holds comes back exactly, and what did not change is stored once."""

from __future__ import annotations

import datetime as dt
import enum
import re
import uuid
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from analemma import App
from analemma.errors import Corrupt, Invalid
from analemma.langgraph import AnalemmaSaver
from tests.langgraph.graphs import put, thread


class Mood(enum.Enum):
    CALM = "calm"


@dataclass
class Point:
    x: int


class Model(BaseModel):
    name: str


class Swapping(CipherProtocol):
    """Not a secret, but not the plain bytes either, and never the same twice."""

    count = 0

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        self.count += 1
        return "swap", self.count.to_bytes(4, "big") + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "swap"
        return ciphertext[4:][::-1]


class Shouting(JsonPlusSerializer):
    """Calls its format msgpack, but one value's bytes are not made of its items' bytes."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        return kind, data[:-1] + bytes((data[-1] ^ 0xFF,)) if kind == "msgpack" else data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, stored = data
        return super().loads_typed((kind, stored[:-1] + bytes((stored[-1] ^ 0xFF,)) if kind == "msgpack" else stored))


class Trailing(JsonPlusSerializer):
    """Calls its format msgpack, but ends what is long with a byte that belongs to none of its items."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        return kind, data + b"\x01" if len(data) > 1000 else data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, stored = data
        assert len(stored) <= 1000 or stored.endswith(b"\x01"), "something is missing at the end"
        return super().loads_typed((kind, stored[:-1] if len(stored) > 1000 else stored))


def read(saver: AnalemmaSaver, config: Any = None) -> Any:
    found = saver.get_tuple(config or thread())
    assert found is not None
    return found.checkpoint["channel_values"]


def messages(count: int) -> list[Any]:
    kinds = [HumanMessage, AIMessage, SystemMessage]
    made: list[Any] = [kinds[n % 3](f"message {n} " * 40, id=f"m{n}") for n in range(count)]
    made.append(ToolMessage("result", tool_call_id="c", id="tool", artifact={"raw": [1, 2]}))
    return made


VALUES: dict[str, Any] = {
    "nothing": None,
    "bytes": b"\0\x01" * 3000,
    "bytearray": bytearray(b"abc"),
    "text": "straße 𝄞 " * 900,
    "number": 2**63,
    "half": 0.5,
    "infinite": float("inf"),
    "set": {"a"},
    "tuple": ("a", 1),
    "deque": deque([1, 2]),
    "when": dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC),
    "day": dt.date(2026, 1, 2),
    "span": dt.timedelta(days=1),
    "uuid": uuid.UUID(int=7),
    "decimal": Decimal("1.10"),
    "path": Path("/tmp/x"),
    "pattern": re.compile("a+"),
    "numbers as keys": {1: "one", (2): "two"},
    "empty list": [],
    "empty dict": {},
    "long list": [{"n": n, "text": "x" * (n % 50)} for n in range(500)],
    "long dict": {f"key {n}": ["value", n, None] for n in range(600)},
    "long tuple": [(n, "y" * 40) for n in range(400)],
    "deep": {"a": [{"b": [list(range(3000))]}]},
    "messages": messages(60),
}


@pytest.mark.parametrize("cold", [False, True])
def test_values_of_all_kinds_come_back(app: App, cold: bool) -> None:
    saver = AnalemmaSaver(app)
    put(saver, VALUES)
    found = read(AnalemmaSaver(app) if cold else saver)
    expected = {
        name: JsonPlusSerializer().loads_typed(JsonPlusSerializer().dumps_typed(value))
        for name, value in VALUES.items()
    }
    assert repr(found) == repr(expected)
    assert found["messages"] == VALUES["messages"] and found["when"] == VALUES["when"]


@pytest.mark.parametrize(
    "serde",
    [EncryptedSerializer(Swapping()), JsonPlusSerializer(pickle_fallback=True), Shouting(), Trailing()],
    ids=["encrypted", "pickle", "not made of items", "more than its items"],
)
def test_any_serializer(app: App, serde: Any) -> None:
    saver = AnalemmaSaver(app, serde=serde)
    values: dict[str, Any] = {"list": [{"n": n, "text": "x" * 50} for n in range(300)], "one": 1}
    if getattr(serde, "pickle_fallback", False):
        values["odd"] = [range(3), "x" * 9000]
    config = put(saver, values)
    values["list"] = [*values["list"], {"more": 1}]
    put(saver, values, config)
    saver.put_writes(thread(checkpoint=config["configurable"]["checkpoint_id"]), [("c", values)], "task")
    cold = AnalemmaSaver(app, serde=serde)
    assert read(saver) == read(cold) == values
    first = cold.get_tuple(config)
    assert first is not None and first.pending_writes == [("task", "c", values)]
    assert len(first.checkpoint["channel_values"]["list"]) == 300


def test_encryption_leaves_no_text_of_the_state_in_the_store(app: App) -> None:
    saver = AnalemmaSaver(app, serde=EncryptedSerializer(Swapping()))
    config = put(saver, {"secret": "do not tell" * 1000}, told="do not tell")
    saver.put_writes(config, [("secret", "do not tell")], "task")
    version = app.kernel.history(workflow_id="t", owner_id="langgraph")[0]
    assert b"do not tell" not in repr(app.kernel.load_state(version.manifest_id)).encode()
    assert read(saver)["secret"].startswith("do not tell")


def test_an_appended_list_stores_its_new_items(app: App) -> None:
    saver = AnalemmaSaver(app)
    versions: dict[str, Any] = {}
    items = [{"n": n, "text": uuid.UUID(int=n).hex * 40} for n in range(1000)]
    config = put(saver, {"items": items, "fixed": b"z" * 50_000}, versions=versions)
    before = app.stats().logical_bytes
    for step in range(10):
        items = [*items, {"n": step, "text": "new"}]
        config = put(saver, {"items": items, "fixed": b"z" * 50_000}, config, changed=["items"], versions=versions)
    grown = app.stats().logical_bytes - before
    assert len(JsonPlusSerializer().dumps_typed(items)[1]) > 1_200_000
    assert grown < 200_000, "a few nodes of the tree for each step"
    assert read(AnalemmaSaver(app))["items"] == items


@pytest.mark.parametrize("cold", [False, True])
def test_edits_anywhere_in_a_list_or_dict(app: App, cold: bool) -> None:
    saver = AnalemmaSaver(app)
    items = [f"item {n} " * 20 for n in range(300)]
    fields: dict[str, Any] = {f"key {n}": f"value {n} " * 20 for n in range(300)}
    config = put(saver, {"list": items, "dict": fields})
    for number, (start, stop, fresh) in enumerate(
        [(0, 1, ["first"]), (150, 160, []), (100, 100, ["in between"] * 3), (0, 280, []), (0, 0, items), (5, 6, ["x"])]
    ):
        items = [*items[:start], *fresh, *items[stop:]]
        keys = list(fields)
        fields = {key: fields[key] for key in keys[:start] + keys[stop:]} | {f"new {number}": fresh}
        config = put(AnalemmaSaver(app) if cold else saver, {"list": items, "dict": fields}, config)
        found = read(AnalemmaSaver(app))
        assert found["list"] == items
        assert list(found["dict"].items()) == list(fields.items()), "the order of keys too"


def test_the_same_channel_is_stored_once_however_it_came_about(app: App) -> None:
    saver = AnalemmaSaver(app)
    items = [f"item {n} {uuid.UUID(int=n)} " * 20 for n in range(400)]
    config = put(saver, {"items": items[:300]})
    put(saver, {"items": items}, config)
    before = app.stats(app.settings.tenant).blocks
    assert before > 30
    put(AnalemmaSaver(app), {"items": items}, name="other")
    assert app.stats(app.settings.tenant).blocks - before <= 3


def test_a_value_changed_in_place_is_seen(app: App) -> None:
    """Also where it takes as many bytes as before."""
    saver = AnalemmaSaver(app)
    items: list[Any] = [{"n": n, "pad": "x" * 50} for n in range(300)]
    first = config = put(saver, {"items": items})
    for place, value in ((7, "changed"), (3, 4), (63, 62), (64, 65), (130, 131), (299, 298)):
        items[place]["n"] = value
        config = put(saver, {"items": items}, config)
        for reader in (saver, AnalemmaSaver(app)):
            assert read(reader)["items"][place]["n"] == value
    before = saver.get_tuple(first)
    assert before is not None and [item["n"] for item in before.checkpoint["channel_values"]["items"]] == [*range(300)]


def test_what_was_read_belongs_to_the_reader(saver: AnalemmaSaver) -> None:
    put(saver, {"items": [{"n": n, "pad": "x" * 50} for n in range(300)]})
    read(saver)["items"][0]["n"] = "mine"
    assert read(saver)["items"][0]["n"] == 0


def test_a_channel_that_was_not_written_is_taken_from_the_parent(saver: AnalemmaSaver) -> None:
    versions: dict[str, Any] = {}
    config = put(saver, {"a": "old", "b": 1}, versions=versions)
    put(saver, {"a": "changed without a new version", "b": 2}, config, changed=["b"], versions=versions)
    assert read(saver) == {"a": "old", "b": 2}


def test_without_a_known_parent_everything_is_stored(saver: AnalemmaSaver) -> None:
    put(saver, {"a": 1, "b": 2}, thread(checkpoint="gone"), changed=["b"], versions={"a": "1"})
    assert read(saver) == {"a": 1, "b": 2}


def test_another_version_than_the_parents_is_stored_even_if_it_is_not_called_new(saver: AnalemmaSaver) -> None:
    config = put(saver, {"a": "old"}, versions={})
    put(saver, {"a": "new"}, config, changed=[], versions={"a": "another"})
    assert read(saver) == {"a": "new"}


def test_a_parent_that_was_put_again_elsewhere_is_looked_at_again(app: App) -> None:
    """The saver remembers which version its last checkpoint is; another process may have replaced that."""
    ours, theirs = AnalemmaSaver(app), AnalemmaSaver(app)
    versions: dict[str, Any] = {}
    config = put(ours, {"a": "first", "b": 0}, versions=versions, id="x")
    again = dict(versions)
    put(theirs, {"a": "second", "b": 0}, thread(), changed=[], versions=again, id="x")
    put(ours, {"a": "unused", "b": 1}, config, changed=["b"], versions=versions, id="y")
    assert read(ours) == {"a": "second", "b": 1}


def test_putting_an_id_again_replaces_it(saver: AnalemmaSaver) -> None:
    put(saver, {"a": 1}, id="x", step=1)
    put(saver, {"a": 2}, id="x", step=2)
    found = list(saver.list(thread()))
    assert [(each.checkpoint["channel_values"], each.metadata["step"]) for each in found] == [({"a": 2}, 2)]


def test_the_newest_is_the_greatest_id_not_the_last_that_came(saver: AnalemmaSaver) -> None:
    put(saver, {"a": "newest"}, id="3")
    put(saver, {"a": "late"}, id="1")
    put(saver, {"a": "later"}, id="2")
    assert read(saver) == {"a": "newest"}
    assert [each.checkpoint["id"] for each in saver.list(thread())] == ["3", "2", "1"]


def test_writes_before_their_checkpoint_and_in_their_order(saver: AnalemmaSaver) -> None:
    config = thread(checkpoint="x")
    saver.put_writes(config, [("a", 1), ("b", 2)], "task 2", "~path 1")
    saver.put_writes(config, [("a", 3)], "task 1", "~path 2")
    saver.put_writes(config, [("a", 4)], "task 3")
    saver.put_writes(config, [("a", "ignored"), ("b", "ignored"), ("c", "third")], "task 2", "~path 1")
    saver.put_writes(config, [("__error__", "one")], "task 2", "~path 1")
    saver.put_writes(config, [("__error__", "two")], "task 2", "~path 1")
    assert saver.get_tuple(config) is None
    put(saver, {}, id="x")
    found = saver.get_tuple(config)
    assert found is not None and found.pending_writes == [
        ("task 3", "a", 4),
        ("task 2", "__error__", "two"),
        ("task 2", "a", 1),
        ("task 2", "b", 2),
        ("task 2", "c", "third"),
        ("task 1", "a", 3),
    ]


def test_only_allowed_types_are_made_when_reading(app: App) -> None:
    values = {"point": Point(1), "model": Model(name="x"), "mood": Mood.CALM}
    put(AnalemmaSaver(app), values)
    assert read(AnalemmaSaver(app)) == {"point": {"x": 1}, "model": {"name": "x"}, "mood": "calm"}
    assert read(AnalemmaSaver(app, allowed_types=[Point, Model, Mood])) == values
    clone = AnalemmaSaver(app).with_allowlist([(Point.__module__, "Point")])
    assert read(clone)["point"] == Point(1)
    permissive = JsonPlusSerializer(allowed_msgpack_modules=True)
    assert read(AnalemmaSaver(app, serde=permissive)) == values
    with pytest.raises(Invalid, match="allowed_types"):
        AnalemmaSaver(app, serde=permissive, allowed_types=[Point])


def test_a_clone_shares_the_store_and_does_not_close_it(tmp_path: Path) -> None:
    with AnalemmaSaver(tmp_path / "store") as saver:
        put(saver, {"a": 1})
        saver.with_allowlist([("x", "Y")]).close()
        assert read(saver) == {"a": 1}


def test_lists_are_filtered_by_any_metadata(saver: AnalemmaSaver) -> None:
    put(saver, {}, id="1", source="input", step=1, score=1.0)
    put(saver, {}, id="2", name="u", source="loop", step=2, nested={"a": [1]})
    put(saver, {}, id="3", source="loop", step=3, flag=True)
    filters: list[tuple[dict[str, Any], list[int]]] = [
        ({"source": "input"}, [1]),
        ({"nested": {"a": [1]}}, [2]),
        ({"flag": True, "source": "loop"}, [3]),
        ({"missing": None}, [3, 2, 1]),
        ({"score": 1.0}, [1]),
        ({"source": "nobody"}, []),
    ]
    for chosen, expected in filters:
        assert [each.metadata["step"] for each in saver.list(None, filter=chosen)] == expected, chosen
        assert [each.metadata["step"] for each in saver.history(None, filter=chosen)] == expected, chosen


def test_lists_go_through_all_threads_and_namespaces(saver: AnalemmaSaver) -> None:
    for name in ("a", "b", "c"):
        for namespace in ("", "x", "y"):
            for id in ("1", "2", "3"):
                put(saver, {}, name=name, namespace=namespace, id=id)
    keys = ("checkpoint_id", "thread_id", "checkpoint_ns")
    shown = [tuple(each.config["configurable"][key] for key in keys) for each in saver.list(None)]
    assert len(set(shown)) == len(shown) == 27
    assert [key[0] for key in shown] == ["3"] * 9 + ["2"] * 9 + ["1"] * 9
    assert len(list(saver.list({"configurable": {"thread_id": "b"}}))) == 9
    assert len(list(saver.list(thread("b", namespace="x")))) == 3
    assert len(list(saver.list({"configurable": {"thread_id": "b", "checkpoint_id": "2"}}))) == 3
    assert len(list(saver.list(thread("b", "2", namespace="x")))) == 1
    assert len(list(saver.list(None, before=thread(checkpoint="3")))) == 18
    assert len(list(saver.list(None, before=thread(checkpoint="3"), limit=5))) == 5
    assert list(saver.list(None, limit=0)) == []
    # No more is read at once than is asked for.
    everything = [each.config for each in saver.list(None)]
    for limit in range(1, 27):
        assert [each.config for each in saver.list(None, limit=limit)] == everything[:limit]


@pytest.mark.deep("more checkpoints than are read at once")
def test_long_lists_go_through_all_threads_and_namespaces(saver: AnalemmaSaver) -> None:
    expected = []
    for number in range(1_050):
        name, namespace, id = f"t{number % 3}", ("", "x")[number % 2], f"{number // 6:04}"
        put(saver, {}, name=name, namespace=namespace, id=id)
        expected.append((id, name, namespace))
    keys = ("checkpoint_id", "thread_id", "checkpoint_ns")
    shown = [tuple(each.config["configurable"][key] for key in keys) for each in saver.history(None)]
    assert len(shown) == len(expected) and set(shown) == set(expected)
    assert [each[0] for each in shown] == sorted((each[0] for each in expected), reverse=True)


FEW_AND_LARGE: list[tuple[Any, Any]] = [
    (["x" * 9000], ["x" * 9000, "y"]),
    (["x" * 9000], ["y", "x" * 9000]),
    (["x" * 4100] * 2, ["x" * 4100] * 3),
    (["x" * 3000] * 20, ["x" * 3000] * 21),
    ([str(number) * 20_000 for number in range(7)], [str(number) * 20_000 for number in range(8)]),
    (["x" * 9_000_000], ["x" * 9_000_000, "y"]),
    ({"a": "x" * 9000}, {"a": "x" * 9000, "b": 1}),
    ({str(number): "x" * 20_000 for number in range(5)}, {str(number): "x" * 20_000 for number in range(6)}),
    (["x" * 40] * 1000, ["x" * 9000]),
    ({str(number): "x" * 40 for number in range(1000)}, {"0": "x" * 9000}),
]


def test_a_channel_of_a_few_large_items_can_be_continued(app: App) -> None:
    saver = AnalemmaSaver(app)
    wrong: list[int] = []
    for number, (first, second) in enumerate(FEW_AND_LARGE):
        config = None
        for value in (first, second, first, second):
            config = put(saver, {"c": value}, config, name=str(number))
            for reader in (saver, AnalemmaSaver(app)):
                found = reader.get_tuple(config)
                if found is None or found.checkpoint["channel_values"] != {"c": value}:
                    wrong.append(number)
    assert wrong == []


class Pair(NamedTuple):
    first: str
    second: list[str]


def test_what_a_serializer_makes_of_a_derived_class_comes_back(app: App) -> None:
    saver = AnalemmaSaver(app)
    before = put(saver, {"c": ["x" * 90] * 200})
    pair = Pair("x" * 9000, ["x" * 90] * 200)
    found = saver.get_tuple(put(saver, {"c": pair}, before))
    assert found is not None
    assert found.checkpoint["channel_values"]["c"] == saver.serde.loads_typed(saver.serde.dumps_typed(pair))


def test_a_checkpoint_that_is_its_own_ancestor_is_found_out(app: App) -> None:
    saver = AnalemmaSaver(app)
    first = put(saver, {"c": 1}, id="a")
    second = put(saver, {"c": 2}, first, id="b")
    put(saver, {"c": 3}, second, id="a")
    with pytest.raises(Corrupt, match="its own ancestor"):
        saver.get_delta_channel_history(config=second, channels=["d"])
