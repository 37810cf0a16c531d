"""Small stores in which things happen at the same time.

A scenario has as few blocks, versions and processes as can still go wrong, and says in its first line what happens in
it. Which rules are on, and how long it goes on, are parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.models.actions import BlockRow, Flush, PowerLoss, Rules, SetDamage
from tests.models.checker import Exploration, explore
from tests.models.collector import Links, collector
from tests.models.database import Process, Value
from tests.models.rules import ALL, Rule
from tests.models.store import Store
from tests.models.writers import commit, ending, expiry, packing, session, tagging


@dataclass(frozen=True)
class Setting:
    """What a scenario is played with."""

    rules: Rules = ALL
    serial: bool = False
    """As on SQLite, where one transaction writes at a time."""
    more_passes: int = 0
    rivals: int = 0
    """Further collectors, each of which takes the lease from the others whenever it likes."""

    def without(self, rule: Rule) -> Setting:
        return Setting(self.rules - {rule}, self.serial, self.more_passes, self.rivals)

    def store(
        self,
        rows: dict[str, Value],
        *processes: Process,
        links: Links | None = None,
        passes: int = 3,
        rivals: int = 0,
        objects: frozenset[str] = frozenset(),
        lossy: bool = False,
    ) -> Store:
        """A store with these rows and processes, and collectors."""
        blocks = tuple(name.removeprefix("block ") for name in rows if name.startswith("block "))
        uploads = tuple(name.removeprefix("upload ") for name in rows if name.startswith("upload "))
        collectors = [
            collector(name, self.rules, links or {}, blocks=blocks, uploads=uploads, passes=count)
            for name, count in [
                ("collector", passes + self.more_passes),
                *[(f"rival {number}" if number else "rival", 2) for number in range(rivals + self.rivals)],
            ]
        ]
        return Store(links or {}, rows, (*processes, *collectors), objects=objects, serial=self.serial, lossy=lossy)


def dedup_commit(setting: Setting) -> Store:
    """A save emits a block that is stored already, as garbage, while two collectors take the lease from each other."""
    return setting.store(
        {"block b": BlockRow(), "manifest 1": None},
        commit("save", setting.rules, makes={"manifest 1": ("b",)}, emits="b"),
        passes=2,
        rivals=1,
    )


def rollback_and_fork(setting: Setting) -> Store:
    """Version 1 expires, while one process makes its state the newest again, and another forks it."""
    rules = setting.rules
    return setting.store(
        {
            "block a": BlockRow(),
            "block b": BlockRow(),
            "head main": "manifest 2",
            "manifest 1": ("a",),
            "manifest 2": (),
            "manifest 3": None,
            "manifest 4": None,
        },
        commit("rollback", rules, makes={"manifest 3": ("a",)}, bases=["manifest 1"], head="head main"),
        commit("fork", rules, makes={"manifest 4": ("a",)}, bases=["manifest 1"]),
        expiry(rules, "manifest 1", head="head main"),
        links={"a": ("b",)},
    )


def fork_of_a_new_version(setting: Setting) -> Store:
    """A save of garbage, a fork of what was saved, and its expiry: the fork's base may be one that no snapshot saw."""
    rules = setting.rules
    return setting.store(
        {"block b": BlockRow(), "head main": "manifest 0", "manifest 0": (), "manifest 1": None, "manifest 2": None},
        commit("save", rules, makes={"manifest 1": ("b",)}, emits="b"),
        commit("fork", rules, makes={"manifest 2": ("b",)}, bases=["manifest 1"]),
        expiry(rules, "manifest 1", head="head main"),
    )


def merge(setting: Setting) -> Store:
    """A merge links blocks of both of its sides, and both sides expire."""
    rules = setting.rules
    return setting.store(
        {
            "block m": None,
            "block x": BlockRow(),
            "block y": BlockRow(),
            "head main": "manifest 0",
            "head side": "manifest 0",
            "manifest 0": (),
            "manifest 1": ("x",),
            "manifest 2": ("y",),
            "manifest 3": None,
        },
        commit(
            "merge",
            rules,
            makes={"manifest 3": ("m",)},
            emits="m",
            bases=["manifest 1", "manifest 2"],
            head="head main",
        ),
        expiry(rules, "manifest 1", head="head main"),
        expiry(rules, "manifest 2", head="head side"),
        links={"m": ("x", "y")},
        passes=2,
    )


