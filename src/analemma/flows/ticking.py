"""When schedules tick: pure, from a definition and two times. Times are microseconds since 1970-01-01Z.

Cron goes by the clock on the wall of its time zone, as Debian's does: what is at a fixed time runs once on the day on
which clocks are set forward (as soon as there is such a time) and once on the day on which they are set back; what is
hourly or more often (`*` in the minutes or hours) goes by elapsed time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from analemma.errors import Invalid

CatchUp = Literal["skip", "one", "all"]
CATCH_UPS: Final = get_args(CatchUp)
SECOND_US: Final = 1_000_000
SHORTEST_S: Final = 1.0
LONGEST_S: Final = 366 * 86_400
NO_ZONES: Final = ("localtime", "posixrules")
NO_FOLDERS: Final = ("posix/", "right/")
"""Files beside the zones: what a machine has there is its own matter, and not every one has it."""
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Ticks:
    """When something ticks: a cron expression in a time zone, or an interval from an anchor on."""

    cron: str | None = None
    zone: str = "UTC"
    every_s: float | None = None
    anchor_us: int = 0

    def after(self, time_us: int) -> Iterator[int]:
        """Every tick behind a time, in order.

        >>> nine = Ticks("0 9 * * *", "Europe/Berlin").after(1_711_753_200_000_000)
        >>> [iso(next(nine)), iso(next(nine))]
        ['2024-03-30T08:00:00Z', '2024-03-31T07:00:00Z']
        """
        if self.every_s is not None:
            every_us = round(self.every_s * SECOND_US)
            tick = self.anchor_us + ((time_us - self.anchor_us) // every_us + 1) * every_us
            while True:
                yield tick
                tick += every_us
        assert self.cron is not None
        last = time_us
        for found in CronSim(self.cron, _moment(time_us).astimezone(ZoneInfo(self.zone))):
            tick = _us(found)
            # The hour that there is twice is begun from its first time, whichever it was: what is over is left out.
            if tick > last:
                yield tick
                last = tick

    def next(self, time_us: int) -> int | None:
        """The first tick behind a time; None: there is none any more."""
        return next(self.after(time_us), None)

    def between(self, first_us: int, last_us: int, most: int) -> list[int]:
        """The last `most` ticks from one time to another, both counted, without walking through all before them."""
        if self.every_s is not None:
            every_us = round(self.every_s * SECOND_US)
            first_us = max(first_us, last_us - most * every_us + 1)
        span_us = 60 * SECOND_US * (most + 1)
        while True:
            begin_us = max(first_us, last_us - span_us)
            found: list[int] = []
            for tick in self.after(begin_us - 1):
                if tick > last_us:
                    break
                found.append(tick)
            if len(found) >= most or begin_us == first_us:
                return found[-most:] if most else []
            span_us *= 8


def check_ticks(ticks: Ticks) -> None:
    """Invalid unless it says when to tick, in one way."""
    if (ticks.cron is None) == (ticks.every_s is None):
        raise Invalid("a schedule has either cron or every_s", hint='cron="0 9 * * MON-FRI", or every_s=3600')
    if ticks.every_s is not None:
        if not isinstance(ticks.every_s, int | float) or not SHORTEST_S <= ticks.every_s <= LONGEST_S:
            raise Invalid(f"an interval of {ticks.every_s!r} s", hint=f"from {SHORTEST_S:g} to {LONGEST_S}")
        return
    try:
        ZoneInfo(ticks.zone)
        is_known = ticks.zone not in NO_ZONES and not ticks.zone.startswith(NO_FOLDERS)
    except (KeyError, OSError, ValueError, TypeError) as exc:
        raise Invalid(f"there is no time zone {ticks.zone!r}", hint="a name as Europe/Berlin, or UTC") from exc
    if not is_known:
        raise Invalid(f"{ticks.zone} is another time zone on every machine", hint="a name as Europe/Berlin, or UTC")
    if not isinstance(ticks.cron, str) or len(ticks.cron.split()) != 5:
        raise Invalid(f"{ticks.cron!r} is no schedule", hint="minute hour day month weekday")
    try:
        found = next(iter(CronSim(ticks.cron, EPOCH)), None)
    except CronSimError as exc:
        raise Invalid(f"{ticks.cron!r} is no schedule: {exc}", hint="minute hour day month weekday") from exc
    if found is None:
        raise Invalid(f"{ticks.cron!r} never comes", hint="such a day is in no month")


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of ticks at which nobody was there."""

    catch_up: CatchUp = "one"
    limit: int = 10
    """With `all`: of how many, the newest."""
    grace_s: float = 60.0
    """A tick that is no older than this was not missed."""


def due_ticks(
    ticks: Ticks, policy: Policy, next_us: int, now_us: int, most: int, *, look_us: int | None = None
) -> list[int]:
    """The ticks to run now, in order, of all from the next one on: those that are not older than the grace allows, at
    most so many; and of those that were missed none, the last, or the last few.

    The next one is a tick, even if the others are elsewhere by now. It may have been put off until `look_us`: then it
    was missed if nobody came for so long after that."""
    grace_us = round(policy.grace_s * SECOND_US)
    missed_us = now_us - grace_us - 1
    missed = {"skip": 0, "one": 1, "all": policy.limit}[policy.catch_up]
    # An interval that took the place of another has no ticks of its own before that.
    since_us = next_us if ticks.every_s is None else max(next_us, ticks.anchor_us)
    late = ticks.between(since_us + 1, missed_us, missed) if missed and since_us < missed_us else []
    recent = ticks.between(max(since_us, missed_us) + 1, now_us, most)
    put_off = look_us is not None and look_us > next_us and now_us - look_us <= grace_us
    if next_us > missed_us:
        recent = [next_us, *recent][-most:]
    elif len(late) < missed or (put_off and policy.catch_up == "skip"):
        late = [next_us, *late]
    return [*late, *recent]


def iso(time_us: int) -> str:
    """A tick as text, as keys and inputs have it."""
    return _moment(time_us).isoformat().replace("+00:00", "Z")


def _moment(time_us: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=time_us)


def _us(moment: dt.datetime) -> int:
    return (moment.astimezone(dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)
