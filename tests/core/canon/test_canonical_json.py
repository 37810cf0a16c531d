"""Canonical JSON against the published vectors of RFC 8785, and what it refuses."""

from __future__ import annotations

import datetime
import decimal
import enum
import struct
import sys
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from analemma.errors import Invalid
from tests.core.entry_points.canon import canonical_json, parse_json

APPENDIX_B = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]

SAMPLES = {
    "arrays": (
        r'[ 56, { "d": true, "10": null, "1": [ ] } ]',
        '[56,{"1":[],"10":null,"d":true}]',
    ),
    "french": (
        """{
             "peach": "This sorting order",
             "péché": "is wrong according to French",
             "pêche": "but canonicalization MUST",
             "sin":   "ignore locale"
           }""",
        '{"peach":"This sorting order","péché":"is wrong according to French",'
        '"pêche":"but canonicalization MUST","sin":"ignore locale"}',
    ),
    "structures": (
        r"""{
              "1": {"f": {"f": "hi","F": 5} ,"\n": 56.0},
              "10": { },
              "": "empty",
              "a": { },
              "111": [ { "e": "yes", "E": "no" } ],
              "A": { }
            }""",
        r'{"":"empty","1":{"\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}',
    ),
    "unicode": (
        '{"Unnormalized Unicode":"A\u030a"}',
        '{"Unnormalized Unicode":"A\u030a"}',
    ),
    "values": (
        r"""{
              "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
              "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
              "literals": [null, true, false]
            }""",
        r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + r"'B\"\\\\\"/" + '"}',
    ),
    "weird": (
        r"""{
              "\u20ac": "Euro Sign",
              "\r": "Carriage Return",
              "\u000a": "Newline",
              "1": "One",
              "\u0080": "Control\u007f",
              "\ud83d\ude02": "Smiley",
              "\u00f6": "Latin Small Letter O With Diaeresis",
              "\ufb33": "Hebrew Letter Dalet With Dagesh",
              "</script>": "Browser Challenge"
            }""",
        r'{"\n":"Newline","\r":"Carriage Return","1":"One","</script>":"Browser Challenge",'
        '"\u0080":"Control\u007f","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign",'
        '"\U0001f602":"Smiley","\ufb33":"Hebrew Letter Dalet With Dagesh"}',
    ),
    "sorting (section 3.2.3)": (
        r"""{
              "\u20ac": "Euro Sign",
              "\r": "Carriage Return",
              "\ufb33": "Hebrew Letter Dalet With Dagesh",
              "1": "One",
              "\ud83d\ude00": "Emoji: Grinning Face",
              "\u0080": "Control",
              "\u00f6": "Latin Small Letter O With Diaeresis"
            }""",
        r'{"\r":"Carriage Return","1":"One",'
        '"\u0080":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign",'
        '"\U0001f600":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}',
    ),
}


def double(bits: str) -> float:
    number: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return number


def test_numbers_of_appendix_b() -> None:
    wrong = []
    for bits, text in APPENDIX_B:
        number = double(bits)
        for value, expected in (
            (number, text),
            ([number], f"[{text}]"),
            ({"a": "1.0,", "n": number}, f'{{"a":"1.0,","n":{text}}}'),
        ):
            if (found := canonical_json(value)) != expected.encode():
                wrong.append((bits, expected, found))
    assert wrong == []


def test_numbers_that_appendix_b_refuses() -> None:
    for bits in ("7fffffffffffffff", "7ff0000000000000", "fff0000000000000", "7ff8000000000000"):
        with pytest.raises(Invalid) as refused:
            canonical_json({"a": [0, double(bits)]})
        assert refused.value.pointer == "/a/1"


def test_published_samples() -> None:
    found = {name: canonical_json(parse_json(source.encode())) for name, (source, _) in SAMPLES.items()}
    assert found == {name: canonical.encode() for name, (_, canonical) in SAMPLES.items()}


def test_the_sample_of_section_3_2_4_byte_for_byte() -> None:
    published = """
        7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72 75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72
        73 22 3a 5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31 65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32
        2c 31 65 2d 32 37 5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30 30 66 5c 6e 41 27 42 5c 22 5c 5c
        5c 5c 5c 22 2f 22 7d
    """
    assert canonical_json(parse_json(SAMPLES["values"][0].encode())) == bytes.fromhex(published)


