"""A store and its objects stay together: opened with others it is refused, before anything goes astray."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Invalid
from tests.cli.command_line import at
from tests.raw_rows import change, select
from tests.stores import Store

BESIDE = "beside its catalog"
NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
PLACES = {
    "memory://": "in memory",
    "s3://bucket": "s3://bucket",
    "s3://bucket/?region=eu&access_key_id=x&secret_access_key=hidden": "s3://bucket",
    "gs://bucket/a%20b/c/": "gs://bucket/a b/c",
    "az://container/x?account_name=hidden": "az://container/x",
    "file:///somewhere/a%20b": "file:///somewhere/a%20b",
    "/somewhere/../else/": "file:///else",
}
LARGE = {"log": "".join(f"{number:x}." for number in range(300_000))}


def place_of(store: Store) -> str | None:
    """Where a store has its objects, as it remembers it."""
    ((place,),) = select(store, "SELECT objects FROM store")
    return place or None


def claim(store: Store, objects: str, directory: Path) -> None:
    """Choose a place before anything is put there."""
    at(Store(store.url, objects), directory)


def test_a_place_is_told_without_settings(store: Store, tmp_path: Path) -> None:
    """Whatever a store is opened with that has its objects elsewhere."""
    claim(store, str(tmp_path / "first"), tmp_path)
    with analemma.open(store.url, objects=str(tmp_path / "first")) as app:
        app.kernel.save_state_delta(LARGE, **NAME)
    told = {}
    for url in PLACES:
        with pytest.raises(Invalid) as refused:
            analemma.open(store.url, objects=url)
        told[url] = refused.value.facts["opened_with"]
        assert "hidden" not in str(refused.value)
    assert told == PLACES


def test_an_embedded_store_may_be_moved_with_its_objects(tmp_path: Path) -> None:
    with analemma.open(tmp_path / "store") as app:
        app.kernel.save_state_delta(LARGE, **NAME)
    assert place_of(Store(str(tmp_path / "store"))) == BESIDE
    shutil.move(tmp_path / "store", tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    for where in ("moved", "link"):
        with analemma.open(tmp_path / where) as app:
            assert app.kernel.load_latest_state(**NAME) == LARGE
    with analemma.open(tmp_path / "moved", objects=str(tmp_path / "link" / "objects")):
        assert place_of(Store(str(tmp_path / "moved"))) == BESIDE


def test_a_store_opened_with_other_objects_is_refused(store: Store, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with analemma.open(store.url, objects=first, migrate=True) as app:
        app.kernel.save_state_delta(LARGE, **NAME)
        uploads = sum(1 for each in Path(first).rglob("*") if each.is_file())
    assert uploads > 0
    with pytest.raises(Invalid, match=f"at file://{second}") as refused:
        analemma.open(store.url, objects=second)
    assert refused.value.facts["objects"] == Path(first).as_uri()
    assert first in str(refused.value)
    assert "--objects-moved" in str(refused.value.hint) and "objects detach --to" in str(refused.value.hint)
    with analemma.open(store.url, objects=f"file://{first}") as app:
        assert app.kernel.load_latest_state(**NAME) == LARGE


def test_what_was_copied_is_said_once(store: Store, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with analemma.open(store.url, objects=first, migrate=True) as app:
        app.kernel.save_state_delta(LARGE, **NAME)
    shutil.copytree(first, second)
    with analemma.open(store.url, objects=second, objects_moved=True) as app:
        assert app.kernel.load_latest_state(**NAME) == LARGE
    shutil.rmtree(first)
    with analemma.open(store.url, objects=second) as app:
        assert place_of(store) == Path(second).as_uri()
    with pytest.raises(Invalid):
        analemma.open(store.url, objects=first)


def test_as_long_as_there_are_none_another_place_may_be_chosen(store: Store, tmp_path: Path) -> None:
    for name in ("first", "second"):
        claim(store, str(tmp_path / name), tmp_path)
        assert place_of(store) == (tmp_path / name).as_uri()
    with analemma.open(store.url, objects=str(tmp_path / "third")) as app:
        app.kernel.save_state_delta(LARGE, **NAME)
        assert place_of(store) == (tmp_path / "third").as_uri()
    with pytest.raises(Invalid, match="third"):
        analemma.open(store.url, objects=str(tmp_path / "second"))


def test_opening_a_store_with_a_wrong_place_changes_nothing(store: Store, tmp_path: Path) -> None:
    with analemma.open(store.url, objects=str(tmp_path / "typo"), migrate=True) as app:
        app.kernel.save_state_delta({"small": 1}, **NAME)
        assert app.kernel.load_latest_state(**NAME) == {"small": 1} and place_of(store) is None
    with store.open() as app:
        app.kernel.save_state_delta(LARGE, **NAME)


def test_archives_are_put_where_the_objects_are(store: Store, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with (
        analemma.open(store.url, objects=first, migrate=True) as early,
        analemma.open(store.url, objects=second) as late,
    ):
        late.archives.create("ws", owner_id="ann", volume=tmp_path / "volume")
        assert place_of(store) == Path(second).as_uri()
        with pytest.raises(Invalid, match="second"):
            early.archives.create("other", owner_id="ann", volume=tmp_path / "another")
        with pytest.raises(Invalid, match="second"):
            early.archives.archive("ws")
        late.archives.archive("ws")


def test_nobody_falls_back_to_the_default_by_forgetting_to_choose(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    claim(store, str(tmp_path / "elsewhere"), tmp_path)
    with pytest.raises(Invalid, match=BESIDE) as refused:
        analemma.open(tmp_path / "store")
    assert (tmp_path / "elsewhere").as_uri() in refused.value.message
    with analemma.open(tmp_path / "store", objects_moved=True):
        assert place_of(store) == BESIDE


@pytest.mark.deep("an embedded store has objects beside it")
def test_a_server_without_objects_remembers_none(migrated_url: str, tmp_path: Path) -> None:
    with analemma.open(migrated_url) as app:
        app.kernel.save_state_delta(LARGE, **NAME)
        assert place_of(Store(migrated_url)) is None
    with analemma.open(migrated_url, objects=str(tmp_path / "objects")) as app:
        assert app.kernel.load_latest_state(**NAME) == LARGE


def test_two_who_chose_at_once_do_not_put_things_in_two_places(store: Store, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with analemma.open(store.url, objects=first, migrate=True) as early:
        early.kernel.save_state_delta({"n": 1}, **NAME)
        with analemma.open(store.url, objects=second) as late:
            late.kernel.save_state_delta(LARGE, **NAME)
            with pytest.raises(Invalid, match="second"):
                early.kernel.save_state_delta({"more": LARGE["log"][::-1]}, **NAME)
    with analemma.open(store.url, objects=second) as app:
        assert app.kernel.load_latest_state(**NAME) == {"n": 1} | LARGE
        assert app.kernel.verify(**NAME).ok


def test_nothing_goes_to_memory_from_a_store_that_has_a_place(store: Store, tmp_path: Path) -> None:
    claim(store, str(tmp_path / "first"), tmp_path)
    with pytest.raises(Invalid, match="in memory"):
        analemma.open(store.url, objects="memory://")


def test_a_store_of_before_is_asked_where_its_objects_are(tmp_path: Path) -> None:
    far = str(tmp_path / "far")
    store = Store(str(tmp_path / "store"))
    with store.open() as app:
        app.kernel.save_state_delta(LARGE, **NAME)
    forget = "UPDATE store SET objects = NULL"
    assert change(store, forget) == 1
    at(store, tmp_path)
    assert place_of(store) == BESIDE
    assert change(store, forget) == 1
    shutil.move(tmp_path / "store" / "objects", far)
    with pytest.raises(Invalid, match="not beside"):
        analemma.open(tmp_path / "store")
    with analemma.open(tmp_path / "store", objects=far) as app:
        assert app.kernel.verify(**NAME).ok


def test_many_threads_that_put_the_first_object_at_once_all_do(store: Store) -> None:
    refused: list[Exception] = []

    def save(app: analemma.App, number: int) -> None:
        try:
            start.wait()
            app.kernel.save_state_delta({"log": LARGE["log"] + str(number)}, workflow_id=f"w{number}", owner_id="ann")
        except Exception as exc:
            refused.append(exc)

    start = threading.Barrier(8)
    with store.open() as app:
        threads = [threading.Thread(target=save, args=(app, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == [] and place_of(store) is not None
