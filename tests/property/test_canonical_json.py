"""Canonical JSON agrees with an independent implementation, refuses where it should, and survives reading back."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from analemma.errors import Invalid
from tests.core.entry_points.canon import canonical_json, parse_json
from tests.depth import count

DOCUMENTS_PER_SEED = count(test=2_500, deep=10_000)
SEEDS = range(count(test=2, deep=21))
EXAMPLES = settings(max_examples=count(test=40, deep=100))

EDGE_FLOATS: list[float] = [
    *(
        sign * x
        for sign in (1.0, -1.0)
        for x in (0.0, 0.5, 1.0, 1.5, 5e-324, 2.2250738585072014e-308, 2.0**53, 2.0**53 + 2)
    ),
    *(
        sign * 10.0**exponent * x
        for sign in (1, -1)
        for exponent in (*range(-9, -2), *range(14, 24))
        for x in (1, 1.5, 0.3)
    ),
    *(
        math.nextafter(edge, toward)
        for edge in (1e-7, 1e-6, 1e-5, 1e15, 1e16, 1e21, 2.0**53)
        for toward in (0, math.inf)
    ),
    1.7976931348623157e308,
    1e23,
    333333333.33333329,
]
EDGE_INTEGERS = [0, 1, -1, 255, 2**31, -(2**31), 2**53 - 1, 1 - 2**53]
BIG_INTEGERS = [2**53, -(2**53), 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30, -(10**400)]
# Keys and strings in which the two orders differ, that need escapes, or that look like numbers the encoder wrote.
WORDS = [
    "", "a", "b", "ab", "A", "10", "9", "é", "\u0080", "\x00", "\x1f", "\x7f", "\n", '"', "\\", "/", "€", "서울",
    "\ud7ff", "\ue000", "\ufb33", "\ufffd", "\uffff", "\uff01!", "\U00010000", "\U0001f600", "\U0010ffff",
    "a\U0001f600", "a\uff01", "1.0,", "-0.0]", ".0}", "[2.0,", "1e-6,", "5e-6", "e-6", "null", "1e+21", ":", "\u2028",
]  # fmt: skip


class Documents:
    """A seeded source of JSON values; the standard generators of property testing are too slow for this many."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def float_(self) -> float:
        dice = self.random.random()
        if dice < 0.4:
            return self.random.choice(EDGE_FLOATS)
        if dice < 0.6:
            return float(self.random.randrange(-1000, 1000))
        if dice < 0.8:
            return self.random.gauss(0, float(10 ** self.random.randrange(-8, 24)))
        return self.any_double()

    def any_double(self) -> float:
        number: float = struct.unpack("d", self.random.randbytes(8))[0]
        return number if math.isfinite(number) else 0.1

    def scalar(self) -> Any:
        dice = self.random.random()
        if dice < 0.35:
            return self.float_()
        if dice < 0.7:
            return self.random.choice(WORDS)
        if dice < 0.8:
            return self.random.choice(EDGE_INTEGERS)
        if dice < 0.9:
            return self.random.randrange(-(2**53) + 1, 2**53)
        return self.random.choice((None, True, False))

    def value(self, depth: int = 0) -> Any:
        dice = self.random.random()
        if dice < 0.4 or depth == 4:
            return self.scalar()
        if dice < 0.6:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if dice < 0.65:
            return [self.float_() for _ in range(self.random.randrange(8))]
        return {key: self.value(depth + 1) for key in self.random.sample(WORDS, self.random.randrange(5))}


@pytest.mark.parametrize("seed", SEEDS)
def test_agrees_with_rfc8785_on_documents(seed: int) -> None:
    documents = Documents(seed)
    for _ in range(DOCUMENTS_PER_SEED):
        value = documents.value()
        text = canonical_json(value)
        assert text == rfc8785.dumps(value)
        assert canonical_json(parse_json(text)) == text


@pytest.mark.parametrize("seed", range(count(test=1, deep=4)))
def test_agrees_with_rfc8785_on_arbitrary_doubles(seed: int) -> None:
    documents = Documents(seed)
    numbers = [documents.any_double() for _ in range(count(test=20_000, deep=50_000))]
    expected = rfc8785.dumps(numbers)
    assert canonical_json(numbers) == expected
    assert [canonical_json(x) for x in numbers[:2000]] == expected[1:].split(b",")[:2000]
    assert list(map(float, parse_json(expected))) == numbers


