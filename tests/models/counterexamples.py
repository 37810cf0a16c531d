"""What goes wrong without each rule: for the page docs/design/garbage-collection-counterexamples.md, and for people.

python -m tests.models.counterexamples                                               show all
python -m tests.models.counterexamples CLEAR_DOOM                                    show one
python -m tests.models.counterexamples > docs/design/garbage-collection-counterexamples.md
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tests.models import scenarios
from tests.models.checker import Trace
from tests.models.rules import COURTESY, Rule
from tests.models.scenarios import Scenario, Setting, check

HEAD = """\
# Garbage collection: what goes wrong without each rule

The shortest way to break a store by leaving out one of the rules of [garbage collection](garbage-collection.md), as
the model checker in `tests/models` finds it. `python -m tests.models.counterexamples` writes this page, and a test
compares it.

Every line is one step of one process. Between two lines of the same process any time may pass. A process that is not
heard of again is still standing where it was. Where a rule is not needed on SQLite, the reason is that one transaction
writes at a time there (D3: that a collector does not outlive the machine of its database).
"""


@dataclass(frozen=True)
class Need:
    """Where it shows that a rule is needed."""

    scenario: Scenario
    on_sqlite: bool = True


NEEDS: dict[Rule, Need] = {
    Rule.CHECK_BASES: Need(scenarios.rollback_and_fork),
    Rule.HOLD_BASES: Need(scenarios.rollback_and_fork, on_sqlite=False),
    Rule.WRITE_EMITTED: Need(scenarios.dedup_commit),
    Rule.CLEAR_DOOM: Need(scenarios.dedup_commit),
    Rule.LOCK_EMITTED: Need(scenarios.dedup_commit, on_sqlite=False),
    Rule.ROOT_WITH_BLOCKS: Need(scenarios.pending),
    Rule.SAME_ORDER: Need(scenarios.two_saves, on_sqlite=False),
    Rule.RECHECK_EXPIRY: Need(scenarios.tagged_version),
    Rule.CHECK_FENCE: Need(scenarios.dedup_commit),
    Rule.HOLD_FENCE: Need(scenarios.dedup_commit, on_sqlite=False),
    Rule.LEASE_THEN_SNAPSHOT: Need(scenarios.dedup_commit),
    Rule.ONE_SNAPSHOT: Need(scenarios.pending),
    Rule.EVERY_PROVIDER: Need(scenarios.payload_lease),
    Rule.FOLLOW_LINKS: Need(scenarios.moved_subtree),
    Rule.STOP_AT_UNREADABLE: Need(scenarios.damaged_node),
    Rule.OWN_MARKS: Need(scenarios.dedup_commit),
    Rule.EARLIER_DOOM: Need(scenarios.dedup_commit),
    Rule.TEST_WHILE_DELETING: Need(scenarios.dedup_commit),
    Rule.RESPECT_SESSIONS: Need(scenarios.import_session),
    Rule.INTENT_FIRST: Need(scenarios.upload),
    Rule.READY_BY_COMPARE: Need(scenarios.upload),
    Rule.CLAIM_BY_COMPARE: Need(scenarios.upload, on_sqlite=False),
    Rule.UNNAMED_ONLY: Need(scenarios.upload),
    Rule.CLAIM_THEN_DELETE: Need(scenarios.upload),
    Rule.KEEP_INTENT: Need(scenarios.upload),
    Rule.FORGET_OWN: Need(scenarios.dead_upload),
    Rule.DURABLE_INTENT: Need(scenarios.power_loss),
    Rule.DURABLE_CLAIM: Need(scenarios.power_loss),
    Rule.DURABLE_SNAPSHOT: Need(scenarios.lost_expiry, on_sqlite=False),
}
assert NEEDS.keys() == set(Rule) - COURTESY


def counterexample(rule: Rule, *, serial: bool = False) -> Trace | None:
    """How the store breaks when one rule is off."""
    return check(NEEDS[rule].scenario, Setting(serial=serial).without(rule)).trace


def shown(rule: Rule) -> str:
    """One section of the page."""
    need = NEEDS[rule]
    trace = counterexample(rule)
    description = " ".join((need.scenario.__doc__ or "").split())
    where = "" if need.on_sqlite else " Not needed on SQLite."
    return f"## {rule.number}: {rule.says}\n\n{description}{where}\n\n```text\n{trace}\n```\n"


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *[shown(rule) for rule in NEEDS]])


if __name__ == "__main__":
    chosen = [Rule[name] for name in sys.argv[1:]]
    print("\n".join(map(shown, chosen)) if chosen else page(), end="")
