"""Rows that repeat what the journal says of a branch, beside its versions: every edit that does not fit is found."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict, Expired, NotFound
from tests.api.state.journal_rows import append
from tests.api.state.raw_access import Rows, damaged
from tests.depth import count
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
Mutation = Callable[[Rows, random.Random], str]


def write_history(app: App) -> None:
    """Two branches with tags (one of which moved between them), pins, decisions and expired versions."""
    kernel = app.kernel
    main = [kernel.save_state_delta({"n": number}, **PLACE) for number in range(8)]
    idea = [kernel.fork(main[5].manifest_id, owner_id="ann", branch="idea")]
    idea += [kernel.save_state_delta({"n": number}, branch="idea", **PLACE) for number in range(3)]
    kernel.tag(main[2].manifest_id, "good", owner_id="ann", message="why")
    kernel.tag(main[3].manifest_id, "better", owner_id="ann")
    kernel.tag(main[4].manifest_id, "better", owner_id="ann", message="moved", force=True)
    kernel.tag(main[4].manifest_id, "elsewhere", owner_id="ann")
    kernel.tag(idea[1].manifest_id, "elsewhere", owner_id="ann", force=True)
    kernel.tag(main[6].manifest_id, "gone", owner_id="ann")
    kernel.tag(idea[2].manifest_id, "gone", owner_id="ann", force=True)
    kernel.untag("gone", **PLACE)
    kernel.pin(main[3].manifest_id, owner_id="ann", reason="first")
    kernel.pin(main[3].manifest_id, owner_id="ann", reason="second")
    kernel.pin(idea[1].manifest_id, owner_id="ann")
    kernel.pin(main[6].manifest_id, owner_id="ann")
    kernel.unpin(main[6].manifest_id, owner_id="ann")
    for commit, decision in ((main[0], "rejected"), (main[6], "approved"), (main[6], "rejected"), (main[7], "pending")):
        kernel.decide(commit.manifest_id, decision, actor="eve")  # type: ignore[arg-type]
    kernel.set_retention(**PLACE, keep_last=3)
    assert len(kernel.expire(**PLACE).expired) == 2
    assert len(kernel.expire(branch="idea", **PLACE).expired) == 1


FORGED = {"name": "forged", "text": "forged", "created_at": 7, "branch": "forged"}


def verify(app: App) -> list[str]:
    reports = [app.kernel.verify(branch=branch, **PLACE) for branch in ("main", "idea")]
    return [problem for report in reports for problem in report.problems]


def other_version(rows: Rows, pick: random.Random, table: str, number: int, column: str) -> Any:
    """The id of a version that is there, and not the one that this row is on."""
    ids = [rows.get("manifest", each, "id") for each in rows.numbers("manifest")]
    return pick.choice([each for each in ids if each != rows.get(table, number, column)])


def free_version(rows: Rows, pick: random.Random, table: str, **where: Any) -> dict[str, Any]:
    """The columns that place such a row of this table on a version that has none."""
    taken = {rows.get(table, number, "manifest") for number in rows.where(table, **where)}
    free = [number for number in rows.numbers("manifest") if rows.get("manifest", number, "id") not in taken]
    number = pick.choice(free)
    return {"manifest": rows.get("manifest", number, "id"), "branch": rows.get("manifest", number, "branch")}


def change(rows: Rows, pick: random.Random, table: str, values: dict[str, Any], **where: Any) -> str:
    number, column = pick.choice(rows.where(table, **where)), pick.choice(sorted(values))
    rows.set(table, number, column, values[column])
    return f"{table}.{column}"


def change_a_tag(rows: Rows, pick: random.Random) -> str:
    return change(rows, pick, "ref", FORGED, kind="tag")


def move_a_tag(rows: Rows, pick: random.Random) -> str:
    number = pick.choice(rows.where("ref", kind="tag"))
    manifest = other_version(rows, pick, "ref", number, "manifest")
    rows.set("ref", number, "manifest", manifest)
    if pick.random() < 0.5:
        (target,) = rows.where("manifest", id=manifest)
        rows.set("ref", number, "branch", rows.get("manifest", target, "branch"))
    return f"the tag {rows.get('ref', number, 'name')}"


def move_a_tag_back(rows: Rows, pick: random.Random) -> str:
    """As it once was: only the journal of the branch that it moved to knows better."""
    (number,) = rows.where("ref", kind="tag", name="elsewhere")
    record = rows.where("journal", kind="tagged", branch="main")[-2]
    rows.set("ref", number, "manifest", rows.get("journal", record, "manifest"))
    rows.set("ref", number, "branch", "main")
    rows.set("ref", number, "created_at", rows.get("journal", record, "created_at"))
    return "a tag, to the branch that it came from"


def drop_a_mark(rows: Rows, pick: random.Random) -> str:
    number = pick.choice(rows.numbers("ref"))
    rows.delete("ref", number)
    return f"a {rows.get('ref', number, 'kind')}"


def forge_a_mark(rows: Rows, pick: random.Random) -> str:
    kind = pick.choice(["tag", "pin"])
    columns = free_version(rows, pick, "ref", kind=kind)
    columns["name"] = pick.choice(["forged", "gone"]) if kind == "tag" else columns["manifest"].hex()
    if pick.random() < 0.3:
        columns["branch"] = "nowhere"
    rows.add_like("ref", pick.choice(rows.where("ref", kind=kind)), **columns)
    return f"a {kind}"


def change_a_pin(rows: Rows, pick: random.Random) -> str:
    if pick.random() < 0.7:
        return change(rows, pick, "ref", FORGED, kind="pin")
    number = pick.choice(rows.where("ref", kind="pin"))
    manifest = free_version(rows, pick, "ref", kind="pin")["manifest"]
    if pick.random() < 0.5:
        rows.set("ref", number, "manifest", manifest)
    else:
        rows.add_like("ref", number, manifest=manifest, name=manifest.hex())
        rows.delete("ref", number)
    return "the version of a pin"


def change_what_expired(rows: Rows, pick: random.Random) -> str:
    kind = pick.randrange(4)
    number = pick.choice(rows.numbers("expired"))
    if kind == 0:
        rows.delete("expired", number)
    elif kind == 1:
        there = pick.choice(rows.where("manifest", branch="main"))
        manifest = rows.get("manifest", there, "id") if pick.random() < 0.5 else pick.randbytes(32)
        rows.add_like(
            "expired", number, manifest=manifest, branch="main", version=rows.get("manifest", there, "version")
        )
    elif kind == 2:
        return change(rows, pick, "expired", {"version": 77, "expired_at": 7, "branch": "forged", "owner": "mallory"})
    else:
        columns = {name: rows.get("expired", number, name) for name in ("branch", "version")}
        rows.add_like("manifest", rows.numbers("manifest")[0], id=rows.get("expired", number, "manifest"), **columns)
    return f"an expired version ({kind})"


def change_how_a_branch_began(rows: Rows, pick: random.Random) -> str:
    if pick.random() < 0.2:
        table = pick.choice(["branch", "workflow"])
        rows.delete(table, pick.choice(rows.numbers(table)))
        return f"the row of a {table}"
    number = pick.choice(rows.numbers("branch"))
    manifest = other_version(rows, pick, "branch", number, "first_manifest")
    values = {"first_manifest": manifest, "parent": pick.randbytes(32), "created_at": 7}
    column = pick.choice(sorted(values))
    rows.set("branch", number, column, values[column])
    return f"branch.{column}"


def change_a_decision(rows: Rows, pick: random.Random) -> str:
    kind = pick.randrange(4)
    number = pick.choice(rows.numbers("decision"))
    if kind == 0:
        rows.delete("decision", number)
    elif kind == 1:
        rows.set("decision", number, "decision", "approved")
    elif kind == 2:
        column, value = pick.choice([("version", 3), ("owner", "mallory"), ("branch", "forged")])
        rows.set("decision", number, column, value)
    else:
        columns = free_version(rows, pick, "decision")
        (target,) = rows.where("manifest", id=columns["manifest"])
        version = rows.get("manifest", target, "version")
        rows.add_like("decision", number, **columns, version=version, decision="approved")
    return f"a decision ({kind})"


def point_the_head_at_another_version_of_its_number(rows: Rows, pick: random.Random) -> str:
    (head,) = rows.where("head", branch="main")
    same = rows.where("manifest", branch="idea", version=rows.get("head", head, "version"))
    rows.set("head", head, "manifest", rows.get("manifest", same[0], "id"))
    return "head.manifest"


MUTATIONS: list[Mutation] = [
    change_a_tag,
    move_a_tag,
    move_a_tag_back,
    drop_a_mark,
    forge_a_mark,
    change_a_pin,
    change_what_expired,
    change_how_a_branch_began,
    change_a_decision,
    point_the_head_at_another_version_of_its_number,
]


@pytest.fixture(scope="module")
def written(module_store: Store) -> Store:
    with module_store.open() as app:
        write_history(app)
    return module_store


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_row_that_the_journal_contradicts_is_found(written: Store, mutation: Mutation) -> None:
    unnoticed = []
    with written.open(cache_bytes=0) as app, damaged(written) as rows:
        assert verify(app) == []
        for seed in range(count(test=16, deep=40)):
            told = mutation(rows, random.Random(f"{mutation.__name__}{seed}"))
            if not verify(app):
                unnoticed.append(f"seed {seed}: {told}")
            rows.undo()
        assert unnoticed == []
        assert verify(app) == []


def test_a_problem_says_which_row_it_is(written: Store) -> None:
    with written.open(cache_bytes=0) as app, damaged(written) as rows:
        (tag,) = rows.where("ref", kind="tag", name="good")
        rows.delete("ref", tag)
        (problem,) = verify(app)
        assert problem.startswith("the tag good is not on manifest ")
        rows.undo()
        rows.set("ref", rows.where("ref", kind="pin", branch="main")[0], "text", "other")
        assert verify(app) == ["the pin of version 4 is not as the journal says"]
        rows.undo()
        rows.delete("expired", rows.where("expired", branch="main")[0])
        (problem,) = verify(app)
        assert problem.endswith("expired, and its row does not say so")


def test_a_tag_that_moved_to_another_branch_is_no_problem(store: Store) -> None:
    with store.open() as app:
        commit = app.kernel.save_state_delta({"n": 1}, **PLACE)
        app.kernel.tag(commit.manifest_id, "good", owner_id="ann")
        other = app.kernel.fork(commit.manifest_id, owner_id="ann", branch="idea")
        app.kernel.tag(other.manifest_id, "good", owner_id="ann", force=True)
        assert verify(app) == []


def test_a_record_that_makes_no_sense_is_a_problem_and_no_crash(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        manifest = bytes.fromhex(app.kernel.save_state_delta({"n": 1}, **PLACE).manifest_id)
        nonsense: list[tuple[str, bytes | None, dict[str, Any]]] = [
            ("tagged", manifest, {}),
            ("tagged", None, {"tag": "t", "moved_from": None, "message": None}),
            ("expired", None, {"manifests": ["zz"]}),
            ("expired", None, {"manifests": 7}),
        ]
        for kind, about, facts in nonsense:
            with damaged(store):
                append(store, kind, about, facts, workflow="report")
                assert not app.kernel.verify(**PLACE).ok, (kind, facts)
            assert app.kernel.verify(**PLACE).ok


def test_verify_is_not_troubled_by_what_happens_meanwhile(store: Store) -> None:
    with store.open() as app:
        write_history(app)
        stop = threading.Event()
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            pick, kernel = random.Random(seed), app.kernel
            while not stop.is_set():
                branch = pick.choice(["main", "idea"])
                newest = kernel.history(branch=branch, limit=5, **PLACE)
                chosen = pick.choice(newest).manifest_id
                name = pick.choice(["one", "two", "three"])
                try:
                    match pick.randrange(7):
                        case 0:
                            kernel.tag(chosen, name, owner_id="ann", force=True)
                        case 1:
                            kernel.untag(name, **PLACE)
                        case 2:
                            kernel.pin(chosen, owner_id="ann", reason=name)
                        case 3:
                            kernel.unpin(chosen, owner_id="ann")
                        case 4:
                            kernel.decide(chosen, pick.choice(["approved", "rejected"]), actor="eve")
                        case 5:
                            kernel.expire(branch=branch, **PLACE)
                        case _:
                            kernel.save_state_delta({"n": pick.random()}, branch=branch, **PLACE)
                except (Conflict, Expired, NotFound):
                    pass
                except BaseException as exc:
                    failures.append(exc)
                    return

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        try:
            branches = ["main", "idea"] * count(test=10, deep=20)
            reports = [app.kernel.verify(branch=branch, **PLACE) for branch in branches]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []
        assert [report.problems for report in reports if not report.ok] == []
        assert verify(app) == []
