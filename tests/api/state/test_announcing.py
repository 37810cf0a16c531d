"""Telling of commits costs nothing where nobody wants to hear of them."""

from __future__ import annotations

import threading

import pytest

from analemma import App, BranchKey
from analemma.catalog.contract_rows import ContractRows, Generation
from analemma.clock import SystemClock
from analemma.errors import Corrupt
from analemma.state.announcing import Sources, SourceWatch
from tests.stores import Store

KEY = BranchKey("ann", "run")


class Clock(SystemClock):
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Rows(ContractRows):
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.found = Generation(0, 0)
        self.active = False

    def generation(self) -> Generation:
        self.asked.append("generation")
        return self.found

    def has_active(self, kind: str) -> bool:
        self.asked.append(kind)
        return self.active


def every(tenant: str, key: BranchKey) -> bool:
    return True


def test_without_sources_it_asks_once_a_second_and_reads_no_contract() -> None:
    rows, clock = Rows(), Clock()

    def load() -> Sources:
        raise AssertionError("nothing is to be read")

    watch = SourceWatch(rows, load, clock=clock)
    for _ in range(100):
        assert watch.sources() is None
    assert rows.asked == ["generation", "STATE_SOURCE"]
    clock.now_s += 1
    assert watch.sources() is None
    assert rows.asked == ["generation", "STATE_SOURCE", "generation"]


def test_what_others_load_is_seen_after_a_second_and_what_is_loaded_here_at_once() -> None:
    rows, clock, loads = Rows(), Clock(), [0]

    def load() -> Sources:
        loads[0] += 1
        return every

    watch = SourceWatch(rows, load, clock=clock)
    assert watch.sources() is None
    rows.found, rows.active = Generation(1, 1), True
    assert watch.sources() is None
    clock.now_s += 1
    assert watch.sources() is every and watch.sources() is every and loads == [1]
    rows.found = Generation(2, 2)
    watch.forget()
    assert watch.sources() is every and loads == [2]


def test_a_look_that_began_before_a_load_does_not_hide_it() -> None:
    rows, clock = Rows(), Clock()
    watch = SourceWatch(rows, lambda: every, clock=clock)

    class Slow(Rows):
        def generation(self) -> Generation:
            before = super().generation()
            if len(self.asked) == 1:
                # Meanwhile, another thread loads a source.
                self.found, self.active = Generation(1, 1), True
                watch.forget()
                self.active = False
                return before
            self.active = True
            return self.found

    watch._rows = Slow()
    watch.sources()
    assert watch.sources() is every


def test_contracts_that_cannot_be_read_have_everything_told() -> None:
    rows = Rows()
    rows.active = True

    def load() -> Sources:
        raise Corrupt("damaged")

    found = SourceWatch(rows, load, clock=Clock()).sources()
    assert found is not None and found("any", KEY)


def test_commits_of_a_store_without_sources_ask_for_nothing_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    generation = ContractRows.generation

    def counted(self: ContractRows) -> Generation:
        asked.append(1)
        return generation(self)

    monkeypatch.setattr(ContractRows, "generation", counted)
    with store.open() as app:
        app.source_watch._poll_s = 3600
        save(app, 50)
        assert len(asked) == 1
        threads = [threading.Thread(target=save, args=(app, 20, f"w{number}")) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(asked) == 1


def save(app: App, times: int, workflow: str = "w") -> None:
    for number in range(times):
        app.kernel.save_state_delta({"n": number}, workflow_id=workflow, owner_id="ann")
