"""A naive evaluator of rulesets, written apart from the library: every entity from scratch, every path by recursion.

It works on the generator's own description of rules (`slicing_world`), so that it shares no parser with the library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ONE = "<one>"
ANY = "<any>"
Segments = tuple[str, ...]
Tokens = tuple[str | int, ...]
Key = tuple[str, str]
"""Entity type and id; there is one tenant."""


@dataclass
class JoinPlan:
    name: str
    source: Segments
    target: str
    slice_type: str
    prefix: str
    required: bool
    copied: list[tuple[Segments, Segments]] | None
    excluded: list[Segments]


@dataclass
class SlicePlan:
    type: str
    rules: list[tuple[str, Any]]
    joins: list[JoinPlan] = field(default_factory=list)


@dataclass
class Plan:
    """A ruleset as the generator made it up."""

    entity_type: str
    slices: list[SlicePlan]
    indexes: list[tuple[str, Segments, str | None]]
    ignored: list[Segments]
    declared: list[Segments]


Outcome = tuple[str, Any]
"""("data", the data) or ("tombstone", why)."""


def matches(segments: Segments, tokens: Tokens) -> bool:
    """Whether a pattern is exactly this path."""
    if not segments:
        return not tokens
    if segments[0] == ANY:
        return any(matches(segments[1:], tokens[count:]) for count in range(len(tokens) + 1))
    if ANY not in segments and len(segments) != len(tokens):
        return False
    return bool(tokens) and segments[0] in (ONE, str(tokens[0])) and matches(segments[1:], tokens[1:])


def begins(segments: Segments, tokens: Tokens) -> bool:
    """Whether a pattern can match something at this path or below it."""
    if not tokens:
        return True
    if not segments:
        return False
    if segments[0] == ANY:
        return any(begins(segments[1:], tokens[count:]) for count in range(len(tokens) + 1)) or True
    return segments[0] in (ONE, str(tokens[0])) and begins(segments[1:], tokens[1:])


def covers(segments: Segments, tokens: Tokens) -> bool:
    return any(matches(segments, tokens[:count]) for count in range(len(tokens) + 1))


def touches(segments: Segments, tokens: Tokens) -> bool:
    return covers(segments, tokens) or begins(segments, tokens)


def nodes(value: Any, path: Tokens = ()) -> Iterator[tuple[Tokens, Any]]:
    """Every place of a document, parents first, names in order."""
    yield path, value
    if isinstance(value, dict):
        for name in sorted(value):
            yield from nodes(value[name], (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from nodes(item, (*path, number))


def select(segments: Segments, everything: list[tuple[Tokens, Any]]) -> list[tuple[Tokens, Any]]:
    found = [(path, value) for path, value in everything if matches(segments, path)]
    if ANY not in segments:
        return found
    # Only the highest ones count.
    places = {path for path, _ in found}
    return [each for each in found if not any(each[0][:count] in places for count in range(len(each[0])))]


def assemble(writes: list[tuple[Tokens, Any]]) -> Any:
    """What a list of writes leaves, each over what was there before."""
    last = max((number for number, (path, _) in enumerate(writes) if not path), default=-1)
    later = writes[last + 1 :]
    base = writes[last][1] if last >= 0 else None
    if not later:
        return base
    steps: list[tuple[Tokens, Any]] = []
    if isinstance(base, dict):
        steps += [((name,), item) for name, item in base.items()]
    elif isinstance(base, list):
        steps += [((number,), item) for number, item in enumerate(base)]
    steps += later
    groups: dict[str | int, list[tuple[Tokens, Any]]] = {}
    for path, value in steps:
        groups.setdefault(path[0], []).append((path[1:], value))
    parts = {token: assemble(group) for token, group in groups.items()}
    if all(isinstance(token, int) for token in parts):
        return [parts.get(position) for position in range(max(int(token) for token in parts) + 1)]
    return {str(token): part for token, part in parts.items()}


def mapped(mappings: list[tuple[Segments, Segments]], everything: list[tuple[Tokens, Any]]) -> list[tuple[Tokens, Any]]:
    writes: list[tuple[Tokens, Any]] = []
    for source, target in mappings:
        holes = [number for number, segment in enumerate(source) if segment == ONE]
        wanted = target.count(ONE)
        groups: dict[Tokens, list[Any]] = {}
        for path, value in select(source, everything):
            filled = iter([path[number] for number in holes[:wanted]])
            place = tuple(next(filled) if segment == ONE else segment for segment in target)
            groups.setdefault(place, []).append(value)
        single = len(holes) == wanted and ANY not in source
        writes += [(place, values[-1] if single else values) for place, values in groups.items()]
    return writes


def merged(one: Any, other: Any, deep: bool) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        both = {**one, **other}
        for name in set(one) & set(other) if deep else ():
            both[name] = merged(one[name], other[name], True)
        return both
    return other


def build(rules: list[tuple[str, Any]], document: dict[str, Any]) -> Any:
    everything = list(nodes(document))
    writes: list[tuple[Tokens, Any]] = [((), {})]
    for kind, rule in rules:
        if kind == "PassThrough":
            for segments in rule:
                for path, value in select(segments, everything):
                    writes += [(path, value)] if path else [((name,), part) for name, part in value.items()]
        elif kind == "MapFields":
            writes += mapped(rule, everything)
        else:
            sources, target, deep = rule
            values = [value for segments in sources for _, value in select(segments, everything)]
            if values:
                total = values[0]
                for value in values[1:]:
                    total = merged(total, value, deep)
                writes.append((target, total))
    made = assemble(writes)
    return made if isinstance(made, dict) else {str(number): item for number, item in enumerate(made)}


def remove(value: Any, segments: list[Segments], path: Tokens = ()) -> Any:
    """A copy without what the patterns match; items of lists become null."""
    if any(matches(each, path) for each in segments):
        return None
    if isinstance(value, dict):
        kept = {
            name: item for name, item in value.items() if not any(matches(each, (*path, name)) for each in segments)
        }
        return {name: remove(item, segments, (*path, name)) for name, item in kept.items()}
    if isinstance(value, list):
        return [remove(item, segments, (*path, number)) for number, item in enumerate(value)]
    return value


def identity(join: JoinPlan, raw: dict[str, Any]) -> str | None:
    value: Any = raw
    for name in join.source:
        value = value.get(name) if isinstance(value, dict) else None
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        return None
    text = f"{join.prefix}{value}"
    return None if "#" in text or text != text.strip() else text


class Oracle:
    """Slices and index entries of all entities, from nothing but their documents."""

    def __init__(self, plans: dict[str, Plan], documents: dict[Key, dict[str, Any] | None]) -> None:
        self._plans = plans
        self._documents = documents
        self._known: dict[tuple[Key, str], Outcome] = {}

    def outcome(self, key: Key, slice_type: str) -> Outcome | None:
        """One slice of one entity; None if it never was."""
        plan = next((each for each in self._plans[key[0]].slices if each.type == slice_type), None)
        if key not in self._documents or plan is None:
            return None
        if (key, slice_type) not in self._known:
            self._known[key, slice_type] = self._evaluate(plan, self._documents[key])
        return self._known[key, slice_type]

    def entries(self, key: Key) -> set[tuple[str, str, Key | None]]:
        """The index entries of one entity."""
        plan, raw = self._plans[key[0]], self._documents[key]
        found: set[tuple[str, str, Key | None]] = set()
        everything = list(nodes(raw))
        for name, selector, references in plan.indexes if raw is not None else ():
            joins = [each for one in plan.slices for each in one.joins]
            served = [each for each in joins if (each.source, each.target) == (selector, references)]
            for _, value in select(selector, everything):
                if value is None or isinstance(value, dict | list):
                    continue
                text = value if isinstance(value, str) else canonical(value)
                targets: set[Key | None] = {None}
                if references is not None:
                    plain = JoinPlan("", (), references, "", "", False, None, [])
                    ids = [identity_of(each, value) for each in served or [plain]]
                    targets = {(references, each) for each in ids if each is not None} or {None}
                found |= {(name, text, target) for target in targets}
        return found

    def _evaluate(self, plan: SlicePlan, raw: dict[str, Any] | None) -> Outcome:
        if raw is None:
            return "tombstone", "DELETED"
        document = {name: value for name, value in raw.items() if name not in {join.name for join in plan.joins}}
        results: dict[str, Any] = {}
        missing = False
        for join in plan.joins:
            wanted = identity(join, raw)
            found = None if wanted is None else self.outcome((join.target, wanted), join.slice_type)
            if found is None or found[0] != "data":
                missing |= join.required
            elif join.copied is not None:
                results[join.name] = assemble([((), {}), *mapped(join.copied, list(nodes(found[1])))])
            else:
                results[join.name] = remove(found[1], join.excluded)
        if missing:
            return "tombstone", "REQUIRED_JOIN_MISSING"
        data = build(plan.rules, {**document, **results})
        sources = [segments for kind, rule in plan.rules for segments in sources_of(kind, rule)]
        for name, result in results.items():
            if not any(touches(segments, (name,)) for segments in sources):
                data[name] = result
        return "data", data


def identity_of(join: JoinPlan, value: Any) -> str | None:
    return identity(JoinPlan("", ("v",), join.target, "", join.prefix, False, None, []), {"v": value})


def sources_of(kind: str, rule: Any) -> list[Segments]:
    if kind == "PassThrough":
        return list(rule)
    return [source for source, _ in rule] if kind == "MapFields" else list(rule[0])


def reads_of(plan: SlicePlan) -> list[Segments]:
    names = {join.name for join in plan.joins}
    sources = [segments for kind, rule in plan.rules for segments in sources_of(kind, rule)]
    return [each for each in sources if not each or each[0] not in names] + [join.source for join in plan.joins]


def leaves(value: Any, path: Tokens = ()) -> dict[Tokens, str]:
    if isinstance(value, dict) and value:
        return {at: leaf for name, part in value.items() for at, leaf in leaves(part, (*path, name)).items()}
    return {path: canonical(value)}


def changed_paths(old: dict[str, Any], new: dict[str, Any]) -> set[Tokens]:
    """Leaves that differ; an object that only became empty, or no longer is, is told by its members."""
    before, after = leaves(old), leaves(new)
    differing = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    return {path for path in differing if not (is_object(old, path) and is_object(new, path))}


def is_object(document: Any, path: Tokens) -> bool:
    for token in path:
        if not isinstance(document, dict) or token not in document:
            return False
        document = document[token]
    return isinstance(document, dict)


def unmapped_paths(plan: Plan, old: dict[str, Any], new: dict[str, Any]) -> set[Tokens]:
    """What a change brings that nothing reads, declares or ignores; what it removes may be anything."""
    reads = [read for each in plan.slices for read in reads_of(each)]
    known = [*reads, *plan.declared, *(selector for _, selector, _ in plan.indexes)]
    return {
        path
        for path in changed_paths(old, new) & leaves(new).keys()
        if not any(touches(each, path) for each in known) and not any(covers(each, path) for each in plan.ignored)
    }


def canonical(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(value: Any) -> Any:
    """Whole floats as integers, as canonical JSON writes them."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def hash_of(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
