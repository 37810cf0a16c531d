"""Users and collectors at the same time: whoever comes first, what a workspace holds can be had."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from analemma import App
from analemma.errors import Conflict, Expired
from tests.api.archives.collections import units
from tests.stores import Store

ROUNDS = 12


def use(app: App, name: str, folder: Path, chance: random.Random, seen: set[str]) -> None:
    """Work in a workspace, archive it, delete it, want it back."""
    archives, volume = app.archives, folder / name
    volume.mkdir()
    archives.create(name, owner_id="ann", volume=volume)
    for number in range(ROUNDS):
        (volume / "file").write_text(f"{name} {number}")
        if chance.random() < 0.5:
            archives.archive(name)
        else:
            archives.delete(name)
            threading.Event().wait(chance.choice([0, 0.02, 0.1]))
            try:
                archives.undelete(name)
                seen.add("undeleted")
            except Expired:
                seen.add("too late")
                archives.purge(name)
                volume.mkdir()
                archives.create(name, owner_id="ann", volume=volume)
                continue
        archives.restore(name)
        assert (volume / "file").read_text() == f"{name} {number}"
    archives.archive(name)


def test_collectors_never_take_what_somebody_has(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        assert app.archives.gc_run().ok
        over = threading.Event()
        failures: list[BaseException] = []
        seen: set[str] = set()
        deleted: list[int] = []

        def guarded(work: object) -> threading.Thread:
            def run() -> None:
                try:
                    work()  # type: ignore[operator]
                except BaseException as exc:
                    failures.append(exc)

            return threading.Thread(target=run)

        def collect(filter: str) -> None:
            with store.open(archive_gc_filter=filter) as other:
                while not over.is_set():
                    try:
                        deleted.append(other.archives.gc_run(0).deleted)
                    except Conflict:
                        over.wait(0.005)

        users = [
            guarded(lambda name=name, seed=seed: use(app, name, tmp_path, random.Random(seed), seen))
            for seed, name in enumerate(("a", "a-b", "ab"))
        ]
        collectors = [guarded(lambda filter=filter: collect(filter)) for filter in ("merge", "bloom")]
        for thread in (*users, *collectors):
            thread.start()
        for thread in users:
            thread.join()
        over.set()
        for thread in collectors:
            thread.join()
        assert failures == []
        assert sum(deleted) > 0 and "undeleted" in seen
        for _ in range(2):
            app.archives.gc_run(0)
        assert units(app) == {f"{name}/{app.archives.get(name).op_id}" for name in ("a", "a-b", "ab")}
