"""Who wins where both sides of a merge changed the same thing: strategies, and the paths they are given for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NewType, get_args

from analemma.canon.align import align
from analemma.canon.pointer import Path, parse_pointer
from analemma.canon.types import TypeRegistry
from analemma.errors import Invalid
from analemma.state.three_way import ABSENT, UNDECIDED, hashes, merge_by_key

__all__ = [
    "ABSENT",
    "BY_KEY",
    "NAMES",
    "UNDECIDED",
    "ByKey",
    "NamedStrategy",
    "Strategies",
    "Strategy",
    "StrategyName",
    "by_key",
    "check_strategy",
    "decide",
]

StrategyName = Literal[
    "refuse", "last_write_wins", "ours", "deep_merge", "collect", "append", "replace", "dedupe_append", "set_union"
]
ByKey = NewType("ByKey", str)
"""`by_key:` and the name of a field."""
Decide = Callable[[Any, Any, Any], Any]
NamedStrategy = StrategyName | ByKey
Strategy = NamedStrategy | Decide
"""A name, or a function of base, ours and theirs. What is not there is ABSENT, to a function and as its answer."""

NAMES: tuple[str, ...] = get_args(StrategyName)
BY_KEY = "by_key:"


def by_key(field: str) -> ByKey:
    """The strategy that merges lists of dicts item by item, where this field tells one item from another; also written
    as text, as commands and workflow documents do.

    >>> by_key("id")
    'by_key:id'
    """
    return ByKey(BY_KEY + field)


def check_strategy(strategy: Any) -> Strategy:
    """A strategy as somebody gave it, or Invalid."""
    if callable(strategy) or strategy in NAMES:
        return strategy  # type: ignore[no-any-return]
    if isinstance(strategy, str) and strategy.startswith(BY_KEY) and strategy != BY_KEY:
        return ByKey(strategy)
    names = ", ".join([*NAMES, f"{BY_KEY}FIELD"])
    raise Invalid(f"there is no merge strategy {strategy!r}", hint=f"use a function, or one of {names}")


class Strategies:
    """Strategies for paths. A pattern is a field name or a JSON pointer in which `*` is any one token and `**` any
    number of them; it also covers what is below, unless a longer or more literal pattern does.

    >>> Strategies("refuse", {"/plan": "ours", "/plan/*/notes": "append"}).for_path(("plan", "today", "notes"))
    ('append', 3)
    """

    def __init__(self, default: Strategy = "refuse", patterns: Mapping[str, Strategy] | None = None) -> None:
        self._default = check_strategy(default)
        chosen = [(_parse(name), check_strategy(strategy)) for name, strategy in (patterns or {}).items()]
        self._patterns = sorted(chosen, key=lambda item: _specificity(item[0]), reverse=True)

    def for_path(self, path: Path) -> tuple[Strategy, int]:
        """The strategy for a conflict at this path, and how many of its tokens the pattern matched."""
        for pattern, strategy in self._patterns:
            for length in range(len(path), -1, -1):
                if _matches(pattern, path[:length]):
                    return strategy, length
        return self._default, len(path)

    def are_given(self, path: Path) -> bool:
        """Whether somebody chose how to decide a conflict at this path."""
        if self._default != "refuse":
            return True
        return any(_matches(pattern, path[:length]) for pattern, _ in self._patterns for length in range(len(path) + 1))

    def may_be_given(self, path: Path) -> bool:
        """Whether that may be so for this path, or for one above or below it."""
        return self._default != "refuse" or any(_may_overlap(pattern, path) for pattern, _ in self._patterns)

    @property
    def has_functions(self) -> bool:
        """Whether a function is given for some paths."""
        return any(callable(strategy) for _, strategy in self._patterns)


def decide(strategy: Strategy, base: Any, ours: Any, theirs: Any, registry: TypeRegistry) -> Any:
    """What is to stand where both sides changed something: a value, ABSENT, or UNDECIDED when the strategy does not
    apply."""
    if not isinstance(strategy, str):
        return strategy(base, ours, theirs)
    if ours is ABSENT and theirs is ABSENT and strategy != "refuse":
        return ABSENT
    if strategy == "last_write_wins":
        return theirs
    if strategy == "ours":
        return ours
    if strategy == "deep_merge":
        return _deep_merged(ours, theirs)
    if strategy == "collect":
        return [value for value in (ours, theirs) if value is not ABSENT]
    if strategy == "set_union" and type(ours) is type(theirs) and type(ours) in (set, frozenset):
        return ours | theirs
    if strategy == "refuse" or type(ours) is not list or type(theirs) is not list:
        return UNDECIDED
    if strategy.startswith(BY_KEY):
        return merge_by_key(strategy.removeprefix(BY_KEY), base, ours, theirs, registry)
    if strategy == "replace":
        return theirs
    if strategy == "append":
        return ours + _added(base, theirs, registry)
    if strategy == "dedupe_append":
        return ours + _unique(_added(base, theirs, registry), registry, besides=ours)
    return _unique([*ours, *theirs], registry)


def _deep_merged(ours: Any, theirs: Any) -> Any:
    """Dicts field by field; of anything else theirs. What one side removed and the other changed stays."""
    if type(ours) is dict and type(theirs) is dict:
        fields = dict.fromkeys([*ours, *theirs])
        return {key: _deep_merged(ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in fields}
    return ours if theirs is ABSENT else theirs


def _added(base: Any, theirs: list[Any], registry: TypeRegistry) -> list[Any]:
    """The items that one side's list has and the base's has not, in order. What it removed does not count."""
    if type(base) is not list:
        return list(theirs)
    gaps = align(hashes(base, registry), hashes(theirs, registry))
    return [item for gap in gaps for item in theirs[gap.new_start : gap.new_stop]]


def _unique(items: list[Any], registry: TypeRegistry, besides: Iterable[Any] = ()) -> list[Any]:
    seen = set(hashes(besides, registry))
    kept = []
    for item, key in zip(items, hashes(items, registry), strict=True):
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept


def _parse(name: str) -> Path:
    return parse_pointer(name) if name.startswith("/") or not name else (name,)


def _specificity(pattern: Path) -> tuple[int, int, bool]:
    tokens = [token for token in pattern if token != "**"]
    return len(tokens), len([token for token in tokens if token != "*"]), "**" not in pattern


def _matches(pattern: Path, path: Path) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(pattern[1:], path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and _matches(pattern[1:], path[1:])


def _may_overlap(pattern: Path, path: Path) -> bool:
    """Whether the pattern may name this path, one above it or one below."""
    for expected, token in zip(pattern, path, strict=False):
        if expected == "**":
            return True
        if expected not in ("*", token):
            return False
    return True
