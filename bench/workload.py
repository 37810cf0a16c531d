"""The data that benchmarks share: prose that compresses as prose does, the steps of an agent, entries of a table."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import Any

MESSAGE_BYTES = 1400
SCRATCH_BYTES = 4700
CONSTANT_BYTES = 48_000


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of an agent changes: two more messages, and all of its scratch."""

    messages: list[dict[str, Any]]
    scratch: str


def prose(seed: int, size: int) -> str:
    """That many characters of English sentences in random order; the same for the same seed."""
    pick = random.Random(seed)
    known = _sentences()
    chosen: list[str] = []
    length = 0
    while length < size:
        chosen.append(known[pick.randrange(len(known))])
        length += len(chosen[-1]) + 1
    return " ".join(chosen)[:size]


def agent_start() -> dict[str, Any]:
    """The state of an agent before its first step."""
    return {"messages": [], "scratch": "", "constant": prose(-1, CONSTANT_BYTES)}


def agent_step(number: int) -> Step:
    """What the agent's step of this number changes."""
    messages = [
        {"id": number * 2 + turn, "role": role, "content": prose(number * 2 + turn, MESSAGE_BYTES)}
        for turn, role in enumerate(("user", "assistant"))
    ]
    return Step(messages, prose(-2 - number, SCRATCH_BYTES))


def entries(count: int, size: int, *, first: int = 0) -> dict[str, str]:
    """That many named texts."""
    # Windows into one long text: a million of them must not take a minute to make.
    text = _long_text()
    pick = random.Random(first)
    starts = [pick.randrange(len(text) - size) for _ in range(count)]
    return {f"entry-{first + number:07}": text[start : start + size] for number, start in enumerate(starts)}


@cache
def _sentences() -> tuple[str, ...]:
    # The language reference ships with Python: real prose, and nothing to download.
    words = " ".join([str(text) for text in topics.values()])
    return tuple([sentence.strip() for sentence in re.split(r"(?<=[.:])\s+", words) if 20 < len(sentence) < 400])


@cache
def _long_text() -> str:
    return prose(0, 4_000_000)
