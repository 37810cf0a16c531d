"""How channels are delivered: who waits for whom, who is to blame, and what a database that fails leaves behind."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from analemma import App, Event
from analemma.catalog.channels import Channels
from analemma.catalog.outbox_claiming import OutboxClaims
from analemma.catalog.outbox_lanes import ClaimedLane, LaneKey, LaneOutcome
from analemma.catalog.outbox_tending import OutboxRows
from analemma.catalog.port import TenantId
from analemma.errors import Unavailable
from analemma.outbox.batches import BatchAnswer, ChannelPlan, Delivery, Failed, Rest, StillOurs
from analemma.outbox.channel_threads import ChannelOptions
from analemma.outbox.failures import RetryPolicy
from analemma.outbox.options import WorkerOptions
from analemma.outbox.upsets import MOST_LANES, Upsets
from analemma.outbox.worker import OutboxPollingWorker
from tests.outbox_events import event, produce
from tests.stores import Store

WAIT_S = 15

Answering = Callable[[Sequence[str]], BatchAnswer]


@dataclass
class Receiver:
    """Takes what channels have, and answers as a test wants."""

    plans: dict[str, ChannelPlan] = field(default_factory=dict)
    answering: Answering = lambda lanes: BatchAnswer()
    batches: list[tuple[str, list[str]]] = field(default_factory=list)
    """What it was given, in order: the channel, and the lanes."""
    is_careful: bool = False
    """Asks whether all leases are held."""

    def plan(self, channel: str) -> ChannelPlan:
        return self.plans.get(channel, ChannelPlan(1000))

    def read(self, channel: str, event: Event) -> str:
        return event.aggregate_id

    def deliver(self, channel: str, deliveries: Sequence[Delivery[str]], still_ours: StillOurs) -> BatchAnswer:
        lanes = [each[0] for each in deliveries]
        assert not self.is_careful or all(still_ours(least_s=0))
        self.batches.append((channel, lanes))
        return self.answering(lanes)

    def times(self, lane: str) -> int:
        return sum(lanes.count(lane) for _, lanes in self.batches)


class FailingChannels(Channels):
    """Finds the database away once, when asked for `failing`."""

    failing: str = ""
    error: Exception = Unavailable("the database went away for a moment")

    def __getattribute__(self, name: str) -> object:
        if name == object.__getattribute__(self, "failing"):
            self.failing = ""
            raise self.error
        return object.__getattribute__(self, name)


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


OPTIONS = ChannelOptions(
    poll_busy_s=0.01,
    poll_idle_s=0.02,
    retries=RetryPolicy(max_attempts=3, base_s=0),
    rest_s=0.01,
    longest_rest_s=0.02,
)


def ask(app: App, lanes: Sequence[str], channel: str = "x") -> None:
    """One event for each of these lanes of a channel."""
    produce(app, [replace(event(lane), channel=channel) for lane in lanes])


def worker_of(
    app: App,
    receiver: Receiver,
    *,
    claims: OutboxClaims | None = None,
    channels: Channels | None = None,
    options: ChannelOptions = OPTIONS,
    lease_s: float = 30,
) -> OutboxPollingWorker:
    engine = app.catalog.engine
    return OutboxPollingWorker(
        claims or OutboxClaims(engine, lease_s=lease_s),
        {},
        listen=app.catalog.wakeups.listen,
        options=WorkerOptions(concurrency=1, lease_s=lease_s, poll_busy_s=0.01, poll_idle_s=0.02),
        chance=random.Random(7),
        batches=(channels or Channels(engine), receiver, options),
    )


def drained(worker: OutboxPollingWorker) -> bool:
    """Whether a drain ends; it is stopped if not."""
    thread = threading.Thread(target=worker.drain, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    if not thread.is_alive():
        return True
    worker.stop()
    thread.join()
    return False


def suspect(app: App, lanes: int, attempts: int) -> None:
    """Workers died in all lanes that there are, so often, while they were tried."""
    claims = OutboxClaims(app.catalog.engine, lease_s=30)
    claimed = claims.claim(lanes=lanes, rows=lanes, channel="x")
    assert len(claimed) == lanes
    for lane in claimed:
        claims.blame(lane, attempts=attempts)
    claims.finish([LaneOutcome(lane, lane.done_seq) for lane in claimed])


@pytest.mark.parametrize("failing", ["take_turn", "rest", "wake", "blame", "held"])
def test_lanes_are_not_kept_when_the_database_fails_between_claim_and_finish(app: App, failing: str) -> None:
    is_down = iter([failing == "rest"])
    rest = BatchAnswer({0: Failed("down"), 1: Failed("down")}, Rest("down"))
    receiver = Receiver({"x": ChannelPlan(10, per_second=1000)}, lambda lanes: rest if next(is_down, False) else done)
    done = BatchAnswer()
    channels = FailingChannels(app.catalog.engine)
    ask(app, "ab")
    if failing == "blame":
        OutboxClaims(app.catalog.engine, lease_s=0.001).claim(lanes=2, rows=2, channel="x")
        time.sleep(0.01)
    elif failing == "wake":
        channels.rest("x", base_s=0.001, longest_s=0.001, asked_s=None, reason="down")
        time.sleep(0.01)
    elif failing == "held":
        receiver.is_careful = True
    channels.failing = failing
    assert drained(worker_of(app, receiver, channels=channels))
    assert channels.failing == "", "the database was not asked"
    end = time.monotonic() + WAIT_S
    while app.outbox.status().lanes and time.monotonic() < end:
        time.sleep(0.01)
        assert drained(worker_of(app, receiver))
    assert app.outbox.status().lanes == 0 and app.outbox.status().dead == 0


@pytest.mark.parametrize("failing", ["due", "thread"])
def test_a_worker_goes_on_with_channels_whatever_fails(app: App, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    channels = FailingChannels(app.catalog.engine)
    failures = ["thread"] if failing == "thread" else []
    start = threading.Thread.start

    def start_unless_failing(thread: threading.Thread) -> None:
        if thread.name.startswith("analemma-channel-") and failures:
            failures.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_failing)
    channels.error = RuntimeError("a bug")
    worker = worker_of(app, receiver, channels=channels)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    channels.failing = failing
    end = time.monotonic() + WAIT_S
    while channels.failing == "due" and time.monotonic() < end:
        time.sleep(0.01)
    ask(app, "a")
    while not receiver.batches and time.monotonic() < end:
        time.sleep(0.01)
    worker.stop()
    thread.join(WAIT_S)
    assert not thread.is_alive() and receiver.times("a") == 1 and not failures


class Mortal(OutboxClaims):
    """The claims of a worker that dies when it is told to: nothing that it says after that is heard."""

    is_dead = False

    def __getattribute__(self, name: str) -> object:
        if object.__getattribute__(self, "is_dead") and name in ("claim", "finish", "renew", "anything_due"):
            raise Unavailable("it is dead")
        return object.__getattribute__(self, name)


def hours_ahead(app: App, hours: int) -> Callable[[], int]:
    rows = OutboxRows(app.catalog.engine)
    return lambda: rows.now_us() + hours * 3_600_000_000


@pytest.mark.parametrize("most", [2, 3, 8])
def test_one_that_kills_workers_takes_no_others_with_it(app: App, most: int) -> None:
    lanes = [f"{number:02}" for number in range(40)]
    receiver = Receiver()
    options = replace(OPTIONS, retries=RetryPolicy(max_attempts=most, base_s=0))
    ask(app, lanes)
    deaths = 0
    while True:
        # Whoever comes next finds all leases of the dead run out.
        clock = hours_ahead(app, deaths)
        claims = Mortal(app.catalog.engine, lease_s=30, clock=clock)
        channels = Channels(app.catalog.engine, clock=clock)

        def answer(given: Sequence[str], claims: Mortal = claims) -> BatchAnswer:
            if "20" in given:
                claims.is_dead = True
                raise Unavailable("it dies")
            return BatchAnswer()

        receiver.answering = answer
        channels.rest = lambda *args, **more: 0.0  # type: ignore[method-assign]  # The dead do not say that either.
        with contextlib.suppress(Unavailable):
            worker_of(app, receiver, claims=claims, channels=channels, options=options).drain()
        if not claims.is_dead:
            break
        deaths += 1
        assert deaths < 30
    [dead] = app.outbox.dead_letters().entries
    assert dead.aggregate_id == "20" and dead.attempts == most
    assert app.outbox.status().lanes == 1
    # The last time it was alone, so that nobody else can have been to blame.
    assert receiver.batches[[at for at, (_, given) in enumerate(receiver.batches) if "20" in given][-1]][1] == ["20"]
    assert deaths >= most


def test_more_busy_channels_than_threads_take_turns(app: App) -> None:
    receiver = Receiver(dict.fromkeys("xy", ChannelPlan(1)))
    ask(app, [f"x{number}" for number in range(30)], "x")
    ask(app, [f"y{number}" for number in range(3)], "y")
    assert drained(worker_of(app, receiver, options=replace(OPTIONS, threads=1)))
    assert [channel for channel, _ in receiver.batches][:6] in (list("xyxyxy"), list("yxyxyx"))
    assert len(receiver.batches) == 33


def test_a_channel_that_waits_for_its_turn_leaves_its_thread_to_others(app: App) -> None:
    receiver = Receiver({"x": ChannelPlan(10, per_second=4), "y": ChannelPlan(1)})
    ask(app, [f"x{number}" for number in range(8)], "x")
    ask(app, [f"y{number}" for number in range(10)], "y")
    began = time.monotonic()
    assert drained(worker_of(app, receiver, options=replace(OPTIONS, threads=1)))
    assert time.monotonic() - began > 0.8, "faster than its rate"
    order = [channel for channel, _ in receiver.batches]
    assert order.count("x") == 2 and order[-1] == "x" and order.count("y") == 10


def test_after_a_rest_nothing_more_of_the_claim_is_sent(app: App) -> None:
    receiver = Receiver(answering=lambda lanes: BatchAnswer({at: Failed("no") for at in range(len(lanes))}, Rest("no")))
    ask(app, [f"{number:02}" for number in range(12)])
    suspect(app, 12, attempts=2)
    assert drained(worker_of(app, receiver, options=replace(OPTIONS, rest_s=60, longest_rest_s=600)))
    assert [len(lanes) for _, lanes in receiver.batches] == [1]
    assert Channels(app.catalog.engine).states()["x"].failures == 1


def test_one_that_makes_its_receiver_look_down_is_found_and_given_up(app: App) -> None:
    def answer(lanes: Sequence[str]) -> BatchAnswer:
        if "bad" in lanes:
            raise KeyError("of what it was sent")
        return BatchAnswer()

    receiver = Receiver(answering=answer)
    ask(app, ["bad", *(f"{number:02}" for number in range(20))])
    worker = worker_of(app, receiver)
    fresh = 0
    while not app.outbox.status().dead:
        assert fresh < 200
        ask(app, [f"fresh{fresh}"])
        fresh += 1
        assert drained(worker)
        time.sleep(0.01)
    [dead] = app.outbox.dead_letters().entries
    assert (dead.aggregate_id, dead.attempts) == ("bad", 3)
    for _ in range(100):
        assert drained(worker)
        if app.outbox.status().lanes == 1:
            break
        time.sleep(0.01)
    assert app.outbox.status().lanes == 1 and app.outbox.status().dead == 1


def test_while_a_receiver_is_down_nobody_is_to_blame(app: App) -> None:
    receiver = Receiver(answering=lambda lanes: BatchAnswer({at: Failed("no") for at in range(len(lanes))}, Rest("no")))
    ask(app, "abc")
    worker = worker_of(app, receiver)
    end = time.monotonic() + WAIT_S
    while min(receiver.times(lane) for lane in "abc") < 6 and time.monotonic() < end:
        assert drained(worker)
        time.sleep(0.01)
    assert {each.attempts for each in app.outbox.failed().entries} == {0} and app.outbox.status().dead == 0


def test_a_newer_event_has_all_its_attempts_when_the_one_before_it_has_none(app: App) -> None:
    receiver = Receiver(answering=lambda lanes: BatchAnswer({0: Failed("busy")}))
    worker = worker_of(app, receiver)
    for attempts in (3, 6):
        ask(app, "a")
        end = time.monotonic() + WAIT_S
        while receiver.times("a") < attempts and time.monotonic() < end:
            assert drained(worker)
        assert receiver.times("a") == attempts
        assert drained(worker) and app.outbox.status().dead == 1
    assert receiver.times("a") == 6


def key(name: str) -> LaneKey:
    return LaneKey(TenantId(1), "KIND", name)


def test_what_fails_together_comes_again_in_halves_if_others_were_taken() -> None:
    upsets = Upsets()
    eight = [key(name) for name in "abcdefgh"]
    assert not upsets.fail(eight) and {upsets.size(each) for each in eight} == {4}
    assert not upsets.fail(eight[:4]) and {upsets.size(each) for each in eight} == {4}, "nothing was taken since"
    upsets.take(eight[4:])
    assert [upsets.size(each) for each in eight] == [4] * 4 + [None] * 4
    assert not upsets.fail(eight[:4]) and {upsets.size(each) for each in eight[:4]} == {2}
    upsets.take(eight[1:4])
    assert upsets.fail(eight[:1]) and upsets.size(eight[0]) == 1
    assert not upsets.fail(eight[:1]), "nothing was taken since"


def test_a_long_outage_teaches_nothing_about_those_that_were_tried_in_it() -> None:
    upsets = Upsets()
    upsets.take([key("before")])
    assert not upsets.fail([key("first")])
    assert not any(upsets.fail([key(str(number))]) for number in range(100))
    assert {upsets.size(key(str(number))) for number in range(100)} == {None}


def test_no_more_is_remembered_than_has_room() -> None:
    upsets = Upsets()
    upsets.fail([key(str(number)) for number in range(MOST_LANES + 5)])
    assert [upsets.size(key(str(number))) is None for number in (0, 4, 5)] == [True, True, False]


def test_what_cannot_be_given_back_is_not_held(app: App) -> None:
    receiver = Receiver()
    claims = Mortal(app.catalog.engine, lease_s=30)
    held: list[Sequence[ClaimedLane]] = []

    def answer(lanes: Sequence[str]) -> BatchAnswer:
        claims.is_dead = True
        held.append(list(worker._held._lanes.values()))
        return BatchAnswer()

    receiver.answering = answer
    ask(app, "ab")
    worker = worker_of(app, receiver, claims=claims)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    end = time.monotonic() + WAIT_S
    while (not held or worker._held) and time.monotonic() < end:
        time.sleep(0.01)
    is_held = bool(worker._held)
    claims.is_dead = False
    worker.stop()
    thread.join(WAIT_S)
    assert [len(each) for each in held] == [2] and not is_held
