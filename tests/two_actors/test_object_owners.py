"""Two who would own the same objects, and one that dies while it says that it does: at most one collects, and nobody is
locked out by a crash."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Denied
from analemma.testing import failpoints
from tests.actors import Actor
from tests.servers import PostgresServer
from tests.stores import Store

NAME: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}
EAGER: dict[str, Any] = {"pack_threshold_bytes": 20_000, "gc_object_delay_s": 0}
STEPS = ["objects.after_intent", "objects.after_marker", "objects.after_generation"]


def blob(seed: int) -> bytes:
    return random.Random(seed).randbytes(90_000)


def save(app: analemma.App, seed: int) -> None:
    app.kernel.save_state_delta({"blob": blob(seed)}, **NAME)


def generation(store: Store) -> int:
    assert store.objects is not None
    found: int = json.loads((Path(store.objects) / "owner.json").read_bytes())["generation"]
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store whose objects are at a place that another could be opened with."""
    if request.param == "sqlite":
        return Store(str(request.getfixturevalue("migrated_directory")), str(tmp_path / "objects"))
    return Store(request.getfixturevalue("migrated_url"), str(tmp_path / "objects"))


@pytest.fixture
def staging(migrated_url: str, tmp_path: Path, postgres_server: PostgresServer) -> Iterator[tuple[Store, Store]]:
    """A store, and another of a copy of its catalog."""
    production = Store(migrated_url, str(tmp_path / "objects"))
    with production.open(**EAGER) as app:
        save(app, 1)
    url = postgres_server.create_database(migrated_url)
    yield production, Store(url, production.objects)
    postgres_server.drop_database(url)


def collect(url: str, objects: str) -> None:
    with Store(url, objects).open(**EAGER) as app:
        app.gc.run(grace_s=0)


def collect_archives(url: str, objects: str) -> None:
    with Store(url, objects).open(**EAGER) as app:
        app.archives.gc_run()


def put(url: str, objects: str) -> None:
    with Store(url, objects).open(**EAGER) as app:
        save(app, 7)


def adopt(url: str, objects: str) -> None:
    with Store(url, objects).open(**EAGER) as app:
        app.adopt_objects()


@pytest.mark.parametrize("step", STEPS)
def test_a_pass_that_dies_while_it_raises_the_generation_keeps_nobody_from_the_next(shared: Store, step: str) -> None:
    with shared.open(**EAGER) as app:
        save(app, 1)
        save(app, 2)
    for turn, work in ((2, collect), (3, collect_archives)):
        with Actor(work, shared.url, shared.objects, at=step, then="kill") as collector:
            assert collector.wait() == -signal.SIGKILL
        assert generation(shared) == (turn if step != STEPS[0] else 1)
    with shared.open(**EAGER) as app:
        # What both died of: one who owns the objects and adopts them raises the generation, and no more.
        app.adopt_objects()
        owner = app.objects_owner()
        assert owner is not None and (owner.state, owner.generation) == ("owner", generation(shared))
        assert app.kernel.load_latest_state(**NAME) == {"blob": blob(2)}


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_that_dies_while_it_claims_the_objects_keeps_nobody_from_it(shared: Store, step: str) -> None:
    shared.open().close()
    with Actor(put, shared.url, shared.objects, at=step, then="kill") as writer:
        assert writer.wait() == -signal.SIGKILL
    with shared.open(**EAGER) as app:
        save(app, 1)
        assert app.gc.run(grace_s=0).ok
        assert app.kernel.load_latest_state(**NAME) == {"blob": blob(1)}
        owner = app.objects_owner()
        assert owner is not None and owner.state == "owner"


@pytest.mark.parametrize("step", STEPS)
def test_one_that_dies_while_it_adopts_has_done_so_or_not(staging: tuple[Store, Store], step: str) -> None:
    production, copy = staging
    with Actor(adopt, copy.url, copy.objects, at=step, then="kill") as adopter:
        assert adopter.wait() == -signal.SIGKILL
    adopted = step != STEPS[0]
    for store, owns in ((copy, adopted), (production, not adopted)):
        with store.open(**EAGER) as app:
            if owns:
                assert app.gc.run(grace_s=0).ok
            else:
                with pytest.raises(Denied):
                    app.gc.run(grace_s=0)
                save(app, 5)
    with copy.open(**EAGER) as app:
        app.adopt_objects()
        assert app.gc.run(grace_s=0).ok


@pytest.mark.parametrize("step", STEPS)
def test_two_programs_on_one_catalog_raise_the_generation_side_by_side(shared: Store, step: str) -> None:
    with shared.open(**EAGER) as app, shared.open(**EAGER) as other:
        save(app, 1)
        with failpoints.paused(step, lambda: app.gc.run(grace_s=0)) as held:
            for _ in range(3):
                assert other.archives.gc_run().ok
            assert held.go_on().ok
        assert app.gc.run(grace_s=0).ok and other.archives.gc_run().ok
        owner = app.objects_owner()
        assert owner is not None and (owner.state, owner.generation) == ("owner", generation(shared))


