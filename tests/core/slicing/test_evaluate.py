"""What rules make of documents."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

from analemma import EntityKey
from tests.core.entry_points.slicing import SliceContent, compile_entity, wanted_slices
from tests.core.slicing.shop import (
    AUTHOR_KEY,
    BOOK,
    BOOK_KEY,
    BOOK_RULESET,
    SUMMARY,
    Lookup,
    having,
    nothing,
    ruleset_of,
)

KEY = EntityKey("THING", "shop", "1")
TREE: dict[str, Any] = {
    "id": "1",
    "a": {"x": 1, "y": {"z": 2}},
    "list": [{"n": 1, "m": "p"}, {"m": "q"}, {"n": 3}],
    "b": {"x": 9, "w": 0},
    "empty": {},
}


class Evaluated:
    """Everything that a document becomes."""

    def __init__(self, ruleset: Any, key: EntityKey, raw: dict[str, Any] | None, lookup: Lookup) -> None:
        made = compile_entity(ruleset, key, raw, lookup)
        self.slices = {each.type: each for each in made.built}
        self.index_entries = [(each.type, each.value, each.target) for each in made.index_entries or ()]
        self.dependencies = made.dependencies


evaluate = Evaluated


def test_the_example_is_sliced_as_its_contracts_say() -> None:
    found = evaluate(BOOK_RULESET, BOOK_KEY, BOOK, having(SUMMARY))
    assert {name: built.data for name, built in found.slices.items()} == {
        "CORE": {"isbn": "978", "title": "The Dispossessed", "tags": ["sf", "Utopia"]},
        "PRICE": {"amount": {"minor": 1200}},
        "INVENTORY": {"counts": [3, 0]},
        "ENRICHED": {"author": {"name": "Ursula", "origin": {"country": "US"}}},
    }
    assert list(found.slices) == ["CORE", "PRICE", "INVENTORY", "ENRICHED"]
    assert found.index_entries == [
        ("author", "le-guin", AUTHOR_KEY),
        ("tag", "Utopia", None),
        ("tag", "sf", None),
    ]
    (dependency,) = found.dependencies
    assert (dependency.key, dependency.slice_type, dependency.hash) == (AUTHOR_KEY, "SUMMARY", "sha256:1")
    assert wanted_slices(BOOK_RULESET, BOOK_KEY, BOOK) == {(AUTHOR_KEY, "SUMMARY")}


BUILT: list[tuple[Any, dict[str, Any]]] = [
    ({"type": "PassThrough", "fields": ["a.y", "nothing"]}, {"a": {"y": {"z": 2}}}),
    ({"type": "PassThrough", "fields": ["list[*].n"]}, {"list": [{"n": 1}, None, {"n": 3}]}),
    ({"type": "PassThrough", "fields": ["list[1]"]}, {"list": [None, {"m": "q"}]}),
    ({"type": "PassThrough", "fields": ["a.*"]}, {"a": {"x": 1, "y": {"z": 2}}}),
    ({"type": "PassThrough", "fields": ["**.x"]}, {"a": {"x": 1}, "b": {"x": 9}}),
    ({"type": "PassThrough", "fields": ["*", "a.x"]}, TREE),
    ({"type": "PassThrough", "fields": ["$"]}, TREE),
    ({"type": "PassThrough", "fields": ["**"]}, TREE),
    ({"type": "PassThrough", "fields": ["empty"]}, {"empty": {}}),
    ({"type": "PassThrough", "fields": ["a.x.deeper"]}, {}),
    ({"type": "MapFields", "mappings": [{"from": "a.x", "to": "p.q"}]}, {"p": {"q": 1}}),
    ({"type": "MapFields", "mappings": [{"from": "list[*].n", "to": "ns"}]}, {"ns": [1, 3]}),
    ({"type": "MapFields", "mappings": [{"from": "list[*].z", "to": "zs"}]}, {}),
    (
        {
            "type": "MapFields",
            "mappings": [{"from": "list[*].n", "to": "o[*].n"}, {"from": "list[*].m", "to": "o[*].k"}],
        },
        {"o": [{"n": 1, "k": "p"}, {"k": "q"}, {"n": 3}]},
    ),
    ({"type": "MapFields", "mappings": [{"from": "*.x", "to": "by.*"}]}, {"by": {"a": 1, "b": 9}}),
    (
        {"type": "MapFields", "mappings": [{"from": "*.*", "to": "by.*"}]},
        {"by": {"a": [1, {"z": 2}], "b": [0, 9], "list": [{"n": 1, "m": "p"}, {"m": "q"}, {"n": 3}]}},
    ),
    ({"type": "MapFields", "mappings": [{"from": "a.*", "to": "*"}]}, {"x": 1, "y": {"z": 2}}),
    ({"type": "MapFields", "mappings": [{"from": "**.z", "to": "zs"}]}, {"zs": [2]}),
    ({"type": "MapFields", "mappings": [{"from": "$", "to": "all"}]}, {"all": TREE}),
    ({"type": "MergeFields", "sources": ["a", "b"], "target": "c"}, {"c": {"x": 9, "y": {"z": 2}, "w": 0}}),
    (
        {"type": "MergeFields", "sources": ["b", "a"], "target": "c.d"},
        {"c": {"d": {"x": 1, "y": {"z": 2}, "w": 0}}},
    ),
    ({"type": "MergeFields", "sources": ["list[*]"], "target": "c"}, {"c": {"n": 3, "m": "q"}}),
    ({"type": "MergeFields", "sources": ["a", "id"], "target": "c"}, {"c": "1"}),
    ({"type": "MergeFields", "sources": ["nothing"], "target": "c"}, {}),
    (
        [
            {"type": "PassThrough", "fields": ["*"]},
            {"type": "MapFields", "mappings": [{"from": "id", "to": "a.y.z"}]},
        ],
        {**TREE, "a": {"x": 1, "y": {"z": "1"}}},
    ),
]


def test_what_each_rule_builds() -> None:
    before, wrong = json.dumps(TREE), []
    for rules, expected in BUILT:
        found = evaluate(ruleset_of([{"type": "S", "buildRules": rules}]), KEY, TREE, nothing).slices["S"].data
        if found != expected:
            wrong.append((rules, found))
    assert wrong == []
    assert json.dumps(TREE) == before, "the raw document was changed"


def test_merging_may_be_shallow() -> None:
    document = {"a": {"m": {"x": 1}}, "b": {"m": {"y": 2}}}
    for strategy, expected in (("DEEP", {"x": 1, "y": 2}), ("SHALLOW", {"y": 2})):
        rule = {"type": "MergeFields", "sources": ["a", "b"], "target": "c", "strategy": strategy}
        found = evaluate(ruleset_of([{"type": "S", "buildRules": rule}]), KEY, document, nothing)
        assert found.slices["S"].data == {"c": {"m": expected}}


def joining(rules: Any = None, **more: Any) -> Any:
    join = {
        "name": "author",
        "type": "LOOKUP",
        "sourceFieldPath": "by",
        "targetEntityType": "AUTHOR",
        "targetSliceType": "SUMMARY",
        **more,
    }
    rules = rules or {"type": "PassThrough", "fields": ["id"]}
    return ruleset_of(
        [{"type": "S", "buildRules": rules, "joins": [join]}],
        indexes=[{"type": "by", "selector": "by", "references": "AUTHOR"}],
    )


def test_a_join_that_no_rule_reads_is_a_field_of_the_slice() -> None:
    found = evaluate(joining(), KEY, {"id": "1", "by": "le-guin"}, having(SUMMARY))
    assert found.slices["S"].data == {"id": "1", "author": SUMMARY.data}
    found = evaluate(joining(), KEY, {"id": "1", "by": "someone"}, having(SUMMARY))
    assert found.slices["S"].data == {"id": "1"}


def test_a_join_hides_the_field_of_its_name() -> None:
    ruleset = joining({"type": "PassThrough", "fields": ["*"]})
    raw = {"id": "1", "by": "le-guin", "author": "forged"}
    assert evaluate(ruleset, KEY, raw, having(SUMMARY)).slices["S"].data == {**raw, "author": SUMMARY.data}
    assert evaluate(ruleset, KEY, raw, nothing).slices["S"].data == {"id": "1", "by": "le-guin"}


def test_projections_copy_or_leave_out() -> None:
    excluding = {"mode": "EXCLUDE_FIELDS", "fields": ["/country", "**.secret", "nothing"]}
    content = SliceContent({"name": "U", "country": "US", "works": [{"secret": 1, "n": 2}]}, "sha256:2")
    found = evaluate(joining(projection=excluding), KEY, {"by": "le-guin"}, having(content))
    assert found.slices["S"].data == {"author": {"name": "U", "works": [{"n": 2}]}}
    assert content.data["works"] == [{"secret": 1, "n": 2}]
    copying = {
        "mode": "COPY_FIELDS",
        "fields": [{"fromTargetPath": "works[*].n", "toOutputPath": "n"}, {"fromTargetPath": "name"}],
    }
    found = evaluate(joining(projection=copying), KEY, {"by": "le-guin"}, having(content))
    assert found.slices["S"].data == {"author": {"n": [2], "name": "U"}}


MISSING: list[tuple[dict[str, Any], str]] = [
    ({}, "join author: /by is absent"),
    ({"by": None}, "join author: /by is absent"),
    ({"by": ["le-guin"]}, "join author: /by holds no id"),
    ({"by": ""}, "join author: /by holds no id"),
    ({"by": "a#b"}, "join author: /by holds no id"),
    ({"by": 1.5}, "join author: /by holds no id"),
    ({"by": True}, "join author: /by holds no id"),
    ({"by": "x"}, "join author: AUTHOR#shop#x has no SUMMARY"),
    ({"by": 7}, "join author: AUTHOR#shop#7 has no SUMMARY"),
]


def test_a_required_join_that_finds_nothing_leaves_a_tombstone() -> None:
    for raw, detail in MISSING:
        built = evaluate(joining(required=True), KEY, raw, having(SUMMARY)).slices["S"]
        assert built.data is None and built.hash is None and built.tombstone is not None, raw
        assert (built.tombstone.reason, built.tombstone.detail) == ("REQUIRED_JOIN_MISSING", detail)


def test_what_was_not_found_is_a_dependency_too() -> None:
    found = evaluate(joining(required=True), KEY, {"by": "x"}, nothing)
    assert [(str(each.key), each.hash) for each in found.dependencies] == [("AUTHOR#shop#x", None)]
    assert found.index_entries == [("by", "x", EntityKey("AUTHOR", "shop", "x"))]


def test_a_key_pattern_leads_joins_and_index_entries_to_the_same_entity() -> None:
    ruleset = joining(targetKeyPattern="AUTHOR#{tenantId}#le-{value}")
    found = evaluate(ruleset, KEY, {"by": "guin"}, having(SUMMARY))
    assert found.slices["S"].data == {"author": SUMMARY.data}
    assert found.index_entries == [("by", "guin", AUTHOR_KEY)]


def test_a_deleted_entity_has_tombstones_and_no_entries() -> None:
    found = evaluate(BOOK_RULESET, BOOK_KEY, None, nothing)
    reasons = {built.tombstone.reason for built in found.slices.values() if built.tombstone is not None}
    assert reasons == {"DELETED"} and len(found.slices) == 4
    assert found.index_entries == [] and found.dependencies == ()


def test_index_values_are_text_and_keep_their_case() -> None:
    ruleset = ruleset_of(
        [{"type": "S", "buildRules": {"type": "PassThrough", "fields": ["x"]}}],
        indexes=[{"type": "x", "selector": "x"}],
    )

    def index_text(value: Any) -> Any:
        found = evaluate(ruleset, KEY, {"x": value}, nothing).index_entries
        return found[0][1] if found else None

    values: list[Any] = ["Ab", 1, 1.0, True, 1.5, None, {}, []]
    assert list(map(index_text, values)) == ["Ab", "1", "1", "true", "1.5", None, None, None]
    assert index_text("x" * 512) == "x" * 512
    for odd in ("x" * 513, "é" * 300, "a\0b"):
        hashed = index_text(odd)
        assert hashed is not None and hashed.startswith("sha256:") and len(hashed) == 71


def test_hashes_do_not_depend_on_process_key_order_or_number_form() -> None:
    program = (
        "import json, sys\n"
        "from tests.core.slicing.shop import *\n"
        "from tests.core.entry_points.slicing import compile_entity\n"
        "raw = json.loads(sys.argv[1])\n"
        "found = compile_entity(BOOK_RULESET, BOOK_KEY, raw, having(SUMMARY))\n"
        "print(json.dumps([[each.type, each.hash] for each in found.built]), BOOK_RULESET.fingerprint)\n"
    )
    backwards = json.dumps({name: BOOK[name] for name in reversed(BOOK)}, indent=3).replace("1200", "1.2e3")
    answers = {
        subprocess.run(
            [sys.executable, "-c", program, text],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed, text in (("0", json.dumps(BOOK)), ("77", backwards))
    }
    assert len(answers) == 1
    hashes, _, fingerprint = answers.pop().rpartition(" ")
    price = hashlib.sha256(b'{"amount":{"minor":1200}}').hexdigest()
    assert dict(json.loads(hashes))["PRICE"] == f"sha256:{price}"
    # Stored beside every compile: another one here would make every store compile everything anew.
    assert fingerprint.strip() == "sha256:66c3a10c2b878efea1f42ac54f3e04f0ba00c240f5ba7b53c1b929a01415503f"
