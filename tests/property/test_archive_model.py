"""Random lives of workspaces: users, crashes after any step, reconcilers and a collector, against a model that knows
what every workspace must hold."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from analemma import App
from analemma.errors import Conflict, Expired, NotFound
from analemma.testing import failpoints
from tests.actors import Actor
from tests.api.archives.volumes import look
from tests.depth import count
from tests.raw_rows import change, select
from tests.stores import Store, local

WORKSPACES = ("a", "ab", "b")
VERBS = ("create", "edit", "archive", "archive", "restore", "restore", "start", "stop", "delete", "undelete", "purge")
LIKELY: dict[str | None, tuple[str, ...]] = {
    None: ("create",),
    "WARM": ("edit", "archive", "archive", "start", "delete"),
    "RUNNING": ("edit", "stop"),
    "COLD": ("restore", "restore", "restore", "start", "delete"),
    "DELETED": ("undelete", "undelete", "purge"),
}
PLACES: dict[str, tuple[str, ...]] = {
    "create": ("workspace.after_begin", "workspace.before_finish"),
    "archive": (
        "workspace.after_begin",
        "archive.after_data",
        "archive.after_verify",
        "archive.after_meta",
        "archive.after_commit",
        "archive.after_aside",
        "archive.after_remove",
        "workspace.before_finish",
    ),
    "restore": ("workspace.after_begin", "restore.after_extract", "restore.after_mark", "restore.after_swap"),
    "start": ("workspace.after_begin", "workspace.before_finish"),
    "stop": ("workspace.after_begin", "workspace.before_finish"),
    "delete": ("workspace.after_begin", "archive.after_meta", "archive.after_aside", "workspace.before_finish"),
    "undelete": (),
    "purge": ("remove.after_aside", "remove.after_volume", "remove.after_markers", "remove.after_objects"),
    "collect": (
        "archive_gc.after_lease",
        "archive_gc.after_look",
        "archive_gc.after_mark",
        "archive_gc.before_claim",
        "archive_gc.after_claim",
        "archive_gc.after_markers",
        "archive_gc.after_objects",
        "archive_gc.after_forget",
    ),
}
"""Where whoever does this may be killed."""
KILLED = count(test=3, deep=25) / 100
"""The share of those who die that are processes which are killed; the others are threads, which leave in good order."""
SETTINGS: dict[str, Any] = {"gc_grace_s": 0, "gc_brake_drop": 1, "sqlite_synchronous": "NORMAL"}


class Row(NamedTuple):
    """What the catalog says of a workspace."""

    status: str
    operation: str
    intent: str | None
    op_id: str | None
    archive_op: str | None


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
    store: Store
    app: App
    folder: Path
    chance: random.Random
    lives: dict[str, Life] = field(default_factory=lambda: {name: Life() for name in WORKSPACES})
    seen: set[str] = field(default_factory=set)

    def volume(self, name: str) -> Path:
        return self.folder / "volumes" / name

    def row(self, name: str) -> Row | None:
        sql = "SELECT status, operation, intent, op_id, archive_op FROM workspace WHERE id = ?"
        found = select(self.store, sql, [name])
        return Row(*found[0]) if found else None


def do(app: App, verb: str, name: str, volume: str, format: Any) -> None:
    if verb == "create":
        app.archives.create(name, owner_id="ann", volume=volume)
    elif verb == "archive":
        app.archives.archive(name, format=format)
    elif verb == "collect":
        for _ in range(2):
            assert app.archives.gc_run(0).ok
    else:
        getattr(app.archives, verb)(name)


def told(app: App, *arguments: Any) -> str:
    """The same, and how it was refused, if it was."""
    try:
        do(app, *arguments)
    except (Conflict, NotFound):
        return "refused"
    except Expired:
        return "too late"
    return ""


def do_elsewhere(directory: str, settings: dict[str, Any], *arguments: Any) -> None:
    """The same in a process that may not live to its end."""
    with Store(directory).open(**settings) as app:
        print(told(app, *arguments))


class Died(BaseException):
    """Whoever did something is gone."""


def die_at(world: World, point: str, settings: dict[str, Any], *arguments: Any) -> str:
    """Have it done by a process that is killed when it passes there, or by a thread that ends; what they have said, if
    they did not pass there."""
    said = ""
    if world.chance.random() < KILLED:
        with Actor(do_elsewhere, world.store.url, settings, *arguments, at=point, then="kill") as actor:
            status = actor.wait()
        assert status in (0, -signal.SIGKILL), actor.errors
        said = actor.output.strip() if status == 0 else "died"
    else:
        with world.store.open(**settings) as app:
            failpoints.arm(point, _die)
            try:
                said = told(app, *arguments)
            except Died:
                said = "died"
            finally:
                failpoints.arm(None)
    if said == "died":
        world.seen.add(f"died at {point}")
    return said


def _die() -> None:
    raise Died


def edit(world: World, name: str) -> None:
    """A user works in a volume that is there, while nobody archives it."""
    volume = world.volume(name)
    for number in range(world.chance.randint(1, 3)):
        (volume / f"file-{world.chance.randrange(5)}").write_bytes(world.chance.randbytes(10 + 3000 * number))
    world.lives[name].content = look(volume)


def act(world: World, name: str) -> None:
    """One verb, which may be refused, fail, or be the last thing that a worker does."""
    life, chance = world.lives[name], world.chance
    row = world.row(name)
    likely = LIKELY.get(None if row is None else row.status, VERBS)
    verb = chance.choice(likely if chance.random() < 0.85 else VERBS)
    if verb == "create" and row is None:
        world.volume(name).mkdir(parents=True, exist_ok=True)
        (world.volume(name) / "first").write_text(name)
        world.lives[name] = life = Life(content=look(world.volume(name)))
    if verb == "purge" and not life.deleted and chance.random() < 0.8:
        return
    if verb == "edit":
        if row is not None and row.status in ("WARM", "RUNNING") and row.operation == "NONE":
            edit(world, name)
        return
    arguments = (verb, name, str(world.volume(name)), chance.choice(["tar", "blocks"]))
    said = ""
    if PLACES[verb] and chance.random() < 0.5:
        said = die_at(world, chance.choice(PLACES[verb]), SETTINGS, *arguments)
    else:
        said = told(world.app, *arguments)
    assert said != "too late" or life.collected
    if said != "died":
        world.seen.add(f"{verb} {said}".strip())
    note(world, name, verb, row)


def note(world: World, name: str, verb: str, before: Row | None) -> None:
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


def purging(row: Row) -> bool:
    """Whether a purge has begun, whatever of it is done."""
    return row.operation == "DELETING" and (row.intent or "").startswith("purge")


def reconcile(world: World) -> None:
    # Time passes: leases end.
    change(world.store, "UPDATE workspace SET lease_until = 0 WHERE operation <> 'NONE'")
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
    """The collectors, without a delay; that of archives may die after any step."""
    chance = world.chance
    # Time passes: the lease of one that died ends.
    change(world.store, "UPDATE archive_gc SET lease_until = 0")
    settings = {**SETTINGS, "archive_gc_filter": chance.choice(["merge", "bloom"])}
    if chance.random() < 0.5:
        die_at(world, chance.choice(PLACES["collect"]), settings, "collect", "", "", "")
    else:
        with world.store.open(**settings) as other:
            for _ in range(2):
                report = other.archives.gc_run(0)
                assert report.ok, report
                if report.deleted:
                    world.seen.add("collected")
    assert world.app.gc.run().ok
    claimed = set(select(world.store, "SELECT workspace, op_id FROM archive_unit WHERE state = 'claimed'"))
    for name in WORKSPACES:
        row = world.row(name)
        if row is not None and (name, row.archive_op) in claimed:
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


@pytest.mark.parametrize("seed", range(count(test=2, deep=8)))
def test_no_workspace_is_ever_lost(seed: int, tmp_path: Path) -> None:
    live(seed, count(test=70, deep=200), tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 160))
def test_no_workspace_is_ever_lost_in_many_lives(seed: int, tmp_path: Path) -> None:
    live(seed, 300, tmp_path)


def live(seed: int, steps: int, tmp_path: Path) -> None:
    with local(tmp_path).open(**SETTINGS) as app:
        world = World(local(tmp_path), app, tmp_path, random.Random(seed))
        for _ in range(steps):
            step = world.chance.random()
            if step < 0.75:
                act(world, world.chance.choice(WORKSPACES))
            elif step < 0.9:
                reconcile(world)
            else:
                collect(world)
            check(world)
        reconcile(world)
        for name in WORKSPACES:
            row = world.row(name)
            assert row is None or row.operation == "NONE"
        check(world)
        collect(world)
        check(world)
        # That much happens in every life of this length.
        assert {"archive", "restore"} <= world.seen
        assert len({each for each in world.seen if each.startswith("died")}) >= 4