def test_agrees_with_rfc8785_on_edges_alone_and_together() -> None:
    wrong = []
    for number in EDGE_FLOATS:
        together: list[Any] = [[number, number], [number, 1.0, 0.1], [number, 5e-6], {"a": "1.0,", "b": number}]
        for value in (number, [number], {"a": number}, *together):
            if canonical_json(value) != rfc8785.dumps(value):
                wrong.append(value)
    assert wrong == []


def test_integers_beyond_2_to_53_differ_from_rfc8785_only_in_being_allowed() -> None:
    documents = Documents(0)

    def with_big_integers(value: Any) -> Any:
        if type(value) is list:
            return [with_big_integers(x) for x in value]
        if type(value) is dict:
            return {key: with_big_integers(x) for key, x in value.items()}
        return documents.random.choice(BIG_INTEGERS) if documents.random.random() < 0.2 else value

    def marked(value: Any) -> Any:
        if type(value) is list:
            return [marked(x) for x in value]
        if type(value) is dict:
            return {key: marked(x) for key, x in value.items()}
        return f"#{value}#" if type(value) is int and abs(value) >= 2**53 else value

    for _ in range(count(test=1_500, deep=5_000)):
        value = with_big_integers(documents.value())
        expected = re.sub(rb'"#(-?[0-9]+)#"', rb"\1", rfc8785.dumps(marked(value)))
        text = canonical_json(value)
        assert text == expected
        assert canonical_json(parse_json(text)) == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=25,
)
surrogates = st.characters(categories=["Cs"])
culprits = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, (), (1,), b"", {1}, object(), 1j]),
    st.tuples(st.text(), surrogates, st.text()).map("".join),
)


@EXAMPLES
@given(json_values)
def test_reading_back_gives_the_same_bytes(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(parse_json(text)) == text


@EXAMPLES
@given(st.data())
def test_equal_values_have_equal_bytes_whatever_the_order_of_insertion(data: st.DataObject) -> None:
    members = data.draw(st.dictionaries(st.text(), json_values, max_size=8))
    shuffled = dict(data.draw(st.permutations(list(members.items()))))
    assert canonical_json(shuffled) == canonical_json(members)


@EXAMPLES
@given(st.data())
def test_a_culprit_is_reported_where_it_stands(data: st.DataObject) -> None:
    value = data.draw(culprits)
    path: list[str | int] = []
    for _ in range(data.draw(st.integers(0, 6))):
        # What comes after the culprit may be wrong too: the first one in document order is reported.
        around = json_values | culprits
        if data.draw(st.booleans()):
            before = data.draw(st.lists(json_values, max_size=3))
            value = [*before, value, *data.draw(st.lists(around, max_size=2))]
            path.insert(0, len(before))
        else:
            members = data.draw(st.dictionaries(st.text(), json_values, max_size=3))
            key = "culprit" + data.draw(st.text())
            members.pop(key, None)
            value = {**members, key: value, "after" + key * 3: data.draw(around)}
            path.insert(0, key)
    with pytest.raises(Invalid) as refused:
        canonical_json(value)
    escaped = [str(token).replace("~", "~0").replace("/", "~1") for token in path]
    assert refused.value.pointer == "".join(f"/{token}" for token in escaped)


@EXAMPLES
@given(json_values, st.data())
def test_a_key_given_twice_is_found_however_it_is_written(value: Any, data: st.DataObject) -> None:
    twice = False

    def write(value: Any) -> str:
        nonlocal twice
        space = data.draw(st.sampled_from(["", " ", "\n\t"]))
        if type(value) is list:
            return space + "[" + ",".join(map(write, value)) + space + "]"
        if type(value) is dict:
            members = [(key, write(x)) for key, x in value.items()]
            if members and data.draw(st.integers(0, 9)) == 0:
                twice = True
                members.append((members[0][0], data.draw(st.sampled_from(["1", '"\\u003a"', '{":":":"}']))))
            return space + "{" + ",".join(f"{write(key)}:{text}" for key, text in members) + "}" + space
        if type(value) is str:
            escaped = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
            return escaped.replace(":", r"\u003a") if data.draw(st.booleans()) else escaped
        return space + json.dumps(value)

    text = write(value).encode()
    if twice:
        with pytest.raises(Invalid):
            parse_json(text)
    else:
        assert repr(parse_json(text)) == repr(value)