FORMS: list[tuple[Any, str]] = [
    (1.0, "1"),
    ([-0.0, 0.0], "[0,0]"),
    ({"a": -0.0}, '{"a":0}'),
    ([1e15, 1e16, 1e20, 1e21, 1e22], "[1000000000000000,10000000000000000,100000000000000000000,1e+21,1e+22]"),
    ([1e-4, 1e-5, 1.5e-5, 1e-6, -1.5e-6, 1e-7], "[0.0001,0.00001,0.000015,0.000001,-0.0000015,1e-7]"),
    ([2.0**53, 2.0**53 + 2, -(2.0**53)], "[9007199254740992,9007199254740994,-9007199254740992]"),
    ([2.0, "2.0,", 2.0], '[2,"2.0,",2]'),
    ([2e-6, "2e-6", 2e-6], '[0.000002,"2e-6",0.000002]'),
    ([2e-6, 2e-60, 2e-6], "[0.000002,2e-60,0.000002]"),
    ([2e-6, 1.0, 1e-9, 0.5], "[0.000002,1,1e-9,0.5]"),
    ("\x7f\u2028</script>/", '"\x7f\u2028</script>/"'),
    ('\b\t\n\f\r\x00\x1f"\\', r'"\b\t\n\f\r\u0000\u001f\"\\"'),
    ([True, 1, 1.0, False, None], "[true,1,1,false,null]"),
    ({}, "{}"),
    ([[], {}], "[[],{}]"),
]


def test_forms() -> None:
    wrong = [(value, text) for value, text in FORMS if canonical_json(value) != text.encode()]
    assert wrong == []


def test_integers_keep_their_digits() -> None:
    for exponent in (53, 62, 63, 64, 65, 200, 15000, 50000):
        for number in (2**exponent - 1, 2**exponent, 2**exponent + 1):
            for signed in (number, -number):
                written = canonical_json({"n": [signed]})
                assert parse_json(written) == {"n": [signed]}
                if exponent < 1000:
                    assert written == f'{{"n":[{signed}]}}'.encode()


@pytest.fixture
def strict_digit_limit() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.usefixtures("strict_digit_limit")
def test_integers_keep_their_digits_whatever_the_limit_of_the_process() -> None:
    number = 10**2000 + 7
    assert canonical_json(number) == b"1" + b"0" * 1999 + b"7"
    assert parse_json(canonical_json([-number, 10**1200])) == [-number, 10**1200]


def test_keys_are_ordered_by_utf16_units_in_every_object() -> None:
    keys = ["\ue000", "\U00010000", "\uffff", "a", "\U0010ffff", "\ud7ff"]
    inner = dict.fromkeys(keys, 1.0)
    value = {"x": [inner, 2**70], **dict.fromkeys(keys, inner)}
    ordered = ["a", "\ud7ff", "\U00010000", "\U0010ffff", "\ue000", "\uffff"]
    text = canonical_json(value)
    assert list(orjson.loads(text)) == ["a", "x", *ordered[1:]]
    assert list(orjson.loads(text)["x"][0]) == ordered
    assert list(orjson.loads(text)["\uffff"]) == ordered
    assert b".0" not in text


def test_values_that_mix_planes_do_not_matter_when_keys_do_not() -> None:
    value = {"b": "\U0001f600\uff01", "a": ["\ue000", "\U0010ffff"]}
    assert canonical_json(value) == '{"a":["\ue000","\U0010ffff"],"b":"\U0001f600\uff01"}'.encode()


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Items(list[int]):
    pass


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ANN = "ann"


Pair = namedtuple("Pair", "a b")


CULPRITS: list[Any] = [
    (),
    (1, 2),
    Pair(1, 2),
    {1},
    frozenset(),
    b"bytes",
    bytearray(b"bytes"),
    1j,
    uuid.UUID(int=1),
    decimal.Decimal(1),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    datetime.date(2024, 1, 1),
    datetime.time(1),
    Text("a"),
    Number(1),
    Real(1),
    Items([1]),
    OrderedDict(a=1),
    Colour.RED,
    Level.LOW,
    Name.ANN,
    orjson.Fragment(b"1"),
    object(),
    float("nan"),
    float("inf"),
    float("-inf"),
    "\ud800",
    "a\udfff",
    {1: 2},
    {None: 2},
    {("a",): 2},
    {Text("k"): 1},
    {"\ud800": 1},
]


def test_what_is_not_json_is_refused_where_it_stands() -> None:
    """Alone, and beside an integer that takes another way."""
    for culprit in CULPRITS:
        below = "/" + str(*culprit).replace("\ud800", r"\ud800") if type(culprit) is dict else ""
        wrapped = {"a/b": [0, {"~": culprit}]}
        for value in (wrapped, {**wrapped, "z": [2**70]}):
            with pytest.raises(Invalid) as refused:
                canonical_json(value)
            assert refused.value.pointer == "/a~1b/1/~0" + below
            assert refused.value.pointer in refused.value.message
            refused.value.message.encode()
        with pytest.raises(Invalid) as refused:
            canonical_json(culprit)
        assert refused.value.pointer == below


