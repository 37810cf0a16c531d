"""Random lives of workspaces: users, crashes after any step, reconcilers and a collector, against a model that knows
what every workspace must hold."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.archives import archives as verbs
from analemma.archives import archiving, collecting, operations, removing, restoring
from analemma.archives.names import parse_key
from analemma.archives.volumes import DirectoryVolume
from analemma.catalog import archive_marks
from analemma.catalog.workspaces import SqlWorkspaces
from analemma.errors import Conflict, Expired, NotFound
from tests.api.archives.volumes import look, object_keys
from tests.stores import local

WORKSPACES = ("a", "ab", "b")
VERBS = ("create", "edit", "archive", "archive", "restore", "restore", "start", "stop", "delete", "undelete", "purge")
LIKELY: dict[str | None, tuple[str, ...]] = {
    None: ("create",),
    "WARM": ("edit", "archive", "archive", "start", "delete"),
    "RUNNING": ("edit", "stop"),
    "COLD": ("restore", "restore", "restore", "start", "delete"),
    "DELETED": ("undelete", "undelete", "purge"),
}
MODULES = (verbs, archiving, operations, removing, restoring, collecting, archive_marks)


class Died(BaseException):
    """The process is gone: nothing that comes after this happens."""


@dataclass
class Life:
    """What is known of one workspace."""

    content: dict[str, Any] | None = None
    """What is in it; None: it does not exist."""
    archived: dict[str, Any] | None = None
    """What its newest finished archive holds."""
    deleted: bool = False
    collected: bool = False
    """Its archive was given to the collector after it was deleted."""


@dataclass
class World:
    app: App
    folder: Path
    chance: random.Random
    lives: dict[str, Life] = field(default_factory=lambda: {name: Life() for name in WORKSPACES})
    seen: set[str] = field(default_factory=set)

    def volume(self, name: str) -> Path:
        return self.folder / "volumes" / name

    def row(self, name: str) -> Any:
        return SqlWorkspaces(self.app.catalog.engine).get(self.app.default.id, name)


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, after: int | None, passed: set[str]) -> Iterator[None]:
    """Die when so many failpoints were passed: from then on neither row nor volume can be touched any more."""
    dead = False
    left = after

    def hit(name: str) -> None:
        nonlocal dead, left
        alive()
        if left is not None:
            left -= 1
            if left < 0:
                dead = True
                passed.add(f"died at {name}")
                raise Died(name)

    def alive() -> None:
        if dead:
            raise Died("already")

    change, translating = SqlWorkspaces.change, DirectoryVolume._translating

    def guarded_change(*arguments: Any, **more: Any) -> Any:
        alive()
        return change(*arguments, **more)

    def guarded_translating(self: DirectoryVolume) -> Any:
        alive()
        return translating(self)

    with monkeypatch.context() as patched:
        for module in MODULES:
            patched.setattr(module, "hit", hit)
        patched.setattr(SqlWorkspaces, "change", guarded_change)
        patched.setattr(DirectoryVolume, "_translating", guarded_translating)
        yield


def edit(world: World, name: str) -> None:
    """A user works in a volume that is there, while nobody archives it."""
    volume = world.volume(name)
    for number in range(world.chance.randint(1, 3)):
        (volume / f"file-{world.chance.randrange(5)}").write_bytes(world.chance.randbytes(10 + 3000 * number))
    world.lives[name].content = look(volume)


def act(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One verb, which may be refused, fail, or be the last thing that a worker does."""
    archives, life, chance = world.app.archives, world.lives[name], world.chance
    row = world.row(name)
    likely = LIKELY.get(None if row is None else row.status, VERBS)
    verb = chance.choice(likely if chance.random() < 0.85 else VERBS)
    if verb == "create" and row is None:
        world.volume(name).mkdir(parents=True, exist_ok=True)
        (world.volume(name) / "first").write_text(name)
        world.lives[name] = Life(content=look(world.volume(name)))
    if verb == "purge" and not life.deleted and chance.random() < 0.8:
        return
    if verb == "edit":
        if row is not None and row.status in ("WARM", "RUNNING") and row.operation == "NONE":
            edit(world, name)
        return
    crash = chance.randrange(9) if chance.random() < 0.5 else None
    before = row
    try:
        with dying(monkeypatch, crash, world.seen):
            if verb == "create":
                archives.create(name, owner_id="ann", volume=world.volume(name))
            elif verb == "archive":
                archives.archive(name, format=chance.choice(["tar", "blocks"]))
            else:
                getattr(archives, verb)(name)
        world.seen.add(verb)
    except Died:
        pass
    except (Conflict, NotFound):
        world.seen.add(f"{verb} refused")
    except Expired:
        if not life.collected:
            raise
        world.seen.add(f"{verb} too late")
    note(world, name, verb, before)


def note(world: World, name: str, verb: str, before: Any) -> None:
    """What the model learns from what happened."""
    row, life = world.row(name), world.lives[name]
    if verb == "purge" and (row is None or purging(row)):
        # From its first moment on there is no way back.
        world.lives[name] = Life()
        return
    if row is None:
        return
    life.deleted = row.status == "DELETED" or (row.operation == "DELETING" and row.intent == "keep")
    if before is not None and row.archive_op != before.archive_op:
        life.archived = life.content


