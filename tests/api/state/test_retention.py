"""Retention: what goes, what stays and why, and that nothing goes which something needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from analemma import App, Commit
from analemma.errors import Corrupt, Expired, Invalid, NotFound
from analemma.testing import failpoints
from tests.api.state.journal_rows import journal
from tests.depth import count
from tests.raw_rows import change
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
WEEK_US = 7 * DAY_US
NOW_US = 4 * DAY_US + 500 * WEEK_US
"""A Monday's midnight: 1970 began on a Thursday."""


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def save(app: App, count: int, branch: str = "main") -> list[Commit]:
    return [app.kernel.save_state_delta({"n": number}, **PLACE, branch=branch) for number in range(count)]


def versions(app: App, branch: str = "main") -> list[int]:
    return [version.version for version in app.kernel.history(**PLACE, branch=branch, limit=1000)]


class Planned:
    """Branches whose versions have ages that are given."""

    def __init__(self, app: App, store: Store) -> None:
        self._kernel = app.kernel
        self._store = store
        self._made = 0

    def __call__(
        self, ages_us: list[int], rules: dict[str, Any], tagged: Collection[int] = (), pinned: Collection[int] = ()
    ) -> dict[int, tuple[str, ...]]:
        """Versions 1, 2, ... of these ages, oldest first: why each one stays."""
        self._made += 1
        place: dict[str, Any] = {"workflow_id": f"planned {self._made}", "owner_id": "ann"}
        for number, age in enumerate(ages_us, 1):
            commit = self._kernel.save_state_delta({"n": number}, **place)
            time = "UPDATE manifest SET created_at = ? WHERE id = ?"
            assert change(self._store, time, (NOW_US - age, bytes.fromhex(commit.manifest_id))) == 1
            if number in tagged:
                self._kernel.tag(commit.manifest_id, f"v{number}.0", owner_id="ann")
            if number in pinned:
                self._kernel.pin(commit.manifest_id, owner_id="ann")
        self._kernel.set_retention(**place, **rules)
        plan = self._kernel.expire(**place, dry_run=True, now_us=NOW_US)
        assert len(plan.expired) + len(plan.kept) == len(ages_us)
        return {kept.version.version: kept.reasons for kept in plan.kept}


@pytest.fixture
def planned(app: App, store: Store) -> Planned:
    return Planned(app, store)


def test_without_a_rule_everything_stays(planned: Planned) -> None:
    assert planned([WEEK_US * 99, WEEK_US, 0], {}) == {3: ("head", "no rule"), 2: ("no rule",), 1: ("no rule",)}


def test_the_last_ones_the_newer_ones_and_those_that_are_marked_stay(planned: Planned) -> None:
    assert planned([5, 4, 3, 2], {"keep_last": 2}) == {4: ("head", "last"), 3: ("last",)}
    ages = [61 * SECOND_US, 60 * SECOND_US, 59 * SECOND_US, 99 * SECOND_US]
    assert planned(ages, {"keep_newer_than_s": 60}) == {4: ("head",), 3: ("newer",)}
    kept = planned([5, 4, 3, 2], {"keep_last": 1}, tagged={1}, pinned={1, 3})
    assert kept == {4: ("head", "last"), 3: ("pinned",), 1: ("tagged", "pinned")}


def test_the_newest_of_each_hour_day_and_week_stays(planned: Planned) -> None:
    # NOW_US is the beginning of an hour, so an age of 1 lies in the hour before it.
    ages = [3 * HOUR_US, 2 * HOUR_US + 5, 2 * HOUR_US + 1, HOUR_US + 1, 9, 1]
    assert planned(ages, {"keep_hourly": 3}) == {6: ("head", "hourly"), 4: ("hourly",), 3: ("hourly",)}
    # Hours without versions do not count.
    assert planned([90 * DAY_US, 50 * DAY_US, 1], {"keep_hourly": 2}) == {3: ("head", "hourly"), 2: ("hourly",)}
    # It is a Monday's midnight: an age of 7 days is the Monday before, a microsecond more the Sunday before that.
    ages = [WEEK_US + 1, 7 * DAY_US, DAY_US + 1, DAY_US, 1]
    assert planned(ages, {"keep_weekly": 9}) == {5: ("head", "weekly"), 1: ("weekly",)}
    assert planned(ages, {"keep_daily": 3}) == {5: ("head", "daily"), 3: ("daily",), 2: ("daily",)}


