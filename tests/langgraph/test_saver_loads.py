"""The saver holds up under many threads and long histories, and says what it needs."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from analemma import App
from analemma.errors import Unavailable
from analemma.langgraph import AnalemmaSaver
from tests.depth import count
from tests.langgraph.graphs import put, thread
from tests.stores import Store


def test_a_large_state_that_is_not_kept_is_read_again(app: App) -> None:
    saver = AnalemmaSaver(app, cache_bytes=10_000)
    value = [f"item {n} " * 30 for n in range(500)]
    config = put(saver, {"a": value})
    put(saver, {"a": [*value, "more"]}, config)
    found = saver.get_tuple(thread())
    assert found is not None and found.checkpoint["channel_values"] == {"a": [*value, "more"]}


def test_threads_of_the_program_share_a_saver(app: App) -> None:
    """Each writes its own thread and all write one together; every state is as it was written."""
    saver = AnalemmaSaver(app)

    def work(number: int) -> None:
        pick = random.Random(number)
        own, config = [f"{number} " * 50] * 60, None
        for step in range(8):
            own = [*own, f"step {step}"]
            if pick.random() < 0.3:
                own = own[: pick.randrange(len(own))] + ["edited"] * 5 + own[-40:]
            config = put(saver, {"own": own, "n": step}, config, name=f"t{number}", step=step)
            saver.put_writes(config, [("own", step)], "task")
            put(saver, {"own": own, "by": number}, name="shared", namespace="together")
            found = saver.get_tuple(thread(f"t{number}"))
            assert found is not None and found.checkpoint["channel_values"] == {"own": own, "n": step}
            assert found.pending_writes == [("task", "own", step)]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(list(saver.history(thread("shared", namespace="together")))) == 48
    for name in [*(f"t{n}" for n in range(6)), "shared"]:
        branch = "main" if name != "shared" else "ns:together"
        assert app.kernel.verify(workflow_id=name, owner_id="langgraph", branch=branch).problems == []


def long_thread(app: App, steps: int) -> None:
    saver = AnalemmaSaver(app)
    versions: dict[str, Any] = {}
    config = None
    for step in range(steps):
        config = put(
            saver,
            {"n": step, "fixed": "x" * 3000},
            config,
            changed=["n", "fixed"] if step == 0 else ["n"],
            versions=versions,
            id=f"{step:08}",
            step=step,
        )
    cold = AnalemmaSaver(app)
    found = cold.get_tuple(thread())
    assert found is not None and found.checkpoint["channel_values"]["n"] == steps - 1
    middle = cold.get_tuple(thread(checkpoint=f"{steps // 2:08}"))
    assert middle is not None and middle.checkpoint["channel_values"]["n"] == steps // 2
    assert sum(1 for _ in cold.history(thread())) == steps
    assert len(list(cold.list(thread(), limit=20, before=thread(checkpoint=f"{steps // 2:08}")))) == 20
    line = cold.get_delta_channel_history(config=thread(), channels=["nowhere"])
    assert line == {"nowhere": {"writes": []}}
    cold.copy_thread("t", "u")
    cold.prune(["t"])
    assert sum(1 for _ in cold.history(thread())) == 1 and sum(1 for _ in cold.history(thread("u"))) == steps
    assert app.kernel.verify(workflow_id="t", owner_id="langgraph").problems == []


def test_a_long_thread(app: App) -> None:
    # In deep, more than are read at once.
    long_thread(app, count(150, deep=1_100))


@pytest.mark.soak
def test_a_thread_of_ten_thousand_checkpoints(store: Store) -> None:
    with store.open(sqlite_synchronous="NORMAL") as app:
        long_thread(app, 10_000)


def test_without_langgraph_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import analemma.langgraph

    for name in [
        name for name in sys.modules if name.partition(".")[0] == "langgraph" or name.startswith("analemma.langgraph.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langgraph", None)
    with pytest.raises(Unavailable, match=r"pip install 'analemma\[langgraph\]'"):
        analemma.langgraph.AnalemmaSaver  # noqa: B018
    with pytest.raises(AttributeError):
        analemma.langgraph.Nothing  # noqa: B018
