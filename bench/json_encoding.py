"""Canonical JSON beside plain sorted orjson, which does not check, and beside the pure Python reference."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from math import isfinite
from typing import Any

import orjson
import rfc8785

from analemma.canon.canonical_json import canonical_json, parse_json
from bench.harness import Row, alternate

FLOAT_FREE_LIMIT = 2.0
FLOAT_HEAVY_LIMIT = 8.0

WORDS = ("state", "commit", "head", "journal", "block", "manifest", "lease", "fence", "order", "shop", "café", "서울")


class Documents:
    """Seeded documents of the kinds the pipeline sees."""

    def __init__(self) -> None:
        self.random = random.Random(20)

    def text(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS, k=words))

    def book(self, number: int) -> dict[str, Any]:
        return {
            "id": f"978-{number:09d}",
            "title": self.text(4),
            "subtitle": self.text(3) if number % 3 else None,
            "stock": self.random.randrange(1000),
            "active": self.random.random() < 0.5,
            "author": {"id": f"A{number % 97}", "name": self.text(2), "country": "KR"},
            "tags": self.random.choices(WORDS, k=5),
            "dimensions": {"width": self.random.randrange(100), "height": self.random.randrange(300), "unit": "mm"},
            "reviews": [
                {"user": f"u{number}", "stars": self.random.randrange(1, 6), "text": self.text(12)} for _ in range(3)
            ],
        }

    def messages(self, count: int) -> dict[str, Any]:
        messages = [
            {"role": self.random.choice(["user", "assistant"]), "content": self.text(200), "id": f"m{number}"}
            for number in range(count)
        ]
        return {"messages": messages, "scratch": {"plan": self.text(60), "step": 17}}

    def wide(self, fields: int) -> dict[str, Any]:
        return {f"field_{n}": self.random.choice([n, self.text(2), None, True]) for n in range(fields)}

    def integers(self, count: int) -> dict[str, Any]:
        return {"series": [self.random.randrange(10**6) for _ in range(count)]}

    def vectors(self, count: int) -> dict[str, Any]:
        return {"vectors": [[self.random.gauss(0, 0.03) for _ in range(384)] for _ in range(count)]}

    def offers(self, count: int) -> list[dict[str, Any]]:
        return [
            {
                "id": number,
                "name": self.text(2),
                "latitude": self.random.uniform(-90, 90),
                "longitude": self.random.uniform(-180, 180),
                "price": round(self.random.uniform(1, 100), 2),
                "quantity": float(self.random.randrange(10)),
                "score": self.random.random(),
            }
            for number in range(count)
        ]

    def whole_floats(self, count: int) -> list[float]:
        return [float(self.random.randrange(1000)) for _ in range(count)]

    def bit_patterns(self, count: int) -> list[float]:
        return list(filter(isfinite, struct.unpack(f"{count}d", self.random.randbytes(8 * count))))


def run(quick: bool) -> Iterator[Row]:
    documents = Documents()
    rounds = 15 if quick else 61
    float_free: dict[str, Any] = {
        "100 books": [documents.book(n) for n in range(100)],
        "40 messages of 1.3 KB": documents.messages(40),
        "2,000 fields": documents.wide(2000),
        "one book": documents.book(7),
        "5,000 integers": documents.integers(5000),
    }
    float_heavy: dict[str, Any] = {
        "20 vectors of 384 floats": documents.vectors(20),
        "300 offers with 5 floats": documents.offers(300),
        "5,000 whole floats": documents.whole_floats(5000),
    }
    for name, value in float_free.items():
        yield _encoding(f"encode {name}", value, rounds, FLOAT_FREE_LIMIT)
    for name, value in float_heavy.items():
        yield _encoding(f"encode {name}", value, rounds, FLOAT_HEAVY_LIMIT)
    # No document looks like this: the worst there is, every other float has an exponent that needs care.
    yield _encoding("encode 5,000 random bit patterns", documents.bit_patterns(5000), rounds, None)
    yield _reference("encode 100 books with rfc8785", float_free["100 books"], rounds)
    yield _parsing("parse 100 books", float_free["100 books"], rounds)
    yield _parsing("parse 300 offers", float_heavy["300 offers with 5 floats"], rounds)


def _encoding(name: str, value: Any, rounds: int, limit: float | None) -> Row:
    duel = alternate(lambda: canonical_json(value), lambda: orjson.dumps(value, option=orjson.OPT_SORT_KEYS), rounds)
    megabytes_per_s = len(canonical_json(value)) / duel.a.median_s / 1e6
    if limit is None:
        return Row(name, megabytes_per_s, "MB/s", duel.ratio, "sorted orjson")
    return Row.at_most(name, megabytes_per_s, "MB/s", ratio=duel.ratio, against="sorted orjson", limit=limit)


def _reference(name: str, value: Any, rounds: int) -> Row:
    duel = alternate(lambda: rfc8785.dumps(value), lambda: canonical_json(value), rounds)
    megabytes_per_s = len(canonical_json(value)) / duel.a.median_s / 1e6
    return Row(name, megabytes_per_s, "MB/s", ratio=duel.ratio, against="canonical JSON")


def _parsing(name: str, value: Any, rounds: int) -> Row:
    data = orjson.dumps(value)
    duel = alternate(lambda: parse_json(data), lambda: orjson.loads(data), rounds)
    return Row(name, len(data) / duel.a.median_s / 1e6, "MB/s", ratio=duel.ratio, against="orjson.loads")