def test_by_default_nothing_expires(app: App) -> None:
    save(app, 4)
    assert app.kernel.expire(**PLACE).expired == ()
    assert versions(app) == [4, 3, 2, 1]


def test_expired_versions_are_expired_not_unknown(app: App) -> None:
    first, second, third, fourth = save(app, 4)
    app.kernel.set_retention(**PLACE, keep_last=2)
    plan = app.kernel.expire(**PLACE)
    assert [version.version for version in plan.expired] == [2, 1]
    assert versions(app) == [4, 3]
    asks: list[Callable[[], Any]] = [
        lambda: app.kernel.load_state(first.manifest_id),
        lambda: app.kernel.load_state(first.manifest_id, owner_id="ann"),
        lambda: app.kernel.load_fields(first.manifest_id, ["n"]),
        lambda: app.kernel.diff(first.manifest_id, fourth.manifest_id),
        lambda: app.kernel.fork(first.manifest_id, owner_id="ann", branch="idea"),
        lambda: app.kernel.rollback_to_version(**PLACE, version=2),
        lambda: app.kernel.tag(first.manifest_id, "old", owner_id="ann"),
        lambda: app.kernel.decide(second.manifest_id, "approved", actor="eve"),
    ]
    for ask in asks:
        with pytest.raises(Expired):
            ask()
    with pytest.raises(NotFound):
        app.kernel.load_state(first.manifest_id, owner_id="bob")
    with pytest.raises(NotFound):
        app.kernel.rollback_to_version(**PLACE, version=9)
    assert app.kernel.load_state(third.manifest_id) == {"n": 2}
    assert app.kernel.expire(**PLACE).expired == ()


def test_the_journal_says_what_expired_and_the_branch_still_verifies(app: App, store: Store) -> None:
    commits = save(app, 6)
    app.kernel.set_retention(**PLACE, keep_last=1)
    app.kernel.expire(**PLACE)
    record = journal(store)[-1]
    assert record["kind"] == "expired"
    assert set(record["facts"]["manifests"]) == {commit.manifest_id for commit in commits[:-1]}
    save(app, 2)
    report = app.kernel.verify(**PLACE)
    assert report.problems == [] and report.records == 9
    assert versions(app) == [8, 7, 6]
    assert app.kernel.blame(**PLACE, path="n").version == 8


def test_a_dry_run_changes_nothing(app: App) -> None:
    save(app, 4)
    app.kernel.set_retention(**PLACE, keep_last=1)
    plan = app.kernel.expire(**PLACE, dry_run=True)
    assert [version.version for version in plan.expired] == [3, 2, 1]
    assert versions(app) == [4, 3, 2, 1]
    assert app.kernel.expire(**PLACE).expired == plan.expired


def test_head_tags_and_pins_survive_and_go_when_unmarked(app: App) -> None:
    commits = save(app, 5)
    app.kernel.tag(commits[0].manifest_id, "first", owner_id="ann")
    app.kernel.pin(commits[2].manifest_id, owner_id="ann")
    app.kernel.set_retention(owner_id="ann", keep_newer_than_s=1)
    app.kernel.set_retention(**PLACE, keep_last=1)
    app.kernel.expire(**PLACE)
    assert versions(app) == [5, 3, 1]
    app.kernel.untag("first", **PLACE)
    app.kernel.unpin(commits[2].manifest_id, owner_id="ann")
    app.kernel.expire(**PLACE)
    assert versions(app) == [5]


def test_a_workflows_policy_comes_before_its_owners(app: App) -> None:
    nothing = app.kernel.get_retention(**PLACE)
    assert (nothing.keep_last, nothing.keep_newer_than_s, nothing.keep_daily) == (None, None, None)
    app.kernel.set_retention(owner_id="ann", keep_last=3)
    assert app.kernel.get_retention(**PLACE).keep_last == 3
    own = app.kernel.set_retention(**PLACE, keep_daily=7)
    assert app.kernel.get_retention(**PLACE) == own and (own.keep_last, own.keep_daily) == (None, 7)
    assert app.kernel.get_retention(owner_id="ann").keep_last == 3
    assert app.kernel.get_retention(owner_id="bob") == nothing


