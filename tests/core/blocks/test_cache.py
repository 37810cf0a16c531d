"""The cache of block bodies: bounded, apart by tenant, and safe between threads."""

from __future__ import annotations

import os
import random
import signal
import threading

from analemma import BlockId
from analemma.blocks.cache import BodyCache, CacheStack
from analemma.canon.identity import block_id


def bodies(count: int, size: int = 100) -> dict[BlockId, bytes]:
    made = [b"%d" % number + bytes(size) for number in range(count)]
    return {block_id(body): body for body in made}


def test_what_was_put_is_found_and_the_rest_is_a_miss() -> None:
    cache = BodyCache()
    known = bodies(3)
    stranger = BlockId(bytes(32))
    cache.put_many(1, known)
    assert cache.get_many(1, [*known, stranger]) == known
    assert (cache.hits, cache.misses) == (3, 1)


def test_tenants_do_not_share_bodies() -> None:
    cache = BodyCache()
    known = bodies(1)
    cache.put_many(1, known)
    assert cache.get_many(2, known) == {}


def test_the_least_recently_used_leaves_first() -> None:
    cache = BodyCache(capacity_bytes=10 * (1000 + 200 + 1))
    known = bodies(10, 1000)
    ids = list(known)
    cache.put_many(1, known)
    cache.get_many(1, [ids[0]])
    cache.put_many(1, {block_id(b"new"): bytes(1000)})
    assert set(cache.get_many(1, ids)) == set(ids) - {ids[1]}


def test_memory_stays_below_the_capacity_also_for_tiny_bodies() -> None:
    cache = BodyCache(capacity_bytes=100_000)
    for size in (0, 10, 1000, 40_000):
        for block, body in bodies(500, size).items():
            cache.put_many(1, {block: body})
            assert cache.size_bytes <= 100_000
    assert len(cache) > 0


def test_a_body_too_large_for_the_cache_does_not_flush_it() -> None:
    cache = BodyCache(capacity_bytes=10_000)
    known = bodies(3)
    cache.put_many(1, known)
    cache.put_many(1, {block_id(b"huge"): bytes(9_000)})
    assert cache.get_many(1, known) == known
    assert len(cache) == 3


def test_putting_twice_does_not_count_twice() -> None:
    cache = BodyCache()
    known = bodies(1)
    cache.put_many(1, known)
    size = cache.size_bytes
    cache.put_many(1, known)
    assert cache.size_bytes == size
    cache.clear()
    assert cache.size_bytes == len(cache) == 0


def test_many_threads_leave_the_books_balanced() -> None:
    cache = BodyCache(capacity_bytes=50_000)
    known = bodies(200, 500)
    wrong: list[BlockId] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(300):
            chosen = chance.sample(list(known), 5)
            for block, body in cache.get_many(1, chosen).items():
                if body != known[block]:
                    wrong.append(block)
            cache.put_many(1, {block: known[block] for block in chosen})

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    held = cache.get_many(1, known)
    assert cache.size_bytes == sum(len(body) + 200 for body in held.values()) <= 50_000


def test_a_fork_while_another_thread_is_at_the_cache_leaves_the_child_a_cache_that_works() -> None:
    cache = BodyCache(10_000)
    some = bodies(3)
    cache.put_many(1, some)
    inside, done = threading.Event(), threading.Event()

    def use() -> None:
        with cache._lock:
            inside.set()
            done.wait()

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)  # ends a child that waits for a thread it does not have
            cache.put_many(1, some)
            status = 0 if cache.get_many(1, some) == some else 2
        finally:
            os._exit(status)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_goes_on_with_a_cache_that_nobody_was_changing() -> None:
    cache = BodyCache(10_000)
    some = bodies(3)
    cache.put_many(1, some)
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.get_many(1, some) == some else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_stack_asks_the_farther_tier_only_for_what_is_missing_and_remembers_it() -> None:
    near, far = BodyCache(), BodyCache()
    known = bodies(4)
    ids = list(known)
    near.put_many(1, {ids[0]: known[ids[0]]})
    far.put_many(1, known)
    stack = CacheStack([near, far])
    assert stack.get_many(1, [*ids, *ids]) == known
    assert far.hits == 3
    assert near.get_many(1, ids) == known
    fresh = bodies(6)
    stack.put_many(1, fresh)
    assert near.get_many(1, fresh) == far.get_many(1, fresh) == fresh
    stack.clear()
    assert stack.get_many(1, fresh) == {}
    stack.close()
