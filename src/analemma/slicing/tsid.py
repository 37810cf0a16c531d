"""Versions of entities: 64-bit numbers that sort by time, and their text.

42 bits of milliseconds since 2020-01-01Z, 10 bits of node, 12 bits of counter. The text is 13 characters of Crockford's
base 32 and sorts as the number does; JSON has the text, for the numbers are beyond 2^53.
"""

from __future__ import annotations

import re
import threading
from typing import Final, NewType

from analemma.clock import Clock, SystemClock
from analemma.errors import Invalid, Limit, Unavailable

Version = NewType("Version", int)

EPOCH_MS: Final = 1_577_836_800_000
"""2020-01-01T00:00:00Z in milliseconds since 1970."""
NODES: Final = 1 << 10
COUNTERS: Final = 1 << 12
_MOMENTS: Final = 1 << 42
_LARGEST: Final = (1 << 64) - 1

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DIGITS: Final = {character: number for number, character in enumerate(_ALPHABET)}
# 13 characters are 65 bits, so the first may only be one of sixteen.
_TEXT: Final = re.compile(rf"[0-9A-F][{_ALPHABET}]{{12}}")


class VersionGenerator:
    """Makes versions, each greater than all before it: under threads, and when the clock steps back.

    Two generators at work at the same time need different nodes.

    >>> generator = VersionGenerator(node=7)
    >>> generator.generate() < generator.generate()
    True
    """

    def __init__(self, *, node: int, clock: Clock | None = None) -> None:
        if not 0 <= node < NODES:
            raise Invalid(f"not a node: {node}", hint=f"nodes are 0 to {NODES - 1}", node=node)
        self.node = node
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._last = -1
        """Milliseconds and counter of the last version as one number, so that a full counter runs into the next ms."""

    def generate(self) -> Version:
        """The next version."""
        now = self._clock.now_us() // 1000 - EPOCH_MS
        if now < 0:
            raise Unavailable("the clock says it is before 2020, where versions begin", hint="set the clock")
        with self._lock:
            moment = max(self._last + 1, now * COUNTERS)
            if moment >= _MOMENTS * COUNTERS:
                raise Limit("the clock is beyond what versions can count", hint="set the clock")
            self._last = moment
        return Version(_compose(moment // COUNTERS, self.node, moment % COUNTERS))

    def observe(self, version: Version) -> None:
        """Make all versions from now on greater than one that was seen elsewhere."""
        elapsed = decompose(version)[0]
        with self._lock:
            # On to the next millisecond: within one, the node decides which version is greater.
            self._last = max(self._last, (elapsed + 1) * COUNTERS - 1)


def decompose(version: Version) -> tuple[int, int, int]:
    """Milliseconds since 2020, node, counter."""
    _check(version)
    return version >> 22, (version >> 12) & (NODES - 1), version & (COUNTERS - 1)


def version_time_ms(version: Version) -> int:
    """When it was made, in milliseconds since 1970; a borrowed millisecond may be ahead of the clock."""
    return decompose(version)[0] + EPOCH_MS


def format_version(version: Version) -> str:
    """The 13 characters.

    >>> format_version(Version(0))
    '0000000000000'
    """
    _check(version)
    return "".join(_ALPHABET[(version >> shift) & 31] for shift in range(60, -1, -5))


def parse_version(text: str) -> Version:
    """Read the 13 characters: upper case, none of I, L, O and U, so that every version has one text."""
    if not isinstance(text, str) or _TEXT.fullmatch(text) is None:
        raise Invalid(f"not a version: {text!r}", hint="a version is 13 characters of 0-9 and A-Z without I, L, O, U")
    number = 0
    for character in text:
        number = number << 5 | _DIGITS[character]
    return Version(number)


def _compose(elapsed_ms: int, node: int, counter: int) -> int:
    return elapsed_ms << 22 | node << 12 | counter


def _check(version: int) -> None:
    if type(version) is not int or not 0 <= version <= _LARGEST:
        raise Invalid(f"not a version: {version!r}", hint="versions are unsigned 64-bit numbers")