def moved_subtree(setting: Setting) -> Store:
    """A bag loaded from version 1 puts a part of it, block b, under a new node, while version 1 expires."""
    rules = setting.rules
    return setting.store(
        {
            "block a": BlockRow(),
            "block b": BlockRow(),
            "block n": None,
            "head main": "manifest 0",
            "manifest 0": (),
            "manifest 1": ("a",),
            "manifest 2": None,
        },
        commit("save", rules, makes={"manifest 2": ("n",)}, emits="n", bases=["manifest 1"]),
        expiry(rules, "manifest 1", head="head main"),
        links={"a": ("b",), "n": ("b",)},
    )


def import_session(setting: Setting) -> Store:
    """An import writes block b, which is there as garbage, then a above it, then a version, and may be given up."""
    return setting.store(
        {"block a": None, "block b": BlockRow(), "session s": None, "manifest 1": None},
        session("import", setting.rules, "session s", ["b", "a"], makes={"manifest 1": ("a",)}),
        ending("session s", "reaper"),
        links={"a": ("b",)},
    )


def import_of_an_expired_version(setting: Setting) -> Store:
    """Version 1 expires and is imported again under the same id, while somebody who read it before forks it."""
    rules = setting.rules
    return setting.store(
        {
            "block b": BlockRow(),
            "head main": "manifest 0",
            "session s": None,
            "manifest 0": (),
            "manifest 1": ("b",),
            "manifest 2": None,
        },
        session("import", rules, "session s", ["b"], makes={"manifest 1": ("b",)}),
        commit("fork", rules, makes={"manifest 2": ("b",)}, bases=["manifest 1"]),
        expiry(rules, "manifest 1", head="head main"),
        ending("session s", "reaper"),
    )


def payload_lease(setting: Setting) -> Store:
    """A lease is made of version 1's blocks, and a version of the lease's, while version 1 and the lease end."""
    rules = setting.rules
    return setting.store(
        {
            "block b": BlockRow(),
            "head main": "manifest 0",
            "lease l": None,
            "manifest 0": (),
            "manifest 1": ("b",),
            "manifest 2": None,
        },
        commit("dehydrate", rules, makes={"lease l": ("b",)}, bases=["manifest 1"]),
        commit("hydrate and save", rules, makes={"manifest 2": ("b",)}, bases=["lease l"]),
        expiry(rules, "manifest 1", head="head main"),
        ending("lease l", "end of execution"),
    )


def pending(setting: Setting) -> Store:
    """A pending delta brings a block that is there as garbage; applying it makes a version and removes the entry."""
    rules = setting.rules
    return setting.store(
        {"block b": BlockRow(), "pending q": None, "manifest 1": None},
        commit("checkpoint", rules, makes={"pending q": ("b",)}, emits="b"),
        commit("apply", rules, makes={"manifest 1": ("b",)}, drops=["pending q"]),
    )


def two_saves(setting: Setting) -> Store:
    """Two saves emit the same two blocks, each in an order of its own."""
    rules = setting.rules
    return setting.store(
        {"block x": BlockRow(), "block y": BlockRow(), "manifest 1": None, "manifest 2": None},
        commit("save", rules, makes={"manifest 1": ("x", "y")}, emits="xy"),
        commit("other save", rules, makes={"manifest 2": ("x", "y")}, emits="yx"),
        passes=2,
    )


def tagged_version(setting: Setting) -> Store:
    """Somebody tags the version that is about to expire."""
    return setting.store(
        {"block b": BlockRow(), "head main": "manifest 2", "tag t": None, "manifest 1": ("b",), "manifest 2": ()},
        tagging("manifest 1", tag="tag t", head="head main"),
        expiry(setting.rules, "manifest 1", head="head main", tags=["tag t"]),
    )


def damaged_node(setting: Setting) -> Store:
    """The node above block b cannot be read, until it is repaired from a second copy."""
    return setting.store(
        {"block a": BlockRow(), "block b": BlockRow(), "manifest 1": ("a",)},
        Process("disk", (SetDamage("a", True), SetDamage("a", False)), beginnings=(0, 1)),
        links={"a": ("b",)},
    )


def upload(setting: Setting) -> Store:
    """A save uploads its block, and its version expires; at any time the upload may be taken for abandoned."""
    rules = setting.rules
    return setting.store(
        {"block b": None, "upload u": None, "head main": "manifest 0", "manifest 0": (), "manifest 1": None},
        commit("save", rules, makes={"manifest 1": ("b",)}, emits="b", uploads={"u": ("b",)}),
        expiry(rules, "manifest 1", head="head main"),
    )


