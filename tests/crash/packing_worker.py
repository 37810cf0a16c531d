"""Moves blocks, or reads them, in a process of its own: `python -m tests.crash.packing_worker URL OBJECTS WORK`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from analemma import App
from tests.crash.conversations import SMALL, states
from tests.stores import Store


def read_until_told(app: App) -> None:
    """Every state again and again, until a line comes; how often, and whether they were always the same."""
    expected = states(app)
    print("reading", flush=True)
    rounds, same = 0, True
    waiting = _Waiting()
    while not waiting.told() or rounds < 3:
        same = same and states(app) == expected
        rounds += 1
    print(f"{rounds} {same}", flush=True)


class _Waiting:
    def __init__(self) -> None:
        self._told = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def told(self) -> bool:
        return self._told.is_set()

    def _listen(self) -> None:
        sys.stdin.readline()
        self._told.set()


WORKS: dict[str, Callable[[App], object]] = {
    "pack": lambda app: app.packing.pack(older_than_s=0),
    "repack": lambda app: app.packing.repack(waste=0),
    "read": read_until_told,
}


def main() -> None:
    url, objects, work = sys.argv[1:]
    with Store(url, objects or None).open(**SMALL) as app:
        WORKS[work](app)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
