"""The collector and others at the worst moment: nothing that somebody needs, or is about to name, is deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.actors import Actor
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
TEXT = "what was thrown away, and is wanted again " * 200


CONTRACTS = Path(__file__).parents[2] / "examples/bookshop/contracts.yaml"
SLICE: dict[str, Any] = {"isbn": "1", "title": TEXT}
BOOK: dict[str, Any] = {**SLICE, "price": 1200}


def leave(app: analemma.App, *states: dict[str, Any]) -> None:
    """Blocks that nothing names any more: those of these states, each of which is a workflow's."""
    for number, state in enumerate(states):
        place: dict[str, Any] = {"workflow_id": f"left {number}", "owner_id": "ann"}
        app.kernel.save_state_delta(state, **place)
        app.kernel.save_state_delta(dict.fromkeys(state), **place)
        app.kernel.expire(**place)


def throw_away(app: analemma.App) -> None:
    """What the next pass would delete, and something that it would doom."""
    app.kernel.set_retention(owner_id="ann", keep_last=1)
    leave(app, {"text": TEXT}, SLICE, BOOK)
    assert sum(each.doomed for each in app.gc.run(grace_s=0).tenants) > 0
    leave(app, {"text": TEXT + TEXT})


def collect(app: analemma.App) -> Any:
    return app.gc.run(grace_s=0)


def save(app: analemma.App) -> Any:
    app.kernel.save_state_delta({"text": ""}, **PLACE)
    app.kernel.save_state_delta({"text": TEXT}, **PLACE)
    return lambda reader: reader.kernel.load_latest_state(**PLACE)["text"]


def begin(app: analemma.App) -> Any:
    there: dict[str, Any] = {"workflow_id": "journey", "owner_id": "ann"}
    app.kernel.save_state_delta({"text": TEXT}, **there)
    return lambda reader: reader.kernel.load_latest_state(**there)["text"]


def checkpoint(app: analemma.App) -> Any:
    app.kernel.wait_for(app.kernel.checkpoint_async({"text": TEXT}, **PLACE))
    return lambda reader: reader.kernel.load_latest_state(**PLACE)["text"]


def send(app: analemma.App) -> Any:
    sent = app.payloads.dehydrate({"text": TEXT}, **PLACE, execution_id="run", force_offload_fields=["text"])
    return lambda reader: reader.payloads.hydrate(sent)["text"]


def run(app: analemma.App) -> Any:
    def plan(state: Any, ctx: Any) -> dict[str, str]:
        return {"text": TEXT}

    def rest(state: Any, ctx: Any) -> None:
        """Changes nothing."""

    flow = analemma.Flow("trip", checkpoints="node")
    flow.step(plan, writes=["text"])
    flow.step(rest)
    assert app.flows.run(flow, {}, **PLACE).status == "COMPLETED"
    return lambda reader: reader.kernel.load_latest_state(**PLACE)["text"]


def ingest(app: analemma.App) -> Any:
    app.default.ingest("BOOK", "1", BOOK)
    return lambda reader: reader.default.compile("BOOK", "1") and TEXT


def compile(app: analemma.App) -> Any:
    app.default.ingest("BOOK", "1", BOOK)
    app.default.compile("BOOK", "1")
    return lambda reader: reader.default.slices("BOOK", "1")["CORE"].data["title"]


Write = Callable[[analemma.App], Callable[[analemma.App], object]]
WRITES = [save, begin, checkpoint, send, run, ingest, compile]


@pytest.mark.parametrize("point", ["gc.after_lease", "gc.after_snapshot", "gc.after_doom"])
@pytest.mark.parametrize("write", WRITES, ids=lambda each: each.__name__)
def test_what_is_stored_again_while_it_is_collected_stays(store: Store, write: Write, point: str) -> None:
    """Guard: whoever stores a block again takes the doom from it, and a block is deleted only if it is doomed then."""
    with store.open() as app, store.open() as other:
        app.contracts.load(CONTRACTS)
        throw_away(app)
        with failpoints.paused(point, lambda: collect(app)) as held:
            read = write(other)
            assert held.go_on().ok
        collect(app)
    with store.open() as app:
        assert read(app) == TEXT


def test_a_commit_that_stores_a_block_again_is_not_overtaken_by_the_collector(store: Store) -> None:
    """Guard: a block that a commit under way has in its hands is left to the next pass on PostgreSQL, and on SQLite
    whoever comes second waits."""
    with store.open() as app, store.open() as other:
        throw_away(app)
        with (
            failpoints.paused("payload.before_commit", lambda: send(other)) as held,
            beside(lambda: collect(app)) as it,
        ):
            if store.url.startswith("postgres"):
                wait_for_waiting(store.url, it)
            read = held.go_on()
        collect(app)
    with store.open() as app:
        assert read(app) == TEXT


def test_what_a_session_has_written_stays_until_something_names_it(store: Store, tmp_path: Path) -> None:
    """Guard: nothing is deleted that was doomed after the oldest open session had begun."""
    with store.open() as app, store.open() as other:
        volume = tmp_path / "volume"
        volume.mkdir()
        app.archives.create("home", owner_id="ann", volume=volume)
        (volume / "file").write_text(TEXT)
        archive = lambda: app.archives.archive("home", format="blocks")  # noqa: E731
        with failpoints.paused("archive.after_meta", archive) as held:
            for _ in range(3):
                assert collect(other).ok
            held.go_on()
        collect(other)
    with store.open() as app:
        app.archives.restore("home")
        assert (volume / "file").read_text() == TEXT


def collect_there(url: str, objects: str | None) -> None:
    with Store(url, objects).open() as app:
        assert collect(app).ok


@pytest.mark.parametrize("point", ["gc.after_lease", "gc.after_snapshot"])
def test_a_pass_that_lost_its_lease_does_nothing_more(store: Store, point: str) -> None:
    """Guard: every transaction of a pass looks whether it is still the newest."""
    # The first need not renew its lease while the test ends it.
    with store.open(gc_lease_s=3600) as app:
        throw_away(app)
        with failpoints.paused(point, lambda: collect(app)) as held:
            assert change(store, "UPDATE gc SET lease_until = 1") == 1
            with Actor(collect_there, store.url, store.objects, at="gc.after_lease") as other:
                other.wait_until_stopped()
                blocks = select(store, "SELECT count(*) FROM block")
                report = held.go_on()
                assert not report.ok and "lost its lease" in report.problems[0]
                assert select(store, "SELECT count(*) FROM block") == blocks
                other.thaw()
                assert other.wait() == 0, other.errors
        assert select(store, "SELECT count(*) FROM block") < blocks


def test_two_do_not_collect_at_once(store: Store) -> None:
    """Guard: a lease is taken only if nobody has it."""
    with store.open() as app, store.open() as other:
        throw_away(app)
        with failpoints.paused("gc.after_lease", lambda: collect(app)) as held:
            with pytest.raises(Conflict, match="is collecting"):
                collect(other)
            assert held.go_on().ok
