"""The Redis tier, on a real Redis: it helps when it is there, and nothing breaks when it is not."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from analemma import BlockId
from analemma.errors import Invalid
from tests.ports.entry_points.objects import Lru, RedisTier
from tests.redis_server import RedisServer, running_redis
from tests.s3_server import CannotStart

redis = pytest.importorskip("redis")

AN_HOUR_S = 3600
"""Longer than a server that failed is left alone."""


def block_id(body: bytes) -> BlockId:
    return BlockId(hashlib.sha256(body).digest())


BODIES = {block_id(body): body for body in (b"one", b"two" * 1000, b"\x00\xff")}


class SteppingClock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_us(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    try:
        with running_redis() as server:
            yield server
    except CannotStart as exc:
        pytest.skip(str(exc))


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture
def tier(server: RedisServer, clock: SteppingClock) -> Iterator[RedisTier]:
    if server.process is None:
        server.start()
    client = redis.Redis.from_url(server.url)
    client.flushall()
    client.close()
    tier = RedisTier(server.url, "store-1", timeout_s=2.0, clock=clock)
    yield tier
    tier.close()


def test_bodies_are_shared_between_processes_of_one_store(server: RedisServer, tier: RedisTier) -> None:
    tier.put_many(7, BODIES)
    other = RedisTier(server.url, "store-1", timeout_s=5.0)
    stranger = BlockId(bytes(32))
    assert other.get_many(7, [*BODIES, stranger]) == BODIES
    other.close()


def test_what_another_process_left_in_redis_is_found_and_then_kept_near(server: RedisServer, tier: RedisTier) -> None:
    stranger = BlockId(bytes(32))
    Lru(far=tier).put_many(7, BODIES)
    other = Lru(far=RedisTier(server.url, "store-1", timeout_s=5.0))
    assert other.get_many(7, [*BODIES, stranger]) == BODIES
    client = redis.Redis.from_url(server.url)
    client.flushall()
    client.close()
    assert other.get_many(7, [*BODIES, stranger]) == BODIES
    other.close()
    assert other.get_many(7, [*BODIES]) == {}


def test_stores_and_tenants_are_apart(server: RedisServer, tier: RedisTier) -> None:
    tier.put_many(7, BODIES)
    other = RedisTier(server.url, "store-2", timeout_s=5.0)
    assert other.get_many(7, [*BODIES]) == {}
    assert tier.get_many(8, [*BODIES]) == {}
    other.close()


def test_bodies_expire_after_five_minutes(server: RedisServer, tier: RedisTier) -> None:
    tier.put_many(7, BODIES)
    client = redis.Redis.from_url(server.url)
    lifetimes = [client.ttl(key) for key in client.scan_iter("analemma:store-1:7:*")]
    client.close()
    assert len(lifetimes) == 3 and all(290 <= lifetime <= 300 for lifetime in lifetimes)


def test_a_poisoned_value_is_a_miss(server: RedisServer, tier: RedisTier) -> None:
    tier.put_many(7, BODIES)
    victim, *others = BODIES
    client = redis.Redis.from_url(server.url)
    client.set(f"analemma:store-1:7:{victim.hex()}", b"evil")
    client.close()
    assert set(tier.get_many(7, [*BODIES])) == set(others)


def test_a_value_of_the_wrong_type_is_a_miss(server: RedisServer, tier: RedisTier) -> None:
    victim = next(iter(BODIES))
    client = redis.Redis.from_url(server.url)
    client.rpush(f"analemma:store-1:7:{victim.hex()}", b"a list")
    assert tier.get_many(7, [victim]) == {}
    client.close()


def test_very_large_bodies_are_left_out(tier: RedisTier) -> None:
    large = bytes(2 << 20)
    tier.put_many(7, {block_id(large): large, **BODIES})
    assert tier.get_many(7, [block_id(large), *BODIES]) == BODIES


def test_a_redis_that_is_gone_costs_a_miss_and_then_nothing_until_it_had_its_rest(
    server: RedisServer, tier: RedisTier, clock: SteppingClock
) -> None:
    tier.put_many(7, BODIES)
    server.stop()
    assert tier.get_many(7, [*BODIES]) == {}
    tier.put_many(7, BODIES)
    assert tier.get_many(7, [*BODIES]) == {}
    server.start()
    assert tier.get_many(7, [*BODIES]) == {}
    clock.sleep(AN_HOUR_S)
    tier.put_many(7, BODIES)
    assert tier.get_many(7, [*BODIES]) == BODIES


def test_a_redis_that_hangs_is_given_up_quickly(server: RedisServer, tier: RedisTier, clock: SteppingClock) -> None:
    tier.put_many(7, BODIES)
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        for _ in range(50):
            assert tier.get_many(7, [*BODIES]) == {}
        assert time.monotonic() - begun < 50  # One timeout of two seconds, not fifty.
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    clock.sleep(AN_HOUR_S)
    assert tier.get_many(7, [*BODIES]) == BODIES


def test_a_late_answer_is_never_taken_for_the_next_one(
    server: RedisServer, tier: RedisTier, clock: SteppingClock
) -> None:
    """After a timeout the connection may still hold the old answer; reading it would pair values with wrong ids."""
    first, second, _ = BODIES
    tier.put_many(7, BODIES)
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    tier.get_many(7, [first])
    os.kill(server.process.pid, signal.SIGCONT)
    clock.sleep(AN_HOUR_S)
    assert tier.get_many(7, [second]) == {second: BODIES[second]}


def test_a_password_never_shows() -> None:
    tier = RedisTier("redis://:hunter2@127.0.0.1:1/0", "store-1")
    assert "hunter2" not in repr(tier)
    assert tier.get_many(7, [*BODIES]) == {}
    tier.close()
    with pytest.raises(Invalid) as caught:
        RedisTier("http://:hunter2@host", "store-1")
    assert "hunter2" not in str(caught.value)
