"""What tests of the archive collector share: workspaces with archives, orphans, time that passes, object stores that do
something in the middle of a listing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from analemma import App, Archives
from tests.raw_rows import change, select
from tests.stores import Store

HOUR_S = 3600
DELAY_S = 7 * 86_400
"""So long archives that nobody needs stay, unless the settings say otherwise."""
FOLDER = "tenants/default/archives"


def warm(app: App, folder: Path, name: str, text: str = "content") -> Archives:
    """A WARM workspace with one file."""
    root = folder / "volumes" / name
    root.mkdir(parents=True, exist_ok=True)
    (root / "file").write_text(text)
    app.archives.create(name, owner_id="ann", volume=root)
    return app.archives


def cold(app: App, folder: Path, name: str) -> str:
    """A COLD workspace; the op_id of its archive."""
    return warm(app, folder, name).archive(name).op_id


def superseded(app: App, folder: Path, name: str) -> tuple[str, str]:
    """A COLD workspace that was archived twice: the op_id of the archive that it has no more, and of the one it has."""
    old = cold(app, folder, name)
    app.archives.restore(name)
    (folder / "volumes" / name / "file").write_text("other")
    return old, app.archives.archive(name).op_id


def put_unit(app: App, workspace: str, op_id: str, *, known_in: Store | None = None) -> list[str]:
    """Objects that look like an archive which was begun and given up; not known in a store: and that the catalog never
    heard of."""
    assert app.objects is not None
    if known_in is not None:
        sql = (
            "INSERT INTO archive_unit (tenant, workspace, op_id, state, created_at)"
            " SELECT id, ?, ?, 'writing', 1 FROM tenant WHERE name = 'default'"
        )
        assert change(known_in, sql, [workspace, op_id]) == 1
    keys = [f"{FOLDER}/{workspace}/{op_id}/{name}" for name in ("home-0123456789abcdef.tar.zst", "home.meta")]
    for key in keys:
        app.objects.put(key, b"bytes of " + key.encode())
    return keys


def units(app: App) -> set[str]:
    """What lies in the object store, as `workspace/op_id`."""
    assert app.objects is not None
    return {"/".join(info.key.split("/")[3:5]) for info in app.objects.list(FOLDER)}


def keys_of(app: App, workspace: str, op_id: str) -> list[str]:
    assert app.objects is not None
    return [info.key for info in app.objects.list(f"{FOLDER}/{workspace}/{op_id}")]


def let_pass(store: Store, seconds: float) -> None:
    """As if everything that was done to workspaces and archives had been done so much earlier."""
    by = round(seconds * 1_000_000)
    change(store, "UPDATE archive_mark SET first_orphan_detected = first_orphan_detected - ?", [by])
    change(store, "UPDATE archive_gc SET lease_until = lease_until - ?, started_at = started_at - ?", [by, by])
    change(store, "UPDATE workspace SET lease_until = lease_until - ?, updated_at = updated_at - ?", [by, by])
    change(store, "UPDATE workspace SET deleted_at = deleted_at - ?", [by])


def on(app: App, objects: Any) -> Archives:
    """The workspaces of an app that has not used any yet, over another object store."""
    app.objects = objects
    return app.archives


def marks(store: Store) -> dict[str, int]:
    """Every mark, and when it was made."""
    return dict(select(store, "SELECT unit, first_orphan_detected FROM archive_mark"))


def unit_states(store: Store, workspace: str) -> dict[str, str]:
    """What the catalog says of the archives of a workspace, by op_id."""
    return dict(select(store, "SELECT op_id, state FROM archive_unit WHERE workspace = ?", [workspace]))


class InTheMiddle:
    """An object store that does something when so many keys of the tenant's archives were listed."""

    def __init__(self, inner: Any, place: int, happens: Callable[[], object]) -> None:
        self._inner = inner
        self._place: int | None = place
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, prefix: str = "") -> Iterator[Any]:
        if not prefix.endswith("/archives"):
            yield from self._inner.list(prefix)
            return
        place = -1
        for place, info in enumerate(self._inner.list(prefix)):
            self._reach(place)
            yield info
        self._reach(place + 1, at_end=True)

    def _reach(self, place: int, *, at_end: bool = False) -> None:
        if self._place is not None and (place == self._place or at_end):
            self._place = None
            self._happens()


class Empty(InTheMiddle):
    """An object store in which there is nothing."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, 0, lambda: None)

    def list(self, prefix: str = "") -> Iterator[Any]:
        return iter(())


class RefusingDeletes:
    """An object store that fails to delete some keys."""

    def __init__(self, inner: Any, refuses: Callable[[str], bool], error: Exception) -> None:
        self._inner = inner
        self._refuses = refuses
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def delete_many(self, keys: Any) -> None:
        for key in keys:
            if self._refuses(key):
                raise self._error
            self._inner.delete(key)
