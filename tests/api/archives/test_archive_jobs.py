"""What a worker does for workspaces."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from analemma import App, Archives
from analemma.archives import operations
from analemma.cli.archive_jobs import archive_jobs
from analemma.errors import Unavailable
from tests.api.archives.collections import DELAY_S, HOUR_S, after, cold, superseded, units, warm
from tests.stores import Store


def do(app: App, name: str, *, seconds: float = 0, always: bool = False) -> str | None:
    """One job of a worker of all tenants, so many seconds from now."""

    def tenants() -> list[tuple[str, Archives]]:
        return [
            (tenant, after(app, seconds) if tenant == "default" else app.tenant(tenant).archives) for tenant in names
        ]

    names = app.gc.tenants()
    [job] = [job for job in archive_jobs(tenants, interval_s=HOUR_S, always=always) if job.name == name]
    return job.work(lambda: False)


class Died(BaseException):
    pass


def interrupt(app: App, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to archive, and die."""

    def die(point: str) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(operations, "hit", die)
        with pytest.raises(Died):
            app.archives.archive(name)


def test_archives_are_collected_when_that_is_due(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        _, new = superseded(app, tmp_path, "ws1")
        said = do(app, "archives")
        assert said is not None and "2 archives in 4 objects, 1 of them needed" in said and "marked 1" in said
        assert do(app, "archives") is None
        assert do(app, "archives", seconds=HOUR_S - 60) is None
        said = do(app, "archives", seconds=DELAY_S + 60)
        assert said is not None and "deleted 1 archives" in said
        assert units(app) == {f"ws1/{new}"}
        assert do(app, "archives", seconds=DELAY_S + 60, always=True) is not None


def test_a_store_without_archives_has_nothing_to_tell(store: Store) -> None:
    with store.open() as app:
        assert app.default.id
        assert do(app, "archives", always=True) is None
        assert do(app, "workspaces") is None


def test_what_was_interrupted_is_finished(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        warm(app, tmp_path, "ws1")
        interrupt(app, "ws1", monkeypatch)
        assert do(app, "workspaces") is None  # Its lease has not ended.
        said = do(app, "workspaces", seconds=120)
        assert said == "ARCHIVING of default/ws1 was interrupted: COLD"
        assert app.archives.get("ws1").status == "COLD"
        assert do(app, "workspaces", seconds=120) is None


def test_what_was_begun_on_another_machine_is_left_to_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.open() as app:
        warm(app, tmp_path, "ws1")
        interrupt(app, "ws1", monkeypatch)
        volumes, elsewhere = tmp_path / "volumes", tmp_path / "elsewhere"
        shutil.move(volumes, elsewhere)
        assert do(app, "workspaces", seconds=120) is None
        volumes.mkdir()
        assert do(app, "workspaces", seconds=120) is None
        assert list(volumes.iterdir()) == []
        assert app.archives.get("ws1").operation == "ARCHIVING"
        volumes.rmdir()
        shutil.move(elsewhere, volumes)
        assert do(app, "workspaces", seconds=120) is not None
        assert app.archives.get("ws1").status == "COLD"


def test_a_tenant_that_cannot_be_collected_keeps_no_other_from_it(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        cold(app, tmp_path, "ws1")
        broken = Archives(replace(app.archives._parts, store_id="another"))
        visited = app.tenant("second").archives
        jobs = archive_jobs(lambda: [("default", broken), ("second", visited)], interval_s=HOUR_S)
        with pytest.raises(Unavailable, match="default: failed"):
            jobs[1].work(lambda: False)
        assert not visited.gc_is_due(HOUR_S)