def nested(depth: int, innermost: Any, wrap: Callable[[Any], Any] = lambda x: [x]) -> Any:
    value = innermost
    for _ in range(depth):
        value = wrap(value)
    return value


def test_128_levels_are_the_limit() -> None:
    innermosts: list[Any] = [[], {}, [1], {"a": 1.5}, [2**70]]
    for innermost in innermosts:
        deepest = canonical_json(nested(127, innermost))
        assert canonical_json(parse_json(deepest)) == deepest
        for extra in (1, 60, 300, 3000):
            with pytest.raises(Invalid) as refused:
                canonical_json(nested(127 + extra, innermost))
            assert refused.value.pointer == "/0" * 128
    for extra in (1, 60, 300, 3000):
        with pytest.raises(Invalid):
            parse_json(b"[" * (127 + extra) + b"[]" + b"]" * (127 + extra))


def test_cycles_are_refused_where_they_close() -> None:
    items: list[Any] = [1]
    value = {"a": {"b": items}}
    items += [value["a"], value["a"]]
    with pytest.raises(Invalid) as refused:
        canonical_json(value)
    assert refused.value.pointer == "/a/b/1"
    assert "contains itself" in refused.value.message


def test_a_value_used_twice_is_no_cycle() -> None:
    shared = [1.0]
    assert canonical_json([shared, shared, {"a": shared}]) == b'[[1],[1],{"a":[1]}]'


TWICE = [
    ('{"a":1,"a":1}', "/a"),
    ('{"a":1,"\\u0061":1}', "/a"),
    ('[0,{"x":{"a":[],"b":{},"b":{}}}]', "/1/x/b"),
    ('{"a":{"b":1,"b":2},"a":1}', "/a"),
    ('{"a":"\\u003a","a":":"}', "/a"),
    ('{"a":1,"a":"\\u003a"}', "/a"),
    ('{"a":1,"a":"\\u003A"}', "/a"),
    ('{"\\u003A":1,":":2}', "/:"),
    ('{"x/y":{"":1,"":2}}', "/x~1y/"),
    ('{"a":1.5,"a":123456789012345678901234567890}', "/a"),
]


def test_duplicate_keys_are_refused() -> None:
    told = []
    for text, _ in TWICE:
        with pytest.raises(Invalid) as refused:
            parse_json(text.encode())
        told.append(refused.value.pointer)
    assert told == [pointer for _, pointer in TWICE]


def read(texts: list[bytes]) -> list[bytes]:
    """Those that are taken for JSON."""
    found = []
    for text in texts:
        try:
            parse_json(text)
        except Invalid:
            continue
        found.append(text)
    return found


def test_a_huge_integer_does_not_make_the_rest_lax() -> None:
    lax = [
        b"[NaN,%b]",
        b"[1e400,%b]",
        b'["\\ud800",%b]',
        b'["\xff",%b]',
        b"[%b",
        b'[{"a":1,"a":2},%b]',
        b"[-Infinity,%b]",
    ]
    assert read([text % (b"9" * 400) for text in lax]) == []


def test_a_duplicate_that_hides_deep_nesting_is_refused() -> None:
    with pytest.raises(Invalid):
        parse_json(b'{"a":' + b"[" * 1000 + b"]" * 1000 + b',"a":1}')


def test_text_that_is_not_json_is_refused() -> None:
    texts = [
        b"",
        b" ",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e400",
        b"-1e400",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b"\xef\xbb\xbf1",
        b"01",
        b"+1",
        b"1.",
        b".5",
        b"[1,]",
        b"{'a':1}",
        b"{a:1}",
        b"[1 2]",
        b"1 2",
        b'"\x01"',
        b"/* */ 1",
        b"nul",
    ]
    assert read(texts) == []


def test_numbers_and_strings_are_read_exactly() -> None:
    texts: list[tuple[bytes, Any]] = [
        (b' {"a" : [1, 2.0, -0, -0.0, 1E2] } \n', {"a": [1, 2.0, 0, -0.0, 100.0]}),
        (b"18446744073709551615", 18446744073709551615),
        (b"18446744073709551616", 18446744073709551616),
        (b"-9223372036854775808", -9223372036854775808),
        (b"-9223372036854775809", -9223372036854775809),
        (b"[1e25,123456789012345678901234567890,1.5]", [1e25, 123456789012345678901234567890, 1.5]),
        (b"[6.02e23,0.000012345678901234567890]", [6.02e23, 0.000012345678901234567890]),
        (b'{"\\u003a":"a\\u003a:b",":a":{"b":":"}}', {":": "a::b", ":a": {"b": ":"}}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
    ]
    wrong = [(text, found) for text, value in texts if repr(found := parse_json(text)) != repr(value)]
    assert wrong == []
