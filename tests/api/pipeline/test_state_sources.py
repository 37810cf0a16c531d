"""Workflow states become entities: every way a head moves, each commit once and in order, and only what is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from analemma import App, BranchKey, Tenant
from analemma.errors import NotFound, Unavailable
from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from analemma.testing.events import OutboxEvent, produce
from tests.api.pipeline.fanout_shop import failing
from tests.api.pipeline.tables import query
from tests.langgraph.graphs import put
from tests.stores import Store

SCHEMA: dict[str, Any] = {
    "kind": "ENTITY_SCHEMA",
    "id": "entity.run",
    "version": "1.0.0",
    "status": "ACTIVE",
    "entityType": "RUN",
    "fields": [
        {"name": "status", "type": "string", "required": True},
        {"name": "goal", "type": "string"},
        {"name": "version", "type": "long"},
    ],
}
RULESET: dict[str, Any] = {
    "kind": "RULESET",
    "id": "ruleset.run",
    "version": "1.0.0",
    "status": "ACTIVE",
    "entityType": "RUN",
    "slices": [{"type": "CORE", "buildRules": {"type": "PassThrough", "fields": ["*"]}}],
    "indexes": [{"type": "status", "selector": "$.status"}],
}
SOURCE: dict[str, Any] = {
    "kind": "STATE_SOURCE",
    "id": "source.run",
    "version": "1.0.0",
    "status": "ACTIVE",
    "entityType": "RUN",
    "input": {"type": "STATE", "workflows": ["run-*"]},
    "fields": ["status", "goal"],
}
STATE_COMMITTED, STATE_REMOVED = "StateCommitted", "StateRemoved"
THREAD: dict[str, Any] = {
    "when": "EVERY_COMMIT",
    "fields": ["namespace"],
    "constants": {"status": "SAVED", "version": "{version}"},
}
"""Of threads of LangGraph, which can be removed."""
ONE: dict[str, Any] = {"workflow_id": "run-1", "owner_id": "ann"}


@contextmanager
def open_agents(store: Store, **source: Any) -> Iterator[tuple[App, Tenant]]:
    with store.open(outbox_backoff_base_s=0) as app:
        app.contracts.load([SCHEMA, RULESET, {**SOURCE, **source}])
        yield app, app.tenant("agents")


def raws(store: Store, entity_id: str = "run-1") -> int:
    sql = "SELECT count(*) FROM raw JOIN entity ON entity.id = raw.entity WHERE entity.key = ?"
    return int(query(store, sql, entity_id)[0][0])


def state_events(store: Store) -> list[tuple[str, dict[str, Any]]]:
    rows = query(store, "SELECT type, payload FROM outbox WHERE aggregatetype = 'STATE' ORDER BY created_at, seq")
    return [(kind, json.loads(bytes(payload))) for kind, payload in rows]


def core(tenant: Tenant, entity_id: str = "run-1") -> Any:
    return tenant.slices("RUN", entity_id)["CORE"].data


def work(app: App) -> None:
    counts = app.worker(2).drain()
    assert (counts.failed, counts.dead) == (0, 0)


def test_every_commit_of_a_workflow_that_matches_is_a_version_of_an_entity(store: Store) -> None:
    with open_agents(store) as (app, agents):
        for goal in "abc":
            agents.kernel.save_state_delta({"status": "RUNNING", "goal": goal, "secret": "x" * 5000}, **ONE)
        agents.kernel.save_state_delta({"status": "RUNNING"}, workflow_id="other", owner_id="ann")
        agents.kernel.save_state_delta({"status": "RUNNING"}, workflow_id="run-1", owner_id="ann", branch="draft")
        told = state_events(store)
        assert [payload["version"] for _, payload in told] == ["1", "2", "3"]
        assert {kind for kind, _ in told} == {STATE_COMMITTED}
        assert all("x" * 100 not in json.dumps(payload) for _, payload in told)
        work(app)
        assert core(agents) == {"status": "RUNNING", "goal": "c"}
        assert raws(store) == 3
        with pytest.raises(NotFound):
            agents.slices("RUN", "other")


def test_the_event_is_part_of_the_commit_and_replays_tell_nothing_twice(store: Store) -> None:
    with open_agents(store) as (_, agents):
        for _ in range(3):
            agents.kernel.save_state_delta({"status": "A"}, idempotency_key="k", **ONE)
        head = agents.head(BranchKey("ann", "run-1"))
        assert head is not None
        assert [payload for _, payload in state_events(store)] == [
            {
                "payloadVersion": "1.0",
                "tenantId": "agents",
                "ownerId": "ann",
                "workflowId": "run-1",
                "branch": "main",
                "manifestId": head.manifest.hex(),
                "version": "1",
            }
        ]


def test_every_way_a_head_moves_is_told(store: Store) -> None:
    with open_agents(store, input={"type": "STATE", "workflows": ["run-*"], "branches": ["**"]}) as (_app, agents):
        kernel = agents.kernel
        kernel.save_state_delta({"status": "A", "goal": "1"}, **ONE)
        bag = kernel.load_latest_state(**ONE, lazy=True)
        bag["goal"] = "2"
        kernel.save(bag)
        with kernel.session(**ONE) as state:
            state["goal"] = "2b"
        kernel.checkpoint_async({"goal": "3"}, wait_for_commit=True, **ONE)
        for goal in "456":
            kernel.checkpoint_async({"goal": goal}, **ONE)
        agents.checkpoints.drain()
        kernel.rollback_to_version(version=1, **ONE)
        head = agents.head(BranchKey("ann", "run-1"))
        assert head is not None
        kernel.fork(head.manifest.hex(), owner_id="ann", branch="side")
        kernel.save_state_delta({"goal": "8"}, branch="side", **ONE)
        kernel.merge(source="side", **ONE)
        kernel.fork(head.manifest.hex(), owner_id="ann", workflow_id="run-2")
        made = kernel.create_manifest("run-3", {}, [], owner_id="ann")
        kernel.inject_dynamic_segment(made.manifest_id, {"node": 1}, 0)
        told = [(p["workflowId"], p["branch"], int(p["version"])) for _, p in state_events(store)]
        versions = query(store, "SELECT workflow, branch, version FROM manifest")
        assert sorted(told) == sorted((one, two, int(three)) for one, two, three in versions)


def test_what_pending_checkpoints_become_is_told_in_their_order(store: Store) -> None:
    with open_agents(store) as (app, agents):
        agents.kernel.save_state_delta({"status": "A", "goal": "0"}, **ONE)
        for number in range(1, 10):
            agents.kernel.checkpoint_async({"goal": str(number)}, **ONE)
        # One that nobody has begun, too.
        agents.kernel.checkpoint_async({"status": "B"}, workflow_id="run-2", owner_id="ann")
        agents.checkpoints.drain()
        work(app)
        assert (core(agents)["goal"], raws(store), raws(store, "run-2")) == ("9", 10, 1)


def test_a_rollback_brings_the_old_values_as_a_new_version(store: Store) -> None:
    with open_agents(store) as (app, agents):
        for goal in "ab":
            agents.kernel.save_state_delta({"status": "A", "goal": goal}, **ONE)
        agents.kernel.rollback_to_version(version=1, **ONE)
        work(app)
        assert (core(agents)["goal"], raws(store)) == ("a", 3)


def test_commits_that_change_nothing_of_it_make_no_version(store: Store) -> None:
    constants = {"version": "{version}"}
    with open_agents(store, constants=constants) as (app, agents):
        for step in range(5):
            agents.kernel.save_state_delta({"status": "A", "step": step}, **ONE)
        work(app)
        assert (core(agents), raws(store)) == ({"status": "A", "version": 1}, 1)


def test_asked_for_every_commit_is_one(store: Store) -> None:
    with open_agents(store, constants={"version": "{version}"}, when="EVERY_COMMIT") as (app, agents):
        for step in range(5):
            agents.kernel.save_state_delta({"status": "A", "step": step}, **ONE)
        work(app)
        assert (core(agents), raws(store)) == ({"status": "A", "version": 5}, 5)


def test_a_state_that_is_no_such_entity_is_passed_over_and_said(store: Store) -> None:
    with open_agents(store) as (app, agents):
        agents.kernel.save_state_delta({"goal": "no status yet"}, **ONE)
        work(app)
        (problem,) = agents.source_problems()
        assert (problem.key.workflow, problem.version, problem.source) == ("run-1", 1, "source.run")
        assert "/status: a required field is missing" in problem.problem
        (status,) = agents.state_sources()
        assert (status.followed, status.problems, status.entity_type) == (1, 1, "RUN")
        agents.kernel.save_state_delta({"status": "A"}, **ONE)
        work(app)
        assert core(agents) == {"status": "A", "goal": "no status yet"} and agents.source_problems() == []
        # What it was before stays, when a later state is none.
        agents.kernel.save_state_delta({"status": 7}, **ONE)
        work(app)
        assert core(agents)["status"] == "A" and len(agents.source_problems("source.run")) == 1
        assert agents.source_problems("another") == []


def test_a_source_may_stop_at_a_state_that_is_none(store: Store) -> None:
    with open_agents(store, whenRefused="STOP") as (app, agents):
        agents.kernel.save_state_delta({"goal": "no status"}, **ONE)
        agents.kernel.save_state_delta({"status": "A"}, **ONE)
        counts = app.worker(1).drain()
        assert counts.dead == 1 and raws(store) == 0
        (letter,) = app.outbox.dead_letters().entries
        assert "/status: a required field is missing" in (letter.failure_reason or "")
        app.outbox.discard([letter.id])
        work(app)
        assert core(agents)["status"] == "A"


def test_an_id_that_no_entity_can_have_is_a_problem_and_no_more(store: Store) -> None:
    with open_agents(store, entityId={"pattern": "{ownerId}-{workflowId}"}) as (app, agents):
        workflows = ["run-a#b", "run-\u2028", "run-" + "x" * 508]
        for workflow in workflows:
            agents.kernel.save_state_delta({"status": "A"}, workflow_id=workflow, owner_id="ann")
        work(app)
        found = {each.key.workflow: each.problem for each in agents.source_problems()}
        assert sorted(found) == sorted(workflows)
        assert [each for each in found.values() if "not an entity id" not in each] == []


def test_an_expired_version_is_passed_over_for_the_newest(store: Store) -> None:
    with open_agents(store) as (app, agents):
        for number in range(6):
            agents.kernel.save_state_delta({"status": "A", "goal": str(number)}, **ONE)
        agents.kernel.set_retention(owner_id="ann", workflow_id="run-1", keep_last=2)
        agents.kernel.expire(owner_id="ann", workflow_id="run-1")
        for _ in range(2):
            app.gc.run(grace_s=0, tenant="agents", force=True)
        work(app)
        # The first event finds its version gone and takes the newest one; the others have nothing left to do.
        assert (core(agents)["goal"], raws(store)) == ("5", 1)
        agents.kernel.save_state_delta({"goal": "6"}, **ONE)
        work(app)
        assert (core(agents)["goal"], raws(store)) == ("6", 2)


@pytest.mark.parametrize(("option", "gone"), [("KEEP", False), ("DELETE", True)])
def test_a_workflow_that_is_removed(store: Store, option: str, gone: bool) -> None:
    with (
        open_agents(store, whenRemoved=option, **THREAD) as (app, agents),
        AnalemmaSaver(app, tenant="agents") as saver,
    ):
        put(saver, {"a": 1}, name="run-1", source="input", step=-1)
        work(app)
        saver.delete_thread("run-1")
        assert [kind for kind, _ in state_events(store)] == [STATE_COMMITTED, STATE_REMOVED]
        work(app)
        assert (raws(store) == 2) is gone
        assert ("CORE" not in agents.slices("RUN", "run-1") or core(agents) is None) is gone
        assert query(store, "SELECT count(*) FROM state_source") == [(0,)]
        # Another of the same name goes on counting.
        put(saver, {"a": 1}, name="run-1", source="input", step=-1)
        work(app)
        assert (core(agents)["status"], core(agents)["version"]) == ("SAVED", 2)


@pytest.mark.parametrize("looked", [False, True])
def test_a_workflow_that_is_deleted_and_had_back(store: Store, looked: bool) -> None:
    with open_agents(store, whenRemoved="DELETE") as (app, agents):
        agents.kernel.save_state_delta({"status": "A", "goal": "g"}, **ONE)
        work(app)
        before = core(agents)
        agents.kernel.delete(**ONE)
        if looked:
            work(app)
            assert core(agents) is None
        agents.kernel.undelete(**ONE)
        assert [kind for kind, _ in state_events(store)] == [STATE_COMMITTED, STATE_REMOVED, STATE_COMMITTED]
        work(app)
        assert core(agents) == before


def test_a_workflow_that_began_again_before_anyone_looked(store: Store) -> None:
    with (
        open_agents(store, whenRemoved="DELETE", **THREAD) as (app, agents),
        AnalemmaSaver(app, tenant="agents") as saver,
    ):
        config = put(saver, {"a": 1}, name="run-1", source="input", step=-1)
        put(saver, {"a": 2}, config, name="run-1")
        work(app)
        assert core(agents)["version"] == 2
        saver.delete_thread("run-1")
        put(saver, {"a": 1}, name="run-1", source="input", step=-1)
        work(app)
        assert core(agents)["version"] == 3


def test_one_state_may_become_several_entities(store: Store) -> None:
    other = {**SOURCE, "id": "source.again", "entityId": {"pattern": "{ownerId}:{/goal}"}}
    with open_agents(store) as (app, agents):
        app.contracts.load(other)
        agents.kernel.save_state_delta({"status": "A", "goal": "g"}, **ONE)
        assert len(state_events(store)) == 1
        work(app)
        assert core(agents)["status"] == core(agents, "ann:g")["status"] == "A"


def test_a_state_that_becomes_another_entity_leaves_the_former_or_deletes_it(store: Store) -> None:
    with open_agents(store, entityId={"path": "goal"}, whenRemoved="DELETE") as (app, agents):
        for goal in "ab":
            agents.kernel.save_state_delta({"status": "A", "goal": goal}, **ONE)
        work(app)
        assert core(agents, "b")["status"] == "A"
        assert agents.slices("RUN", "a").get("CORE") is None or core(agents, "a") is None


def test_only_the_tenants_owners_and_branches_that_are_named(store: Store) -> None:
    taken = {"type": "STATE", "workflows": ["run-*"], "owners": ["ann"], "tenants": ["a*"], "branches": ["main", "b*"]}
    with open_agents(store, input=taken, entityId={"pattern": "{ownerId}.{branch}"}) as (app, agents):
        agents.kernel.save_state_delta({"status": "A"}, **ONE)
        agents.kernel.save_state_delta({"status": "A"}, workflow_id="run-1", owner_id="bob")
        agents.kernel.save_state_delta({"status": "A"}, branch="c", **ONE)
        agents.kernel.save_state_delta({"status": "A"}, branch="beta", **ONE)
        app.tenant("shop").kernel.save_state_delta({"status": "A"}, **ONE)
        told = {(p["tenantId"], p["ownerId"], p["branch"]) for _, p in state_events(store)}
        assert told == {("agents", "ann", "main"), ("agents", "ann", "beta")}


def test_states_that_were_there_before_their_source_can_be_taken(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([SCHEMA, RULESET])
        agents = app.tenant("agents")
        for number in range(7):
            agents.kernel.save_state_delta({"status": "A"}, workflow_id=f"run-{number}", owner_id="ann")
        agents.kernel.save_state_delta({"goal": "no status"}, workflow_id="run-x", owner_id="ann")
        agents.kernel.save_state_delta({"status": "A"}, workflow_id="other", owner_id="ann")
        assert state_events(store) == []
        app.contracts.load(SOURCE)
        assert agents.backfill_sources(dry_run=True).matched == 8 and raws(store) == 0
        done = agents.backfill_sources("source.run")
        assert (done.matched, done.outcomes) == (8, {"ingested": 7, "unchanged": 0, "refused": 1})
        assert [each.key.workflow for each in done.problems] == ["run-x"]
        again = agents.backfill_sources()
        assert again.outcomes == {"ingested": 0, "unchanged": 7, "refused": 1}
        work(app)
        assert core(agents)["status"] == "A"
        with pytest.raises(NotFound, match="there is no ACTIVE state source 'nope'"):
            agents.backfill_sources("nope")


def test_a_backfill_is_not_undone_by_events_of_older_versions(store: Store) -> None:
    with open_agents(store) as (app, agents):
        for number in range(4):
            agents.kernel.save_state_delta({"status": "A", "goal": str(number)}, **ONE)
        agents.backfill_sources()
        work(app)
        assert (core(agents)["goal"], raws(store)) == ("3", 1)


def test_a_source_that_is_retired_takes_nothing_more(store: Store) -> None:
    with open_agents(store) as (app, agents):
        agents.kernel.save_state_delta({"status": "A"}, **ONE)
        app.contracts.load({**SOURCE, "status": "DEPRECATED"})
        agents.kernel.save_state_delta({"status": "B"}, **ONE)
        assert len(state_events(store)) == 1
        work(app)
        assert raws(store) == 0
        assert agents.state_sources() == []


@pytest.mark.parametrize("place", ["outbox.before_settle", "outbox.after_settle"])
def test_each_event_has_its_effect_once(store: Store, place: str) -> None:
    """Settling is part of the transaction: undone together, done together."""
    with open_agents(store) as (app, agents):
        agents.kernel.save_state_delta({"status": "A"}, **ONE)
        with failing(place, Unavailable("lost"), times=1):
            counts = app.worker(1, tenant="agents", handlers={"RawDataIngested": lambda event, settle: None}).drain()
        assert (counts.failed, counts.dead) == (1, 0)
        assert raws(store) == 1 and query(store, "SELECT count(*) FROM state_source") == [(1,)]


def forge(app: App, lane: str, payload: dict[str, Any]) -> None:
    """An event that somebody else wrote."""
    produce(app, [OutboxEvent(lane, "STATE", lane, STATE_COMMITTED, json.dumps(payload).encode())], tenant="agents")


def test_events_that_others_wrote_are_refused(store: Store) -> None:
    right = {"tenantId": "agents", "ownerId": "ann", "workflowId": "run-1", "branch": "main", "manifestId": "0" * 64}
    wrong: list[dict[str, Any]] = [
        {},
        {**right, "tenantId": "other"},
        {**right, "ownerId": ["ann"]},
        {**right, "ownerId": ""},
        {**right, "workflowId": 1},
        {**right, "manifestId": "xyz"},
        {name: value for name, value in right.items() if name != "manifestId"},
    ]
    with open_agents(store) as (app, _):
        for number, payload in enumerate(wrong):
            forge(app, f"lane {number}", payload)
        counts = app.worker(1).drain()
        assert (counts.failed, counts.dead) == (0, len(wrong))


def test_a_manifest_of_another_workflow_is_not_read(store: Store) -> None:
    with open_agents(store) as (app, agents):
        agents.kernel.save_state_delta({"status": "mine"}, **ONE)
        agents.kernel.save_state_delta({"status": "theirs"}, workflow_id="other", owner_id="bob")
        theirs = agents.head(BranchKey("bob", "other"))
        assert theirs is not None
        own = {"tenantId": "agents", "ownerId": "ann", "workflowId": "run-1", "branch": "main"}
        # Nothing is done for the event that is right.
        app.worker(1, handlers={STATE_COMMITTED: lambda event, settle: None}).drain()
        forge(app, "lane", {**own, "manifestId": theirs.manifest.hex(), "version": "1"})
        work(app)
        assert core(agents)["status"] == "mine"


def test_long_names_have_a_lane_too_and_no_two_share_one(store: Store) -> None:
    with open_agents(store, input={"type": "STATE", "workflows": ["**"], "branches": ["**"]}) as (app, agents):
        name: dict[str, Any] = {"workflow_id": "run-" + "w" * 500, "owner_id": "o" * 512, "branch": "main"}
        agents.kernel.save_state_delta({"status": "A"}, **name)
        work(app)
        assert core(agents, name["workflow_id"])["status"] == "A"
        alike = [("a/b", "c", "main"), ("a", "b/c", "main"), ("a", "b@c", "d"), ("a", "b", "c/d"), ("a@b", "c", "d")]
        for owner, workflow, branch in alike:
            agents.kernel.save_state_delta({"status": "A"}, owner_id=owner, workflow_id=workflow, branch=branch)
        lanes = query(store, "SELECT DISTINCT aggregateid FROM outbox WHERE aggregatetype = 'STATE'")
        assert len(lanes) == 1 + len(alike)


def test_damaged_contracts_keep_nobody_from_saving(store: Store) -> None:
    with open_agents(store) as (app, agents):
        agents.kernel.save_state_delta({"status": "A"}, **ONE)
    query(store, "UPDATE contract SET body = ? WHERE id = 'entity.run'", b"{}")
    with store.open() as app:
        agents = app.tenant("agents")
        agents.kernel.save_state_delta({"status": "B"}, **ONE)
        assert len(state_events(store)) == 2


def test_another_process_that_loads_a_source_is_followed_within_a_second(store: Store) -> None:
    with store.open() as app, store.open() as other:
        app.contracts.load([SCHEMA, RULESET])
        agents = app.tenant("agents")
        agents.kernel.save_state_delta({"status": "A"}, **ONE)
        other.contracts.load(SOURCE)
        done = other.tenant("agents").backfill_sources()
        # The backfill has waited until everyone goes by the source.
        assert done.matched == 1
        agents.kernel.save_state_delta({"status": "B"}, **ONE)
        assert len(state_events(store)) == 1


def test_a_langgraph_thread_is_a_workflow_like_any_other(store: Store) -> None:
    with open_agents(store, **THREAD) as (app, agents), AnalemmaSaver(app, tenant="agents") as saver:
        config = put(saver, {"a": 1}, name="run-1", source="input", step=-1)
        put(saver, {"a": 2}, config, name="run-1")
        work(app)
        assert (core(agents)["status"], core(agents)["version"], raws(store)) == ("SAVED", 2, 2)


def test_who_comes_late_deletes_nothing_that_the_state_has_become_again(store: Store) -> None:
    """A backfill has read a state that became another entity, and is about to delete the one that it was before."""
    with open_agents(store, entityId={"path": "/goal"}, whenRemoved="DELETE") as (app, agents), store.open() as other:
        agents.kernel.save_state_delta({"status": "A", "goal": "a"}, **ONE)
        work(app)
        agents.kernel.save_state_delta({"status": "A", "goal": "b"}, **ONE)

        def become_again() -> None:
            other.tenant("agents").kernel.save_state_delta({"status": "A", "goal": "a"}, **ONE)
            work(other)

        with failpoints.call("ingest.before_transaction", become_again):
            agents.backfill_sources()
        work(app)
        assert core(agents, "a") == {"status": "A", "goal": "a"} and core(agents, "b") is None
