"""Random rulesets and random lives of entities, from a seed; and a store in memory that writes only what it is told."""

from __future__ import annotations

import copy
import random
from typing import Any

from analemma import ContractSet, EntityKey, load_contracts
from tests.core.entry_points.slicing import Predecessor, SliceContent
from tests.property.slicing_oracle import ANY, ONE, JoinPlan, Key, Plan, Segments, SlicePlan, reads_of

TENANT = "t"
TYPES = ("ALPHA", "BETA", "GAMMA")
"""Each may join those behind it."""
NAMES = ("a", "b", "c", "d", "ab")
IDS = ("1", "p-1")


class Generator:
    """Everything that is made up."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    # Documents

    def value(self, depth: int = 0) -> Any:
        kind = self.random.random()
        if depth < 3 and kind < 0.35:
            return {self.random.choice(NAMES): self.value(depth + 1) for _ in range(self.random.randrange(4))}
        if depth < 3 and kind < 0.5:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        return self.random.choice([0, 1, 1.0, True, False, None, "", "x", "é", "X", "1", 2.5, 7, {}, []])

    def document(self) -> dict[str, Any]:
        made = {name: self.value() for name in NAMES if self.chance(0.7)}
        for name in ("ref", "other"):
            if self.chance(0.8):
                made[name] = self.reference()
        if self.chance(0.3):
            made["z"] = {"q": self.value(2), "r": self.value(2)}
        return made

    def reference(self) -> Any:
        return self.random.choice([*["1"] * 8, 1, 1, "2", "a#b", "", True, None, ["1"], 1.5])

    def edited(self, document: dict[str, Any]) -> dict[str, Any]:
        """A copy with a few changes, perhaps with none that counts."""
        made: dict[str, Any] = copy.deepcopy(document)
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 3])):
            place: Any = made
            while True:
                inner = [
                    part
                    for part in (place.values() if isinstance(place, dict) else place)
                    if part and isinstance(part, dict | list)
                ]
                if not inner or self.chance(0.4):
                    break
                place = self.random.choice(inner)
            if isinstance(place, list):
                at = self.random.randrange(len(place) + 1)
                if at < len(place) and self.chance(0.5):
                    del place[at]
                else:
                    place[at : at + self.random.randrange(2)] = [self.value(2)]
            else:
                names = ("ref", "other", "z", "author", *NAMES) if place is made else NAMES
                name = self.random.choice(names)
                if name in place and self.chance(0.4):
                    del place[name]
                elif place is made and name in ("ref", "other"):
                    place[name] = self.reference()
                else:
                    place[name] = self.value(1)
        return made

    # Rules

    def segments(self, *, depth: bool = True, names: tuple[str, ...] = (*NAMES, "ref")) -> Segments:
        made: list[str] = []
        for _ in range(self.random.choice([1, 1, 2, 2, 3])):
            kind = self.random.random()
            if kind < 0.2:
                made.append(ONE)
            elif kind < 0.27 and depth and ANY not in made:
                made.append(ANY)
            elif kind < 0.33:
                made.append("0")
            else:
                made.append(self.random.choice(names if not made else NAMES))
        return tuple(made)

    def rule(self, number: int, names: tuple[str, ...]) -> tuple[str, Any]:
        kind = self.random.random()
        if kind < 0.4:
            fields = dict.fromkeys(self.segments(names=names) for _ in range(self.random.randint(1, 3)))
            return "PassThrough", list(fields)
        if kind < 0.75:
            return "MapFields", [self.mapping(f"out{number}{part}", names) for part in range(self.random.randint(1, 3))]
        sources = [self.segments(names=names) for _ in range(self.random.randint(1, 3))]
        target = (f"merged{number}",) if self.chance(0.6) else (f"merged{number}", "deep")
        return "MergeFields", (sources, target, self.chance(0.6))

    def mapping(self, target: str, names: tuple[str, ...]) -> tuple[Segments, Segments]:
        source = self.segments(names=names)
        made = [target]
        wildcards = 0 if ANY in source else self.random.randint(0, source.count(ONE))
        for _ in range(wildcards):
            made += [ONE, *(["n"] if self.chance(0.5) else [])]
        if not wildcards and self.chance(0.3):
            made.append("deep")
        return source, tuple(made)

    def plan(self, entity_type: str, targets: dict[str, list[str]]) -> Plan:
        slices: list[SlicePlan] = []
        indexes: list[tuple[str, Segments, str | None]] = []
        for number in range(self.random.randint(1, 3)):
            joins: list[JoinPlan] = []
            for target in targets:
                if self.chance(0.5):
                    joins.append(self.join(target, targets[target]))
                    indexes.append((f"by_{number}_{target}", joins[-1].source, target))
            names = (*NAMES, *(join.name for join in joins))
            rules = [self.rule(part, names) for part in range(self.random.choice([1, 1, 2]))]
            slices.append(SlicePlan(f"S{number}", rules, joins))
        for number in range(self.random.randrange(3)):
            indexes.append((f"plain_{number}", self.segments(), None))
        known = [read for each in slices for read in reads_of(each)] + [selector for _, selector, _ in indexes]
        ignored: list[Segments] = []
        if all(read and read[0] not in (ONE, ANY) for read in known) and self.chance(0.9):
            ignored.append(self.random.choice([("z",), ("z", ONE), ("z", ANY, "q")]))
        return Plan(entity_type, slices, indexes, ignored, [])

    def join(self, target: str, slice_types: list[str]) -> JoinPlan:
        copied: list[tuple[Segments, Segments]] | None = None
        excluded: list[Segments] = []
        if self.chance(0.4):
            copied = [self.mapping(f"j{number}", NAMES) for number in range(self.random.randint(1, 2))]
        elif self.chance(0.5):
            excluded = [self.segments(depth=False)]
        source = self.random.choice([("ref",), ("other",), ("a", "b")])
        prefix = "p-" if self.chance(0.15) else ""
        name = self.random.choice(["author", f"{target.lower()}_join"]) if not self.chance(0.1) else "a_join"
        slice_type = self.random.choice(slice_types)
        return JoinPlan(
            f"{name}_{target.lower()}", source, target, slice_type, prefix, self.chance(0.4), copied, excluded
        )

    # Contracts

    def path(self, segments: Segments) -> str:
        """One of the spellings of a path."""
        parts = ["*" if part == ONE else "**" if part == ANY else part for part in segments]
        kind = self.random.randrange(3)
        if kind == 0:
            return "/" + "/".join(parts)
        dotted = parts[0] + "".join(f"[{part}]" if part in ("*", "0") else f".{part}" for part in parts[1:])
        return dotted if kind == 1 else f"$.{dotted}"

    def rule_document(self, kind: str, rule: Any) -> dict[str, Any]:
        if kind == "PassThrough":
            return {"type": kind, "fields": list(map(self.path, rule))}
        if kind == "MapFields":
            return {"type": kind, "mappings": [{"from": self.path(one), "to": self.path(two)} for one, two in rule]}
        sources, target, deep = rule
        strategy = "DEEP" if deep else "SHALLOW"
        return {
            "type": kind,
            "sources": list(map(self.path, sources)),
            "target": self.path(target),
            "strategy": strategy,
        }

    def join_document(self, join: JoinPlan) -> dict[str, Any]:
        made: dict[str, Any] = {
            "name": join.name,
            "type": "LOOKUP",
            "sourceFieldPath": self.path(join.source),
            "targetEntityType": join.target,
            "targetSliceType": join.slice_type,
            "required": join.required,
        }
        if join.prefix or self.chance(0.5):
            made["targetKeyPattern"] = f"{join.target}#{{tenantId}}#{join.prefix}{{value}}"
        if join.copied is not None:
            fields = [{"fromTargetPath": self.path(one), "toOutputPath": self.path(two)} for one, two in join.copied]
            made["projection"] = {"mode": "COPY_FIELDS", "fields": fields}
        elif join.excluded:
            made["projection"] = {"mode": "EXCLUDE_FIELDS", "fields": list(map(self.path, join.excluded))}
        return made

    def contracts(self, plan: Plan) -> list[dict[str, Any]]:
        """The schema and the ruleset of a type; the plan learns what the impactMap declares beyond its reads."""
        name = plan.entity_type.lower()
        common = {"version": "1.0.0", "status": "ACTIVE", "entityType": plan.entity_type}
        slices = [
            {
                "type": each.type,
                "buildRules": [self.rule_document(*rule) for rule in each.rules],
                "joins": list(map(self.join_document, each.joins)),
            }
            for each in plan.slices
        ]
        indexes = [
            {"type": each, "selector": self.path(selector), **({"references": target} if target else {})}
            for each, selector, target in plan.indexes
        ]
        ruleset: dict[str, Any] = {
            "kind": "RULESET",
            "id": f"ruleset.{name}",
            **common,
            "slices": slices,
            "indexes": indexes,
        }
        ruleset["ignore"] = list(map(self.path, plan.ignored))
        if self.chance(0.3):
            impact = {each.type: list(map(self.path, reads_of(each))) for each in plan.slices}
            if not plan.ignored and self.chance(0.5):
                impact[plan.slices[0].type].append("/z")
                plan.declared.append(("z",))
            ruleset["impactMap"] = impact
        schema = {"kind": "ENTITY_SCHEMA", "id": f"entity.{name}", **common}
        return [{**schema, "fields": [{"name": "a", "type": "string"}]}, ruleset]

    def world(self) -> tuple[dict[str, Plan], ContractSet]:
        """Rulesets for all types, and the same as loaded contracts."""
        plans: dict[str, Plan] = {}
        for entity_type in reversed(TYPES):
            plans[entity_type] = self.plan(
                entity_type, {name: [one.type for one in plan.slices] for name, plan in plans.items()}
            )
        return plans, load_contracts([each for plan in plans.values() for each in self.contracts(plan)])


class Store:
    """What a catalog would hold: slices that were written, entries that were replaced, and what was compiled."""

    def __init__(self) -> None:
        self.data: dict[tuple[EntityKey, str], SliceContent | None] = {}
        self.entries: dict[EntityKey, tuple[Any, ...]] = {}
        self.compiled: dict[EntityKey, list[Predecessor]] = {}

    def lookup(self, key: EntityKey, slice_type: str) -> SliceContent | None:
        return self.data.get((key, slice_type))

    def apply(self, key: EntityKey, raw: dict[str, Any] | None, compiled: Any) -> None:
        """Write what a compile says is to be written, and nothing else."""
        for each in compiled.written:
            content = None if each.data is None or each.hash is None else SliceContent(each.data, each.hash)
            self.data[key, each.type] = content
        if compiled.index_entries is not None:
            self.entries[key] = compiled.index_entries
        self.compiled.setdefault(key, []).append(Predecessor(raw, compiled.fingerprint, compiled.slices))


def entity_key(key: Key) -> EntityKey:
    return EntityKey(key[0], TENANT, key[1])
