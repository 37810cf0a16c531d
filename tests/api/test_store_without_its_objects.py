"""A store that is opened without its objects, or with a directory that is empty: it is told, and nothing is changed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Denied, Invalid, Unavailable
from tests.raw_rows import change, select
from tests.stores import Store

NAME: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}
SETTINGS: dict[str, Any] = {"pack_threshold_bytes": 20_000, "cache_bytes": 0}


def blob(seed: int) -> bytes:
    return random.Random(seed).randbytes(90_000)


@pytest.fixture
def written(migrated_url: str, tmp_path: Path) -> Store:
    """A store on PostgreSQL with three versions, of which retention keeps one."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open(**SETTINGS) as app:
        for seed in range(3):
            app.kernel.save_state_delta({"blob": blob(seed)}, **NAME)
        app.kernel.set_retention(**NAME, keep_last=1)
    return store


def versions(store: Store) -> int:
    [(found,)] = select(store, "SELECT count(*) FROM manifest")
    assert isinstance(found, int)
    return found


def test_a_directory_of_objects_is_used_without_being_named(written: Store) -> None:
    with Store(written.url).open(**SETTINGS) as app:
        assert app.info()["objects"] == Path(written.objects or "").as_uri()
        assert app.kernel.load_latest_state(**NAME) == {"blob": blob(2)}
        app.kernel.save_state_delta({"blob": blob(3)}, **NAME)
        assert app.gc.run(grace_s=0).ok
    with written.open(**SETTINGS) as app:
        assert app.kernel.verify(**NAME).ok


def test_a_store_whose_objects_are_not_here_is_not_opened_and_names_them(written: Store, tmp_path: Path) -> None:
    shutil.move(tmp_path / "objects", tmp_path / "unmounted")
    with pytest.raises(Invalid, match="opened without them") as refused:
        Store(written.url).open(**SETTINGS)
    assert (tmp_path / "objects").as_uri() in str(refused.value.hint)
    assert versions(written) == 3 and not (tmp_path / "objects").exists()
    change(written, "UPDATE store SET objects = 's3://bucket/prefix'")
    with pytest.raises(Invalid, match="s3://bucket/prefix"):
        Store(written.url).open(**SETTINGS)


def test_a_store_that_does_not_know_where_its_objects_are_asks_for_them(written: Store) -> None:
    """As one of an earlier release."""
    change(written, "UPDATE store SET objects = NULL")
    with pytest.raises(Invalid, match="opened without them"):
        Store(written.url).open(**SETTINGS)
    with written.open(**SETTINGS) as app:
        assert app.kernel.load_latest_state(**NAME) == {"blob": blob(2)}


def test_a_collection_that_lacks_the_objects_expires_nothing(migrated_url: str, tmp_path: Path) -> None:
    """The store had none when it was opened, and somebody else gave it some."""
    with Store(migrated_url).open(**SETTINGS) as early:
        with Store(migrated_url, str(tmp_path / "objects")).open(**SETTINGS) as app:
            for seed in range(3):
                app.kernel.save_state_delta({"blob": blob(seed)}, **NAME)
            app.kernel.set_retention(**NAME, keep_last=1)
        with pytest.raises(Invalid, match="has objects by now"):
            early.gc.run(grace_s=0)
        with pytest.raises(Invalid, match="without an object store"):
            early.kernel.load_latest_state(**NAME)
        assert len(early.kernel.history(**NAME)) == 3


def test_an_empty_directory_in_the_place_of_the_objects_is_no_damage_and_nothing_expires(
    written: Store, tmp_path: Path
) -> None:
    shutil.move(tmp_path / "objects", tmp_path / "unmounted")
    for made in (False, True):
        if made:
            (tmp_path / "objects").mkdir()
        with written.open(**SETTINGS) as app:
            with pytest.raises(Unavailable, match="are not at"):
                app.kernel.load_latest_state(**NAME)
            with pytest.raises(Denied, match="no marker"):
                app.gc.run(grace_s=0)
        assert versions(written) == 3
        assert (tmp_path / "objects").exists() == made
    shutil.rmtree(tmp_path / "objects")
    shutil.move(tmp_path / "unmounted", tmp_path / "objects")
    with written.open(**SETTINGS) as app:
        assert app.kernel.verify(**NAME).ok and app.gc.run(grace_s=0).ok


def test_looking_at_a_store_makes_no_directory(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"n": 1}, **NAME)
    beside = Path(store.url) / "objects"
    if beside.exists():
        shutil.rmtree(beside)
    before = set(tmp_path.rglob("*"))
    for objects in (store.objects, str(tmp_path / "typo"), f"file://{tmp_path}/mistyped"):
        with analemma.open(store.url, objects=objects) as app:
            assert app.kernel.load_latest_state(**NAME) == {"n": 1}
            assert app.kernel.verify(**NAME).ok
            app.gc.plan()
            app.objects_owner()
            app.archives.gc_plan()
    assert {each for each in tmp_path.rglob("*") if each.is_dir()} <= before