def test_odd_policies_are_refused_and_the_hint_says_what_a_rule_is(app: App) -> None:
    with pytest.raises(Invalid):
        app.kernel.set_retention(owner_id="ann", keep_last=0)
    with pytest.raises(Invalid):
        app.kernel.set_retention(owner_id="ann", keep_last=1, keep_tagged=False)
    odd: list[Any] = [0, -5, 3600.0, True, "3600"]
    for value in odd:
        with pytest.raises(Invalid, match=f"keep_newer_than_s is {value!r}") as caught:
            app.kernel.set_retention(owner_id="ann", keep_newer_than_s=value)
        assert caught.value.hint == "rules are whole numbers from 1 on; leave out those you do not want"


def test_a_time_that_is_none_is_refused_whether_or_not_a_rule_looks_at_it(app: App) -> None:
    save(app, 3)
    odd: list[Any] = ["x", 1.0, True]
    for last, newer_than_s in ((None, None), (1, None), (None, 1)):
        app.kernel.set_retention(**PLACE, keep_last=last, keep_newer_than_s=newer_than_s)
        for call in (partial(app.kernel.expire, **PLACE), app.kernel.expire_all):
            for now_us in odd:
                with pytest.raises(Invalid, match="now_us"):
                    call(now_us=now_us)
    assert versions(app) == [3, 2, 1]


@pytest.mark.deep("saves 1,100 versions")
def test_more_than_one_batch_expires(app: App) -> None:
    save(app, 1100)
    app.kernel.set_retention(**PLACE, keep_last=2)
    assert len(app.kernel.expire(**PLACE).expired) == 1098
    report = app.kernel.verify(**PLACE)
    # Three records of at most 500 each.
    assert report.ok and report.records == 1103
    assert versions(app) == [1100, 1099]


def test_an_idempotency_key_outlives_its_version(app: App) -> None:
    first = app.kernel.save_state_delta({"n": 1}, **PLACE, idempotency_key="once")
    save(app, 2)
    app.kernel.set_retention(**PLACE, keep_last=1)
    app.kernel.expire(**PLACE)
    assert app.kernel.save_state_delta({"n": 1}, **PLACE, idempotency_key="once") == first
    assert versions(app) == [3]


def test_decisions_outlive_the_version_but_do_not_make_it_safe(app: App) -> None:
    first, *_ = save(app, 3)
    app.kernel.decide(first.manifest_id, "approved", actor="eve")
    app.kernel.set_retention(**PLACE, keep_last=1)
    app.kernel.expire(**PLACE)
    assert [decision.actor for decision in app.kernel.decisions(first.manifest_id)] == ["eve"]
    with pytest.raises(NotFound):
        app.kernel.last_safe_manifest(**PLACE)


def test_a_fork_lives_on_when_its_source_expires(app: App) -> None:
    first, *_ = save(app, 3)
    fork = app.kernel.fork(first.manifest_id, owner_id="ann", branch="idea")
    app.kernel.set_retention(**PLACE, keep_last=1)
    app.kernel.expire(**PLACE)
    assert app.kernel.load_state(fork.manifest_id) == {"n": 0}
    assert app.kernel.branches(**PLACE)[1].parent_id == first.manifest_id
    assert app.kernel.verify(**PLACE, branch="idea").ok
    save(app, 1, branch="idea")


ROUNDS = count(test=4, deep=12)


