"""What slices read and write, derived from their rules: nobody can forget to declare it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from analemma.contracts.models import BuildRule, Join, MapFields, MergeFields, PassThrough, Slice
from analemma.contracts.paths import Pattern


def rule_sources(rules: Iterable[BuildRule]) -> Iterator[Pattern]:
    """What rules read, of the raw document or of what joins found."""
    for rule in rules:
        match rule:
            case PassThrough():
                yield from rule.fields
            case MapFields():
                yield from (each.source for each in rule.mappings)
            case MergeFields():
                yield from rule.sources


def rule_targets(rules: Iterable[BuildRule]) -> Iterator[Pattern]:
    """Where rules write."""
    for rule in rules:
        match rule:
            case PassThrough():
                yield from rule.fields
            case MapFields():
                yield from (each.target for each in rule.mappings)
            case MergeFields():
                yield rule.target


def raw_reads(rules: Sequence[BuildRule], joins: Sequence[Join]) -> tuple[Pattern, ...]:
    """What is read of the raw document. A join hides the raw field of its name, so what begins with that name is not
    of it."""
    names = {join.name for join in joins}
    sources = [each for each in rule_sources(rules) if not each.segments or each.segments[0] not in names]
    return tuple(dict.fromkeys([*sources, *(join.source for join in joins)]))


def unread_joins(rules: Sequence[BuildRule], joins: Sequence[Join]) -> tuple[Join, ...]:
    """The joins that no rule reads."""
    sources = list(rule_sources(rules))
    return tuple(join for join in joins if not any(each.overlaps(Pattern((join.name,))) for each in sources))


def written_fields(definition: Slice) -> set[str] | None:
    """The fields at the top of a slice; None if only the data decides."""
    names = target_fields(definition.rules)
    return None if names is None else names | {join.name for join in definition.added_joins}


def target_fields(rules: Iterable[BuildRule]) -> set[str] | None:
    """The fields that rules write at the top; None if only the data decides."""
    names: set[str] = set()
    for target in rule_targets(rules):
        if not target.segments or not isinstance(target.segments[0], str):
            return None
        names.add(target.segments[0])
    return names
