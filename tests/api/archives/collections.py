"""What tests of the archive collector share: workspaces with archives, orphans, clocks that are off, stores that do
something in the middle of a listing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from analemma import App, Archives
from analemma.archives.names import unit_prefix
from analemma.blocks.port import ObjectInfo
from analemma.catalog.workspaces import SqlWorkspaces
from tests.api.gc.collections import later

HOUR_S = 3600
DELAY_S = 7 * 86_400
"""So long archives that nobody needs stay, unless the settings say otherwise."""


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


def put_unit(
    app: App, workspace: str, op_id: str, *, data: str = "home-0123456789abcdef.tar.zst", known: bool = True
) -> list[str]:
    """Objects that look like an archive which was begun and given up; not `known`: and that the catalog never heard
    of."""
    assert app.objects is not None
    if known:
        row = {"tenant": app.default.id, "workspace": workspace, "op_id": op_id, "now": 1}
        app.catalog.engine.write(lambda tx: tx.execute("add_unit", **row))
    keys = [f"{unit_prefix(app.default.name, workspace, op_id)}/{name}" for name in (data, "home.meta")]
    for key in keys:
        app.objects.put(key, b"bytes of " + key.encode())
    return keys


def units(app: App) -> set[str]:
    """What lies in the object store, as `workspace/op_id`."""
    assert app.objects is not None
    return {"/".join(info.key.split("/")[3:5]) for info in app.objects.list("tenants/default/archives")}


def keys_of(app: App, workspace: str, op_id: str) -> list[str]:
    assert app.objects is not None
    return [info.key for info in app.objects.list(unit_prefix(app.default.name, workspace, op_id))]


def after(app: App, seconds: float) -> Archives:
    """The same workspaces, when so much time has passed in the database."""
    parts = app.archives._parts
    return Archives(replace(parts, catalog=SqlWorkspaces(app.catalog.engine, clock=later(seconds))))


def on(app: App, store: Any, seconds: float = 0) -> Archives:
    """The same workspaces over another object store."""
    catalog = SqlWorkspaces(app.catalog.engine, clock=later(seconds))
    return Archives(replace(app.archives._parts, store=store, catalog=catalog))


def marks(app: App) -> dict[str, int]:
    """Every mark, and when it was made."""
    rows = app.catalog.engine.all("archive_marks", tenant=app.default.id, after="", limit=1000)
    return {row[0]: row[1] for row in rows}


class InTheMiddle:
    """An object store that does something when so many keys of the tenant's archives were listed."""

    def __init__(self, inner: Any, place: int, happens: Callable[[], object]) -> None:
        self._inner = inner
        self._place: int | None = place
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
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