def race(app: App, rounds: int, rival: Callable[[int, str], object]) -> tuple[int, int]:
    """Expire all but the head while `rival(round, manifest)` builds on the oldest version: (rival won, it expired)."""
    won = lost = 0
    app.kernel.set_retention(**PLACE, keep_last=1)
    for turn in range(rounds):
        oldest, *_ = save(app, 3)
        start = threading.Barrier(2)

        def build(turn: int = turn, oldest: Commit = oldest, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                rival(turn, oldest.manifest_id)
            except Expired:
                return False
            return True

        def expire(start: threading.Barrier = start) -> None:
            start.wait()
            app.kernel.expire(**PLACE)

        with ThreadPoolExecutor(2) as pool:
            built, expired = pool.submit(build), pool.submit(expire)
            expired.result()
            if built.result():
                won += 1
            else:
                lost += 1
        for branch in app.kernel.branches(**PLACE):
            assert app.kernel.load_state(branch.manifest_id)["n"] in (0, 2)
            assert app.kernel.verify(**PLACE, branch=branch.name).problems == []
    return won, lost


def test_a_fork_of_a_version_that_is_expiring_succeeds_or_is_told(app: App) -> None:
    won, lost = race(app, ROUNDS, lambda turn, oldest: app.kernel.fork(oldest, owner_id="ann", branch=f"b{turn}"))
    assert won + lost == ROUNDS
    assert len(app.kernel.branches(**PLACE)) == 1 + won


def test_a_rollback_to_a_version_that_is_expiring_succeeds_or_is_told(app: App) -> None:
    def roll_back(_: int, oldest: str) -> None:
        version = app.kernel.history(**PLACE, limit=1)[0].version - 2
        app.kernel.rollback_to_version(**PLACE, version=max(1, version))

    won, lost = race(app, ROUNDS, roll_back)
    assert won + lost == ROUNDS


def test_a_tag_on_a_version_that_is_expiring_keeps_it_or_is_told(app: App) -> None:
    won, _ = race(app, ROUNDS, lambda turn, oldest: app.kernel.tag(oldest, f"t{turn}", owner_id="ann"))
    tags = app.kernel.tags(**PLACE)
    assert len(tags) == won
    for tag in tags:
        assert app.kernel.load_state(tag.manifest_id) == {"n": 0}


def test_saves_go_on_while_versions_expire(app: App) -> None:
    save(app, 40)
    app.kernel.set_retention(**PLACE, keep_last=3)
    stop = threading.Event()

    def expire() -> int:
        gone = 0
        while not stop.is_set():
            gone += len(app.kernel.expire(**PLACE).expired)
        return gone

    with ThreadPoolExecutor(3) as pool:
        expiring = [pool.submit(expire) for _ in range(2)]
        save(app, 40)
        stop.set()
        gone = sum(job.result() for job in expiring)
    gone += len(app.kernel.expire(**PLACE).expired)
    assert versions(app) == [80, 79, 78] and gone == 77
    assert app.kernel.verify(**PLACE).problems == []


def test_everything_that_has_rules_expires_at_once(app: App) -> None:
    def fill(owner: str, workflow: str, branch: str = "main") -> None:
        for number in range(4):
            app.kernel.save_state_delta({"n": number}, workflow_id=workflow, owner_id=owner, branch=branch)

    for owner, workflow in (("ann", "own"), ("ann", "owners"), ("ann", "all"), ("bob", "one"), ("bob", "free")):
        fill(owner, workflow)
    fill("ann", "owners", "idea")
    kernel = app.kernel
    kernel.set_retention(owner_id="ann", keep_last=1)
    kernel.set_retention(owner_id="ann", workflow_id="own", keep_last=3)
    kernel.set_retention(owner_id="ann", workflow_id="all")
    kernel.set_retention(owner_id="bob", workflow_id="one", keep_last=1)
    kernel.set_retention(owner_id="bob", workflow_id="nothing", keep_last=1)
    kernel.set_retention(owner_id="eve", keep_last=1)
    planned = kernel.expire_all(dry_run=True)
    assert {(each.owner_id, each.workflow_id, each.branch): each.expired for each in planned} == {
        ("ann", "own", "main"): 1,
        ("ann", "owners", "main"): 3,
        ("ann", "owners", "idea"): 3,
        ("bob", "one", "main"): 3,
    }
    assert len(kernel.history(workflow_id="owners", owner_id="ann")) == 4
    assert kernel.expire_all() == planned
    assert kernel.expire_all() == []
    assert [len(kernel.history(workflow_id=name, owner_id="ann")) for name in ("own", "owners", "all")] == [3, 1, 4]
    assert [len(kernel.history(workflow_id=name, owner_id="bob")) for name in ("one", "free")] == [1, 4]
    assert kernel.verify(workflow_id="owners", owner_id="ann", branch="idea").problems == []


def test_a_branch_that_cannot_expire_keeps_no_other_from_it(app: App) -> None:
    save(app, 3)
    for number in range(2):
        app.kernel.save_state_delta({"n": number}, workflow_id="a", owner_id="ann")
    app.kernel.set_retention(owner_id="ann", keep_last=1)

    def fail() -> None:
        raise Corrupt("damaged")

    with failpoints.call("record.before_transaction", fail):
        done = {each.workflow_id: (each.expired, each.problem) for each in app.kernel.expire_all()}
    assert done == {"a": (0, "damaged"), "trip": (2, None)}
