"""When schedules tick: on the wall's clock, also where that jumps, and what becomes of ticks that were missed."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest

from tests.core.entry_points.flows import Policy, Ticks, due_ticks
from tests.depth import some

HOUR = 3600 * 1_000_000


def iso(us: int) -> str:
    return dt.datetime.fromtimestamp(us // 1_000_000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def us(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp()) * 1_000_000


def ticks_of(cron: str, zone: str, first: str, last: str) -> list[str]:
    return [iso(each)[5:16] for each in Ticks(cron, zone).between(us(first), us(last), 1000)]


def test_clocks_that_are_set_forward() -> None:
    for cron, expected in (
        # There is no 02:30: it runs once, when the clocks are set.
        ("30 2 * * *", ["03-28T01:30", "03-29T01:00", "03-30T00:30"]),
        ("0 9 * * *", ["03-28T08:00", "03-29T07:00", "03-30T07:00"]),
        ("30 */12 * * *", ["03-28T11:30", "03-28T23:30", "03-29T10:30", "03-29T22:30", "03-30T10:30"]),
    ):
        found = ticks_of(cron, "Europe/Berlin", "2026-03-28T00:00:00+00:00", "2026-03-30T12:00:00+00:00")
        assert found == expected, cron


def test_hourly_ticks_go_by_elapsed_time_where_clocks_are_set() -> None:
    forward = ticks_of("15 * * * *", "Europe/Berlin", "2026-03-29T00:00:00+00:00", "2026-03-29T03:00:00+00:00")
    assert forward == ["03-29T00:15", "03-29T01:15", "03-29T02:15"]
    back = ticks_of("15 * * * *", "Europe/Berlin", "2026-10-25T00:00:00+00:00", "2026-10-25T03:00:00+00:00")
    assert back == ["10-25T00:15", "10-25T01:15", "10-25T02:15"]


def test_a_time_that_there_is_twice_ticks_once() -> None:
    found = ticks_of("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", "2026-10-26T12:00:00+00:00")
    assert found == ["10-25T00:30", "10-26T01:30"]
    # Also for whoever begins to count between the two.
    assert Ticks("30 2 * * *", "Europe/Berlin").next(us("2026-10-25T00:45:00+00:00")) == us("2026-10-26T01:30:00+00:00")


def clock_changes(zone: str) -> list[int]:
    """When the clocks of a zone are set in 2026, to the hour."""
    hours = [us("2026-01-01T00:00:00+00:00") + number * HOUR for number in range(365 * 24)]
    offsets = [dt.datetime.fromtimestamp(hour / 1e6, ZoneInfo(zone)).utcoffset() for hour in hours]
    return [hours[place] for place in range(1, len(hours)) if offsets[place] != offsets[place - 1]]


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"]
CRONS = ["30 2 * * *", "0,30 0-3 * * *", "*/20 * * * *", "45 1,2,3 * * SUN", "59 23 L * *"]


@pytest.mark.parametrize("zone", some(ZONES, test=["Europe/Berlin", "Australia/Lord_Howe"]))
@pytest.mark.parametrize("cron", some(CRONS, test=["30 2 * * *", "0,30 0-3 * * *"]))
def test_ticks_do_not_depend_on_where_one_begins_to_count(cron: str, zone: str) -> None:
    ticks, changes = Ticks(cron, zone), clock_changes(zone)
    assert len(changes) == 2
    for change in changes:
        last = change + 48 * HOUR
        known = list(takewhile(last.__ge__, ticks.after(change - 48 * HOUR)))
        assert known == sorted(set(known))
        for time in range(change - 4 * HOUR, change + 4 * HOUR, 13 * 60_000_000):
            place = bisect_right(known, time)
            if place < len(known):
                assert ticks.next(time) == known[place], iso(time)


def test_intervals_keep_their_anchor() -> None:
    ticks = Ticks(every_s=90, anchor_us=us("2026-01-01T00:00:10+00:00"))
    assert iso(ticks.next(us("2026-01-01T00:01:40+00:00")) or 0) == "2026-01-01T00:03:10Z"
    assert iso(ticks.next(us("2026-01-01T00:00:00+00:00")) or 0) == "2026-01-01T00:00:10Z"


NOW = us("2026-05-01T12:00:30+00:00")


def test_ticks_that_were_missed() -> None:
    for catch_up, expected in (
        ("skip", ["12:00"]),
        ("one", ["11:45", "12:00"]),
        ("all", ["11:15", "11:30", "11:45", "12:00"]),
    ):
        ticks, policy = Ticks("*/15 * * * *"), Policy(catch_up, limit=3, grace_s=60)  # type: ignore[arg-type]
        due = due_ticks(ticks, policy, us("2025-05-01T00:00:00+00:00"), NOW, 100)
        assert [iso(each)[11:16] for each in due] == expected, catch_up


def test_a_tick_that_is_on_time_is_run_whatever_becomes_of_others() -> None:
    for catch_up in ("skip", "one", "all"):
        policy = Policy(catch_up, grace_s=60)
        assert due_ticks(Ticks("* * * * *"), policy, us("2026-05-01T12:00:00+00:00"), NOW, 100) == [
            us("2026-05-01T12:00:00+00:00")
        ]


def test_a_year_of_missed_minutes_is_not_walked_through() -> None:
    policy = Policy("all", limit=2)
    due = due_ticks(Ticks("* * * * *"), policy, us("2016-01-01T00:00:00+00:00"), NOW, 100)
    assert [iso(each)[11:16] for each in due] == ["11:58", "11:59", "12:00"]
    due = due_ticks(Ticks(every_s=1), policy, us("2016-01-01T00:00:00+00:00"), NOW, 3)
    assert [iso(each)[11:19] for each in due] == ["11:59:28", "11:59:29", "12:00:28", "12:00:29", "12:00:30"]


def test_an_interval_has_no_ticks_before_its_anchor_but_the_one_that_was_due() -> None:
    due_us, anchor_us = us("2026-05-01T11:00:00+00:00"), us("2026-05-01T12:00:00+00:00")
    ticks = Ticks(every_s=600, anchor_us=anchor_us)
    for policy in (Policy("one"), Policy("all"), Policy("one", grace_s=7200)):
        assert due_ticks(ticks, policy, due_us, NOW, 100) == [due_us]
        later = anchor_us + HOUR
        assert due_ticks(ticks, policy, due_us, later, 100)[-1] == later