@pytest.mark.parametrize("step", STEPS[:2])
def test_an_owner_that_is_overtaken_while_it_raises_the_generation_does_nothing(
    staging: tuple[Store, Store], step: str
) -> None:
    production, copy = staging
    with production.open(**EAGER) as app, copy.open(**EAGER) as other:
        save(app, 2)
        app.kernel.set_retention(**NAME, keep_last=1)
        with failpoints.paused(step, lambda: app.gc.run(grace_s=0)) as held:
            other.adopt_objects()
            if step == STEPS[0]:
                with pytest.raises(Denied):
                    held.go_on()
                assert len(app.kernel.history(**NAME)) == 2, "nothing was expired"
            else:
                held.go_on()  # It was the owner when it began; what it claims, its next pass does not delete.
        with pytest.raises(Denied):
            app.gc.run(grace_s=0)
        assert other.gc.run(grace_s=0).ok
        assert other.kernel.load_latest_state(**NAME) == {"blob": blob(1)}


def test_of_two_copies_that_adopt_at_once_one_owns_the_objects(staging: tuple[Store, Store]) -> None:
    start = threading.Barrier(2)

    def take(app: analemma.App) -> None:
        start.wait()
        app.adopt_objects()

    production, copy = staging
    with production.open(**EAGER) as app, copy.open(**EAGER) as other:
        for _ in range(5):
            threads = [threading.Thread(target=take, args=(each,)) for each in (app, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            states = sorted(owner.state for each in (app, other) if (owner := each.objects_owner()) is not None)
            assert states == ["other", "owner"]


def test_many_who_put_the_first_object_at_once_make_one_owner(shared: Store) -> None:
    start = threading.Barrier(6)
    refused: list[Exception] = []

    def first(app: analemma.App, seed: int) -> None:
        start.wait()
        try:
            app.kernel.save_state_delta({"blob": blob(seed)}, owner_id="ann", workflow_id=f"w{seed}")
        except Exception as exc:
            refused.append(exc)

    with shared.open(**EAGER) as app, shared.open(**EAGER) as other:
        threads = [threading.Thread(target=first, args=((app, other)[seed % 2], seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == []
        for each in (app, other):
            owner = each.objects_owner()
            assert owner is not None and owner.state == "owner"
    assert not (Path(shared.objects or "") / "copies").exists()


def detach(url: str, objects: str, to: str) -> None:
    with Store(url, objects).open(**EAGER) as app:
        app.detach_objects(to=to)


@pytest.mark.parametrize("step", ["detach.after_copy", "detach.after_detach", *STEPS])
def test_one_that_dies_while_it_detaches_has_done_so_or_not(
    staging: tuple[Store, Store], tmp_path: Path, step: str
) -> None:
    _, copy = staging
    own = str(tmp_path / "own")
    with Actor(detach, copy.url, copy.objects, own, at=step, then="kill") as actor:
        assert actor.wait() == -signal.SIGKILL
    if step == "detach.after_copy":
        with copy.open(**EAGER) as app:
            assert app.kernel.load_latest_state(**NAME) == {"blob": blob(1)}
            app.detach_objects(to=own)
    with Store(copy.url, own).open(**EAGER) as app:
        assert app.kernel.load_latest_state(**NAME) == {"blob": blob(1)} and app.kernel.verify(**NAME).ok
        assert app.gc.run(grace_s=0).ok
        save(app, 2)
    assert not (Path(own) / "copies").exists()


def test_what_is_put_while_a_copy_detaches_is_copied_too(staging: tuple[Store, Store], tmp_path: Path) -> None:
    _, copy = staging
    with copy.open(**EAGER) as app, copy.open(**EAGER) as other:
        detaching = lambda: app.detach_objects(to=str(tmp_path / "own"))  # noqa: E731
        with failpoints.paused("detach.after_copy", detaching) as held:
            save(other, 2)
            assert held.go_on().objects == 2
    with Store(copy.url, str(tmp_path / "own")).open(**EAGER) as app:
        assert app.kernel.load_latest_state(**NAME) == {"blob": blob(2)} and app.kernel.verify(**NAME).ok


def test_a_collection_whose_marker_cannot_be_read_does_nothing(shared: Store) -> None:
    with shared.open(**EAGER, object_retries=1) as app:
        save(app, 1)
        save(app, 2)
        app.kernel.set_retention(**NAME, keep_last=1)
        marker = Path(shared.objects or "") / "owner.json"
        held = marker.read_bytes()
        marker.unlink()
        marker.symlink_to("/dev/null")
        with pytest.raises(Denied):
            app.gc.run(grace_s=0)
        assert len(app.kernel.history(**NAME)) == 2
        marker.unlink()
        marker.write_bytes(held)
        assert app.gc.run(grace_s=0).ok
