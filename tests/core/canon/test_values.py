"""Which values can be stored, exactly how they come back, and which are refused where."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from decimal import Decimal
from hashlib import sha256
from typing import Any
from zoneinfo import ZoneInfo

import pydantic
import pytest

from analemma import BlockId, Operation, Tagged
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.testing.strategies import EDGE_SCALARS, LOOK_ALIKES, shown
from tests.core.canon.memory_blocks import MemoryBlocks
from tests.core.entry_points.canon import Trees, admit_block, standard_registry


class Colour(enum.Enum):
    RED = "red"
    SCARLET = "red"  # noqa: PIE796


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ANN = "ann"


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    tags: tuple[str, ...]


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    n: int
    inner: Point | None = None
    _secret: int = pydantic.PrivateAttr(default=5)


SUPPORTED: list[Any] = [
    *EDGE_SCALARS,
    *LOOK_ALIKES,
    [], {}, [[]], [{}], {"a": None}, {"": 1}, {"": 1, "a": 2}, {"/": 1, "~": 2, "~0": 3},
    dt.datetime(2024, 2, 29, 23, 59, 59, 999999),
    dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
    dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Paris"), fold=1),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30))),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
    dt.datetime.min, dt.datetime.max,
    dt.date(1, 1, 1), dt.time(1, 2, 3, 4), dt.time(1, tzinfo=dt.UTC), dt.timedelta(days=-1, microseconds=5),
    Decimal("1.10"), Decimal("-0"), Decimal("1E+100"), uuid.UUID(int=2**127),
    (), (1, (2.0, "x")), set(), {1, 2, 3}, frozenset({"a", "b"}), {frozenset({1}), (1, 2)},
    Colour.RED, Colour.SCARLET, Level.LOW, Name.ANN, Permission.READ | Permission.WRITE, Permission(0),
    Point(1, [Point(2)]), Frozen(("a",)), Model(n=1),
    Model.model_validate({"n": 2, "inner": Point(3), "other": "kept"}),
    "x" * 100_000, b"\x01\x71\x12\x20" * 20_000, ["y" * 3000] * 3,
]  # fmt: skip


def test_supported_values_come_back_exactly() -> None:
    blocks = MemoryBlocks()
    wrong = []
    for value in SUPPORTED:
        for stored in (value, [value], {"k": value}, (value,)):
            found = blocks.trees.read(blocks.build(stored))
            if shown(found) != shown(stored):
                wrong.append((stored, found))
    assert wrong == []


def test_private_and_extra_fields_of_a_model_come_back() -> None:
    blocks = MemoryBlocks()
    model = Model(n=1, other=[1])  # type: ignore[call-arg]
    model._secret = 9
    again = blocks.trees.read(blocks.build([model]))[0]
    assert (again, again._secret, again.model_fields_set) == (model, 9, {"n", "other"})


def cyclic_list() -> list[Any]:
    value: list[Any] = [1, {"deep": []}]
    value[1]["deep"].append(value)
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Text(str):
    pass


Pair = namedtuple("Pair", "a b")

REFUSED: list[tuple[Any, str]] = [
    ({"a": [1, float("nan")]}, "/a/1"),
    ({"a": {"b": float("inf")}}, "/a/b"),
    ([float("-inf")], "/0"),
    ({"a": {1: 2}}, "/a/1"),
    ({"a": {None: 2}}, "/a/None"),
    ({"a/b": {"~": "\ud800"}}, "/a~1b/~0"),
    ({"k": {"\udfff": 1}}, "/k/\udfff"),
    ([2**64], "/0"),
    ([-(2**63) - 1], "/0"),
    ({"a": {"b": [1, -(2**63) - 1]}}, "/a/b/1"),
    ({"a": {"b": {"n": -(2**64)}}}, "/a/b/n"),
    ({"x": object()}, "/x"),
    ({"x": [Text("flat")]}, "/x/0"),
    ({"x": OrderedDict(a=1)}, "/x"),
    ({"x": defaultdict(int)}, "/x"),
    ({"x": Pair(1, 2)}, "/x"),
    ({"x": bytearray(b"1")}, "/x"),
    ({"x": 1j}, "/x"),
    ({"x": Decimal("NaN")}, "/x"),
    ({"x": (1, {"y": float("nan")})}, "/x/1/y"),
    ({"x": Point(1, float("nan"))}, "/x/y"),
    (cyclic_list(), "/1/deep/0"),
    ({"a": nested(128)}, "/a" + "/0" * 127),
    (nested(129), "/0" * 128),
    ({"a": nested(100_000)}, "/a" + "/0" * 127),
    (float("nan"), ""),
    ({"big": ["x" * 3000, {"y" * 3000: [1, 2, float("nan")]}]}, "/big/1/" + "y" * 3000 + "/2"),
]


def test_refused_values_are_named_by_their_pointers() -> None:
    trees = MemoryBlocks().trees
    told = []
    for value, _ in REFUSED:
        with pytest.raises(Invalid) as caught:
            trees.build(value)
        assert caught.value.hint
        told.append(caught.value.pointer)
    assert told == [pointer for _, pointer in REFUSED]


def test_nesting_of_128_is_stored() -> None:
    blocks = MemoryBlocks()
    assert blocks.trees.read(blocks.build(nested(128))) == nested(128)


def test_unregistered_type_is_refused_or_kept_but_never_guessed() -> None:
    blocks = MemoryBlocks()
    root = blocks.build({"p": Point(1)})
    stranger = Trees(blocks.fetch, standard_registry())
    with pytest.raises(Invalid, match="registered"):
        stranger.read(root)
    keeper = Trees(blocks.fetch, standard_registry(), "keep")
    kept = keeper.read(root)
    assert kept == {"p": Tagged(f"{__name__}:Point", {"x": 1, "y": None})}
    assert keeper.build(kept).root.id == root


def test_a_type_of_ones_own_can_be_taught() -> None:
    blocks = MemoryBlocks()
    blocks.trees.registry.add(complex, name="complex", encode=lambda z: [z.real, z.imag], decode=lambda p: complex(*p))
    assert blocks.trees.read(blocks.build([1j, 2 + 0j])) == [1j, 2 + 0j]


def test_a_name_cannot_be_taken_from_another_type() -> None:
    registry = standard_registry()
    with pytest.raises(Invalid, match="already belongs"):
        registry.add(complex, name="uuid", encode=str, decode=complex)
    with pytest.raises(Invalid, match="reserved"):
        registry.add(complex, name="map", encode=str, decode=complex)


def test_values_read_twice_share_no_container() -> None:
    blocks = MemoryBlocks()
    item = {"text": "z" * 2500, "list": [1]}
    value = blocks.trees.read(blocks.build({"a": item, "b": item, "c": [item, item]}))
    value["a"]["list"].append(2)
    assert value["b"]["list"] == [1] and value["c"][0]["list"] == [1]
    assert value["c"][0] is not value["c"][1]


def test_a_block_from_outside_must_be_canonical() -> None:
    good = MemoryBlocks().trees.build({"a": [1, "x", b"bytes", -0.0]}).blocks[0].data
    assert admit_block(good).id == sha256(good).digest()
    hostile = {
        "a longer integer than needed": b"\x84\x64list\x00\x00\x81\x18\x01",
        "unsorted keys": b"\x84\x63map\x00\x00\xa2\x62aa\x01\x61b\x02",
        "a float that should be tagged": b"\x84\x64list\x00\x00\x81\xfb\x80\x00\x00\x00\x00\x00\x00\x00",
        "an infinity": b"\x84\x64list\x00\x00\x81\xfb\x7f\xf0\x00\x00\x00\x00\x00\x00",
        "trailing bytes": good + b"\x00",
        "not CBOR": b"\xff\xff",
        "deep nesting": b"\x81" * 100_000 + b"\x01",
        "nothing": b"",
    }
    for name, data in hostile.items():
        try:
            admit_block(data)
        except Corrupt:
            continue
        pytest.fail(f"admitted {name}")
    with pytest.raises(Corrupt, match="other bytes"):
        admit_block(good, BlockId(sha256(b"another").digest()))


def test_stored_bytes_do_not_depend_on_the_decimal_context() -> None:
    trees = MemoryBlocks().trees
    with decimal.localcontext() as context:
        usual = trees.build(Decimal("1E+5")).root.id
        context.capitals = 0
        assert trees.build(Decimal("1E+5")).root.id == usual


@dataclasses.dataclass
class Failure(Exception):
    code: int


@dataclasses.dataclass
class Careless:
    a: int

    def __post_init__(self) -> None:
        self.secret = 1


@dataclasses.dataclass
class Unset:
    late: int = dataclasses.field(init=False)


def test_what_would_not_come_back_is_refused_with_a_pointer() -> None:
    # An exception, an attribute outside the fields, a field that is not set, tags that are none, and a huge key.
    values = [Failure(1), Careless(1), Unset(), Tagged("set", 3), Tagged("map", 1), Tagged("", 1), {10**5000: 1}]
    for value in values:
        with pytest.raises(Invalid) as caught:
            MemoryBlocks().trees.build({"x": value})
        assert caught.value.pointer.startswith("/x")


def test_a_class_defined_again_replaces_the_older_one_and_refuses_its_values() -> None:
    blocks = MemoryBlocks()
    older = dataclasses.make_dataclass("Twin", [("n", int)])(1)
    root = blocks.build([older])
    newer = dataclasses.make_dataclass("Twin", [("n", int)])
    assert blocks.build([newer(1)]) == root
    assert type(blocks.trees.read(root)[0]) is newer
    with pytest.raises(Invalid, match="defined again"):
        blocks.trees.build([older])


def test_a_model_keeps_the_order_of_its_fields() -> None:
    class Ordered(pydantic.BaseModel):
        longer: int
        b: int

    blocks = MemoryBlocks()
    model = blocks.trees.read(blocks.build([Ordered(longer=1, b=2)]))[0]
    assert list(model.model_dump()) == ["longer", "b"]


def test_hostile_paths_are_refused() -> None:
    blocks = MemoryBlocks()
    root = blocks.build({"l": [1]})
    for operation in (Operation("put", ("\ud800",), 1), Operation("test", ("a",), 1)):  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            blocks.trees.edit(root, [operation])
    with pytest.raises(NotFound):
        blocks.trees.get(root, "/l/" + "9" * 5000)
    with pytest.raises(Invalid):
        blocks.trees.get(root, "/~~01")


def test_what_a_cached_property_of_a_model_worked_out_is_no_part_of_it() -> None:
    class Cached(pydantic.BaseModel):
        n: int

        @functools.cached_property
        def lock(self) -> object:
            return object()

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @functools.cached_property
        def doubled(self) -> int:
            return self.n * 2

    trees = Trees(MemoryBlocks().fetch, standard_registry())
    model = Cached(n=3)
    before = trees.build({"model": model}).root.id
    assert model.lock is model.lock and model.doubled == 6
    assert trees.build({"model": model}).root.id == before