def purging(row: Any) -> bool:
    """Whether a purge has begun, whatever of it is done."""
    return row.operation == "DELETING" and (row.intent or "").startswith("purge")


def reconcile(world: World) -> None:
    for name in WORKSPACES:
        row = world.row(name)
        if row is not None and row.operation != "NONE":
            # Time passes: its lease ends.
            SqlWorkspaces(world.app.catalog.engine).change(
                world.app.default.id, name, lambda _, row, now: replace(row, lease_until_us=0)
            )
    for outcome in world.app.archives.reconcile():
        assert outcome.error is None, outcome
        world.seen.add(f"reconciled {outcome.operation}")
        row = world.row(outcome.workspace)
        life = world.lives[outcome.workspace]
        if row is None:
            world.lives[outcome.workspace] = Life()
        else:
            life.deleted = row.status == "DELETED"
            if outcome.operation in ("ARCHIVING", "DELETING") and row.archive_op is not None:
                life.archived = life.content


def collect(world: World) -> None:
    """A collector that is as eager as one may be: it claims everything that it is allowed to, at once."""
    app = world.app
    assert app.objects is not None
    units: dict[tuple[str, str], list[str]] = {}
    for key in object_keys(app):
        parsed = parse_key("default", key)
        assert parsed is not None
        units.setdefault((parsed.workspace, parsed.op_id), []).append(key)
    for (workspace, op_id), keys in sorted(units.items()):
        if SqlWorkspaces(app.catalog.engine).claim_unit(app.default.id, workspace, op_id):
            app.objects.delete_many(sorted(keys, key=lambda key: not key.endswith(".meta")))
            row = world.row(workspace)
            if row is not None and row.archive_op == op_id:
                assert row.status == "DELETED"
                world.lives[workspace].collected = True
            world.seen.add("claimed")
    app.gc.run()


def collect_in_passes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector itself, without a delay; it may die after any step."""
    crash = world.chance.randrange(12) if world.chance.random() < 0.5 else None
    engine, tenant = world.app.catalog.engine, world.app.default.id
    lease = engine.one("archive_gc", tenant=tenant)
    if lease is not None:
        # Time passes: the lease of one that died ends.
        engine.execute("archive_gc_finish", tenant=tenant, needed=None, **{"pass": lease[0]})
    parts = world.app.archives._parts
    options = replace(parts.options, gc=replace(parts.options.gc, filter=world.chance.choice(["merge", "bloom"])))
    try:
        with dying(monkeypatch, crash, world.seen):
            for _ in range(2):
                report = verbs.Archives(replace(parts, options=options)).gc_run(0)
                assert report.ok, report
                if report.deleted:
                    world.seen.add("collected")
    except Died:
        pass
    rows = SqlWorkspaces(engine)
    for name in WORKSPACES:
        row = world.row(name)
        unit = None if row is None or row.archive_op is None else rows.unit(tenant, name, row.archive_op)
        if unit is not None and unit.state == "claimed":
            assert row.status == "DELETED" or row.operation == "DELETING"
            world.lives[name].collected = True


def check(world: World) -> None:
    """What the model says a workspace holds can be had: from its volume, or from its archive."""
    for name in WORKSPACES:
        row, life = world.row(name), world.lives[name]
        if row is None or life.content is None or purging(row):
            continue
        if life.deleted and life.collected:
            continue
        if row.status == "PENDING":
            continue
        volume = world.volume(name)
        aside = volume.parent / f".analemma-{name}" / f"trash-{row.op_id}"
        if volume.exists():
            assert look(volume) == life.content, (name, row)
        elif aside.exists():
            assert look(aside)["b'first'"] == life.content["b'first'"]
        else:
            copy = world.folder / "copy"
            world.app.archives.restore(name, into=copy)
            assert look(copy) == life.content, (name, row)
            shutil.rmtree(copy)
        if row.operation == "NONE":
            assert volume.exists() == (row.status in ("WARM", "RUNNING")), (name, row)


@pytest.mark.parametrize("seed", range(4))
def test_no_workspace_is_ever_lost(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(seed, 120, tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_no_workspace_is_ever_lost_in_many_lives(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(seed, 300, tmp_path, monkeypatch)


def live(seed: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with local(tmp_path).open(gc_grace_s=0, gc_brake_drop=1, sqlite_synchronous="NORMAL") as app:
        world = World(app, tmp_path, random.Random(seed))
        for _ in range(steps):
            step = world.chance.random()
            if step < 0.75:
                act(world, world.chance.choice(WORKSPACES), monkeypatch)
            elif step < 0.9:
                reconcile(world)
            elif step < 0.93:
                collect(world)
            else:
                collect_in_passes(world, monkeypatch)
            check(world)
        reconcile(world)
        for name in WORKSPACES:
            row = world.row(name)
            assert row is None or row.operation == "NONE"
        check(world)
        collect(world)
        check(world)
        # That much happens in every life of this length.
        assert {"archive", "restore", "delete", "claimed"} <= world.seen
        assert len({each for each in world.seen if each.startswith("died")}) >= 4
