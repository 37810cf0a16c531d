"""The rules of garbage collection keep every block that something leads to, and each of them is needed.

`python -m tests.models.counterexamples` shows what goes wrong without each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.depth import some
from tests.docs.pages import DOCS, table_rows
from tests.models import scenarios
from tests.models.counterexamples import NEEDS, counterexample, page
from tests.models.rules import COURTESY, Rule
from tests.models.scenarios import LARGE_SCENARIOS, SCENARIOS, Scenario, Setting, check

WORLDS = {"many writers": Setting(), "one writer": Setting(serial=True)}
"""As PostgreSQL has them, and SQLite."""
LONG = (scenarios.import_of_an_expired_version, scenarios.repacking)
"""More states than one waits for."""

MUST_HAPPEN: dict[Scenario, tuple[str, ...]] = {
    scenarios.dedup_commit: (
        "save: finds block b there, and clears its doom",
        "save: inserts block b",
        "collector: clears the doom of block b",
        "collector: finds that the lease is gone",
        "rival: deletes block b",
    ),
    scenarios.rollback_and_fork: (
        "rollback: finds manifest 1 gone and aborts",
        "rollback: commits with manifest 3",
        "fork: finds manifest 1 gone and aborts",
        "expiry of manifest 1: removes manifest 1",
        "collector: deletes block a",
        "collector: deletes block b",
    ),
    scenarios.fork_of_a_new_version: (
        "fork: commits with manifest 2",
        "fork: finds manifest 1 gone and aborts",
        "collector: clears the doom of block b",
        "collector: deletes block b",
    ),
    scenarios.merge: (
        "merge: commits with manifest 3",
        "merge: finds manifest 2 gone and aborts",
        "collector: deletes block x",
        "collector: deletes block y",
    ),
    scenarios.moved_subtree: (
        "save: commits with manifest 2",
        "save: finds manifest 1 gone and aborts",
        "collector: clears the doom of block n",
        "collector: deletes block a",
        "collector: deletes block b",
    ),
    scenarios.import_session: (
        "import: opens session s in pass 2",
        "import: finds block b there, and clears its doom",
        "import: finds session s gone and aborts",
        "import: commits with manifest 1 without session s",
        "collector: clears the doom of block a",
        "collector: deletes block a",
        "collector: deletes block b",
    ),
    scenarios.import_of_an_expired_version: (
        "import: commits with manifest 1 without session s",
        "import: inserts block b",
        "fork: finds manifest 1 gone and aborts",
        "fork: commits with manifest 2",
    ),
    scenarios.payload_lease: (
        "dehydrate: finds manifest 1 gone and aborts",
        "hydrate and save: finds lease l gone and aborts",
        "hydrate and save: commits with manifest 2",
        "end of execution: removes lease l",
        "collector: deletes block b",
    ),
    scenarios.pending: (
        "checkpoint: finds block b there, and clears its doom",
        "apply: commits with manifest 1 without pending q",
        "collector: reads the roots: pending q",
        "collector: clears the doom of block b",
        "collector: deletes block b",
    ),
    scenarios.two_saves: ("save: commits with manifest 1", "other save: inserts block y", "collector: deletes block x"),
    scenarios.tagged_version: (
        "tagging: commits with tag t",
        "tagging: finds no manifest 1",
        "expiry of manifest 1: finds manifest 1 kept and aborts",
        "expiry of manifest 1: removes manifest 1",
    ),
    scenarios.damaged_node: ("collector: cannot read block a and ends the pass", "disk: block a is repaired"),
    scenarios.upload: (
        "save: finds upload u claimed and aborts",
        "save: commits with manifest 1",
        "collector: claims upload u, which is temp",
        "collector: claims upload u, which is ready",
        "collector: deletes object u",
        "collector: forgets upload u",
    ),
    scenarios.dead_upload: ("collector: finds that the lease is gone", "rival: forgets upload u"),
    scenarios.repacking: (
        "packing: moves block b to v",
        "packing: finds block b elsewhere and aborts",
        "packing: finds upload v claimed and aborts",
        "collector: deletes object u",
        "collector: deletes object v",
    ),
    scenarios.power_loss: ("power: whatever was not durable is gone", "collector: deletes object u"),
    scenarios.lost_expiry: ("power: whatever was not durable is gone", "collector: deletes block b"),
}
"""What some interleaving must show. A scenario in which this cannot happen is not about what it says."""


@pytest.mark.parametrize("world", some(list(WORLDS), test=["many writers"]))
@pytest.mark.parametrize(
    "scenario",
    some(SCENARIOS, test=[each for each in SCENARIOS if each not in LONG]),
    ids=lambda scenario: scenario.__name__,
)
def test_no_interleaving_loses_or_leaves_anything(scenario: Scenario, world: str) -> None:
    found = check(scenario, WORLDS[world])
    print(f"{found.states:,} states, {found.transitions:,} transitions, {found.at_rest:,} at rest")
    assert found.trace is None, f"\n{found.trace}"
    assert set(MUST_HAPPEN[scenario]) <= found.said


@pytest.mark.parametrize("rule", NEEDS, ids=lambda rule: rule.name)
def test_without_any_one_rule_something_is_lost(rule: Rule) -> None:
    trace = counterexample(rule)
    assert trace is not None
    print(f"without {rule}: {rule.says}\n{trace}")


@pytest.mark.deep("every rule again")
@pytest.mark.parametrize("rule", NEEDS, ids=lambda rule: rule.name)
def test_a_single_writer_makes_up_for_some_rules(rule: Rule) -> None:
    assert (counterexample(rule, serial=True) is not None) == NEEDS[rule].on_sqlite


@pytest.mark.deep("every scenario again")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_without_the_courtesies_nothing_is_lost(scenario: Scenario) -> None:
    for rule in COURTESY:
        found = check(scenario, Setting().without(rule))
        assert found.trace is None, f"{rule} is more than a courtesy\n{found.trace}"


@pytest.mark.deep("every rule again")
def test_the_page_shows_what_the_checker_finds() -> None:
    written = (DOCS / "design" / "garbage-collection-counterexamples.md").read_text(encoding="utf-8")
    assert written == page(), (
        "python -m tests.models.counterexamples > docs/design/garbage-collection-counterexamples.md"
    )


def test_the_design_page_lists_the_rules() -> None:
    rows = table_rows(DOCS / "design" / "garbage-collection.md", first_heading="rule")
    listed = {number: says for number, says, *_ in rows}
    assert listed == {rule.number: rule.says for rule in Rule}
    needed = {number: sqlite for number, _, sqlite, *_ in rows}
    assert needed == {rule.number: _needed(rule) for rule in Rule}


def _needed(rule: Rule) -> str:
    return "courtesy" if rule in COURTESY else "both" if NEEDS[rule].on_sqlite else "PostgreSQL"


@pytest.mark.soak
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_second_collector_changes_nothing(scenario: Scenario, world: str) -> None:
    found = check(scenario, replace(WORLDS[world], rivals=1, more_passes=-1), most_states=10_000_000)
    assert found.trace is None, f"\n{found.trace}"


@pytest.mark.soak
@pytest.mark.parametrize("scenario", LARGE_SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_interleaving_of_many_loses_anything(scenario: Scenario) -> None:
    found = check(scenario, Setting(), most_states=10_000_000)
    assert found.trace is None, f"\n{found.trace}"


@pytest.mark.soak
@pytest.mark.parametrize(
    "rule", [rule for rule, need in NEEDS.items() if not need.on_sqlite], ids=lambda rule: rule.name
)
def test_a_rule_that_sqlite_does_not_need_is_needed_in_no_scenario_there(rule: Rule) -> None:
    for scenario in SCENARIOS:
        assert check(scenario, Setting(serial=True).without(rule)).trace is None
