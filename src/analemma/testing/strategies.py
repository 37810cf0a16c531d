"""Values and edits for property tests: hypothesis strategies, and a seeded generator for bulk runs."""

from __future__ import annotations

import copy
import datetime as dt
import random
import uuid
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from analemma.canon.nodes import CID_PREFIX
from analemma.canon.pointer import Operation, Path

LOOK_ALIKES: list[Any] = [
    {"": []},
    {"": ["map", 1]},
    {"": ["float", "-0.0"]},
    {"": ["datetime", "2020-01-01"]},
    {"": [CID_PREFIX + b"\x00" * 32, "map", 1, 1, 0]},
    {"": {"": {"": None}}},
    {"/": CID_PREFIX + b"\x01" * 32},
    {"/": {"bytes": "AAAA"}},
    {"__pointer__": 1, "hash": "00", "size_bytes": 1},
    {"__s3_pointer__": "s3://bucket/key"},
    CID_PREFIX + b"\x02" * 32,
    b"\x00" + CID_PREFIX + b"\x02" * 32,
    b"\x12\x20" + b"\x03" * 32,
]
"""What users may store that resembles what the encoding writes."""

EDGE_SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 23, 24, 255, 256, 65535, 65536, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63),
    0.0, -0.0, 1.0, 1e16, 1e21, 5e-324, 1.7976931348623157e308, "", "a", "\x00", "é", "\ue000", "\U0001f600", b"",
    b"\x00",
]  # fmt: skip


def scalars() -> st.SearchStrategy[Any]:
    """Everything that is stored without a container."""
    return st.one_of(
        st.sampled_from(EDGE_SCALARS),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
        st.binary(max_size=40),
        st.sampled_from(LOOK_ALIKES).map(copy.deepcopy),
    )


def tagged() -> st.SearchStrategy[Any]:
    """Types of the standard library that are stored in a tagged form."""
    return st.one_of(
        st.datetimes(timezones=st.none() | st.just(dt.UTC) | st.timezones()),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.decimals(allow_nan=False, allow_infinity=False),
        st.uuids(),
        st.frozensets(st.integers(-5, 5) | st.text(max_size=3), max_size=5),
        st.sets(st.integers(-5, 5), max_size=5),
        st.tuples(st.integers(-9, 9), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    )


def values(*, tags: bool = True) -> st.SearchStrategy[Any]:
    """Any value that can be stored."""
    leaves = st.one_of(scalars(), tagged()) if tags else scalars()
    keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=6),
        max_leaves=40,
    )


class SeededValues:
    """Random values and edits, large ones included, thousands a second; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._earlier: list[Any] = []

    def scalar(self) -> Any:
        """A scalar, of an edge case or of any size."""
        pick = self.random
        kind = pick.randrange(8)
        if kind == 0:
            return pick.choice(EDGE_SCALARS)
        if kind == 1:
            return copy.deepcopy(pick.choice(LOOK_ALIKES))
        if kind == 2:
            return pick.choice("aé\U0001f600") * pick.choice([1, 10, 700, 2043, 2046, 5000])
        if kind == 3:
            return pick.randbytes(pick.choice([1, 36, 200, 2044, 5000]))
        if kind == 4:
            return pick.choice(
                [dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.UTC), Decimal("1.10"), uuid.UUID(int=7), (1, "x"), {3, 1, 2}]
            )
        return pick.choice([pick.getrandbits(40), pick.random(), f"text {pick.getrandbits(20)}"])

    def value(self, depth: int = 0) -> Any:
        """A scalar or, in the upper levels often, a container."""
        pick = self.random
        if depth > 4 or pick.random() < 0.2 + 0.15 * depth:
            return self.scalar()
        return self.container(depth)

    def container(self, depth: int = 0) -> Any:
        """A list or dict."""
        pick = self.random
        size = pick.choice([0, 1, 3, 20, 150]) if depth < 2 else pick.choice([0, 1, 3])
        if pick.random() < 0.5:
            item = self.value(depth + 1)
            return [copy.deepcopy(item) if pick.random() < 0.3 else self.value(depth + 1) for _ in range(size)]
        return {self.key(): self.value(depth + 1) for _ in range(size)}

    def key(self) -> str:
        """A dict key; awkward ones are common."""
        return self.random.choice(["", "/", "~", "~1", "-", "0", "é", "k", "key "]) + str(self.random.randrange(400))

    def edits(self, value: Any, count: int) -> list[Operation]:
        """That many operations, each already applied to `value`, which is changed."""
        return [self._edit(value) for _ in range(count)]

    def _fresh(self) -> Any:
        """A new value, often one that was put before, here or elsewhere: shared blocks are where mistakes hide."""
        pick = self.random
        if self._earlier and pick.random() < 0.3:
            return copy.deepcopy(pick.choice(self._earlier[-5:]))
        fresh = self.value(pick.choice([1, 3, 3, 3]))
        self._earlier.append(copy.deepcopy(fresh))
        return fresh

    def _replace_all(self, value: Any) -> Operation:
        fresh = type(value)(copy.deepcopy(value))
        if isinstance(value, dict):
            fresh[self.key()] = self._fresh()
            value.clear()
            value.update(copy.deepcopy(fresh))
        else:
            fresh.insert(0, self._fresh())
            value[:] = copy.deepcopy(fresh)
        return Operation("replace", (), fresh)

    def _edit(self, value: Any) -> Operation:
        pick = self.random
        path, container = pick.choice(_containers(value)[: pick.choice([1, 5, 10_000])])
        fresh = self._fresh()
        kept = copy.deepcopy(fresh)
        if pick.random() < 0.02:
            return self._replace_all(value)
        if isinstance(container, dict):
            if container and pick.random() < 0.6:
                key = pick.choice(list(container))
                if pick.random() < 0.5:
                    del container[key]
                    return Operation("remove", (*path, key))
                container[key] = kept
                return Operation("replace", (*path, key), fresh)
            key = self.key()
            container[key] = kept
            return Operation(pick.choice(["put", "add"]), (*path, key), fresh)
        position = pick.randrange(len(container) + 1)
        if position < len(container) and pick.random() < 0.6:
            if pick.random() < 0.5:
                del container[position]
                return Operation("remove", (*path, str(position)))
            container[position] = kept
            return Operation(pick.choice(["put", "replace"]), (*path, str(position)), fresh)
        token = "-" if position == len(container) and pick.random() < 0.5 else str(position)
        container.insert(position, kept)
        return Operation("add", (*path, token), fresh)


def _containers(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    found: list[tuple[Path, Any]] = []
    if type(value) in (dict, list):
        found.append((path, value))
        pairs = value.items() if type(value) is dict else enumerate(value)
        for token, inner in pairs:
            found += _containers(inner, (*path, str(token)))
    return found


def shown(value: Any) -> str:
    """A text that tells apart what `==` does not (1 and True, 0.0 and -0.0), whatever the order of keys and set
    items."""
    if type(value) is dict:
        return "{" + ", ".join(f"{key!r}: {shown(value[key])}" for key in sorted(value)) + "}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}({sorted(map(shown, value))})"
    return repr(value)
