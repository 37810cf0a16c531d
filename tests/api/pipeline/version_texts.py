"""Versions of entities as numbers: 41 bits of milliseconds, 10 of the node that made them, 12 that count."""

from __future__ import annotations

DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
MILLISECOND = 1 << 22
LATEST = "7ZZZZZZZZZZZZ"


def number(version: str) -> int:
    found = 0
    for each in version:
        found = found * len(DIGITS) + DIGITS.index(each)
    return found


def text(number: int) -> str:
    return "".join(DIGITS[number >> 5 * place & 31] for place in reversed(range(13)))


def node(version: str) -> int:
    return (number(version) >> 12) & 1023


def later(version: str, milliseconds: int) -> str:
    return text(number(version) + milliseconds * MILLISECOND)