def dead_upload(setting: Setting) -> Store:
    """Nothing needs the one block of an upload, and two collectors find out."""
    rows: dict[str, Value] = {"block b": BlockRow(upload="u"), "upload u": "ready"}
    return setting.store(rows, passes=2, rivals=1, objects=frozenset({"u"}))


def repacking(setting: Setting, *, lossy: bool = False) -> Store:
    """Block b moves from one object to another, while a save emits it and the version that has it expires."""
    rules = setting.rules
    return setting.store(
        {
            "block b": BlockRow(upload="u"),
            "upload u": "ready",
            "upload v": None,
            "head main": "manifest 0",
            "manifest 0": (),
            "manifest 1": ("b",),
            "manifest 2": None,
        },
        packing(rules, "b", source="u", target="v"),
        commit("save", rules, makes={"manifest 2": ("b",)}, emits="b", durable=not lossy),
        expiry(rules, "manifest 1", head="head main"),
        *[Process("power", (PowerLoss(),))] * lossy,
        passes=2,
        objects=frozenset({"u"}),
        lossy=lossy,
    )


def repacking_and_power_loss(setting: Setting) -> Store:
    """The same, with commits that return before they are durable, and a power loss."""
    return repacking(setting, lossy=True)


def power_loss(setting: Setting) -> Store:
    """Commits return before they are durable, and the database's machine goes down in the life of an uploaded block."""
    rules = setting.rules
    return setting.store(
        {"block b": None, "upload u": None, "head main": "manifest 0", "manifest 0": (), "manifest 1": None},
        commit("save", rules, makes={"manifest 1": ("b",)}, emits="b", uploads={"u": ("b",)}, durable=False),
        expiry(rules, "manifest 1", head="head main"),
        Process("power", (PowerLoss(),)),
        lossy=True,
    )


def lost_expiry(setting: Setting) -> Store:
    """Commits return before they are durable; a version that expired is back after a power loss, which the collector,
    on another machine, survives."""
    rules = setting.rules
    return setting.store(
        {"block b": BlockRow(), "head main": "manifest 0", "manifest 0": (), "manifest 1": None},
        commit("save", rules, makes={"manifest 1": ("b",)}, emits="b", durable=False),
        expiry(rules, "manifest 1", head="head main"),
        Process("disk", (Flush(),)),
        Process("power", (PowerLoss(),)),
        passes=2,
        lossy=True,
    )


def everything(setting: Setting) -> Store:
    """A save, a rollback, an import, a lease and an expiry, and all that ends them, at once."""
    rules = setting.rules
    return setting.store(
        {
            "block b": BlockRow(),
            "head main": "manifest 0",
            "lease l": None,
            "session s": None,
            "manifest 0": (),
            "manifest 1": ("b",),
            "manifest 2": None,
            "manifest 3": None,
            "manifest 4": None,
        },
        commit("save", rules, makes={"manifest 2": ("b",)}, emits="b"),
        commit("rollback", rules, makes={"manifest 3": ("b",)}, bases=["manifest 1"], head="head main"),
        session("import", rules, "session s", ["b"], makes={"manifest 4": ("b",)}),
        commit("dehydrate", rules, makes={"lease l": ("b",)}, bases=["manifest 1"]),
        expiry(rules, "manifest 1", head="head main"),
        ending("session s", "reaper"),
        ending("lease l", "end of execution"),
        passes=2,
    )


Scenario = Callable[[Setting], Store]

SCENARIOS: tuple[Scenario, ...] = (
    dedup_commit,
    rollback_and_fork,
    fork_of_a_new_version,
    merge,
    moved_subtree,
    import_session,
    import_of_an_expired_version,
    payload_lease,
    pending,
    two_saves,
    tagged_version,
    damaged_node,
    upload,
    dead_upload,
    repacking,
    power_loss,
    lost_expiry,
)

LARGE_SCENARIOS: tuple[Scenario, ...] = (everything, repacking_and_power_loss)


def check(scenario: Scenario, setting: Setting, *, most_states: int = 1_000_000) -> Exploration:
    """Look at every state of a scenario, and at what a lone collector makes of those at rest."""
    store = scenario(setting)
    return explore(store, most_states=most_states, check_rest=store.left_behind)
