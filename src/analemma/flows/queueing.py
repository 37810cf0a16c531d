"""Queues as callers see them: limits on the runs that are left to workers under a name."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any, Final

from analemma.catalog.engine.db import Transaction
from analemma.catalog.runs.queues import Queue as Queue
from analemma.catalog.runs.runs import as_us
from analemma.errors import Invalid, NotFound
from analemma.state.arguments import check_name

if TYPE_CHECKING:
    from analemma.flows.held_runs import RunnerParts

PRIORITIES: Final = range(-100, 101)
"""Each that is used costs every claim one look into an index."""
MOST: Final = 1_000_000
LONGEST_PERIOD_S: Final = 31_536_000
LONGEST_DELAY_S: Final = 3_153_600_000


class Queues:
    """One tenant's queues. A queue is there as soon as a run is started in it; one without limits takes any number.

    >>> import analemma
    >>> app = analemma.open("sqlite:///:memory:")
    >>> app.flows.queues.set("mail", concurrency=2, rate=100, per_s=60).rate
    100
    >>> app.close()
    """

    def __init__(self, parts: RunnerParts) -> None:
        self._engine = parts.engine
        self._tenant = parts.tenant

    def set(
        self, name: str, *, concurrency: int | None = None, rate: int | None = None, per_s: float | None = None
    ) -> Queue:
        """Say what the limits of a queue are, in the place of those that it had: at most `concurrency` runs at a time,
        and at most `rate` that begin within any `per_s` seconds. What is left out is not limited."""
        check_label(name, "queue")
        for what, value in (("concurrency", concurrency), ("rate", rate)):
            if value is not None and (type(value) is not int or not 1 <= value <= MOST):
                raise Invalid(
                    f"a {what} of {value!r}", hint=f"from 1 to {MOST}; pause what feeds the queue instead of 0"
                )
        if (rate is None) != (per_s is None):
            raise Invalid("a rate needs both rate and per_s", hint="rate=10, per_s=60: ten runs a minute")
        if per_s is not None and not (isinstance(per_s, int | float) and 0.001 <= per_s <= LONGEST_PERIOD_S):
            raise Invalid(f"a period of {per_s!r} s", hint=f"from 0.001 to {LONGEST_PERIOD_S}")
        limits = {"concurrency": concurrency, "rate": rate, "period": as_us(per_s)}
        self._engine.execute("put_queue", tenant=self._tenant, queue=name, **limits)
        return self.get(name)

    def list(self) -> list[Queue]:
        """Every queue that has limits or runs, by name."""
        return self._engine.rows(Queue, "queues", tenant=self._tenant)

    def get(self, name: str) -> Queue:
        """One queue; NotFound if it has neither limits nor runs."""
        check_name(name, "queue")
        for queue in self.list():
            if queue.name == name:
                return queue
        raise NotFound(f"there is no queue {name}", hint="it is there once it is set, or a run is started in it")

    def remove(self, name: str) -> None:
        """Forget the limits of a queue; runs that wait in it go on without any. NotFound if it has none."""
        check_name(name, "queue")
        asked = {"tenant": self._tenant, "queue": name}

        def drop(tx: Transaction) -> bool:
            if tx.execute("drop_queue", **asked) != 1:
                return False
            tx.execute("drop_starts", seq=1 << 62, **asked)
            return True

        if not self._engine.write(drop):
            raise NotFound(f"the queue {name} has no limits", hint="queues.list() has those that have", queue=name)


def check_label(name: Any, what: str) -> str:
    """A name that people and their terminals read."""
    check_name(name, what)
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        raise Invalid(f"the {what} {name!r} has control characters", hint="letters, digits and the like")
    return str(name)


def check_delay(delay_s: Any) -> None:
    """Invalid unless a run can wait so long."""
    if type(delay_s) not in (int, float) or not 0 <= delay_s <= LONGEST_DELAY_S:
        raise Invalid(f"a delay of {delay_s!r} s", hint=f"from 0 to {LONGEST_DELAY_S}")


def check_place(queue: Any, priority: Any) -> None:
    """Invalid unless a run can stand there."""
    if queue != "":
        check_label(queue, "queue")
    if type(priority) is not int or priority not in PRIORITIES:
        raise Invalid(f"a priority of {priority!r}", hint=f"from {PRIORITIES[0]} to {PRIORITIES[-1]}")
    if priority and not queue:
        raise Invalid("a priority without a queue", hint="name a queue: runs of none go by when they are due")
