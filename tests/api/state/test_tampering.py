"""Every inconsistent edit of a stored branch is found by verify; a consistent one only against a receipt."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from analemma import App, Commit
from tests.api.state.raw_access import Rows, damaged
from tests.depth import count
from tests.stores import Store

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"]
OWNER, WORKFLOW = "ann", "report"

Mutation = Callable[[Rows, random.Random], str]


def flip_a_byte(rows: Rows, pick: random.Random) -> str:
    table = pick.choice(["block", "journal"])
    number, body = rows.pick_body(table, pick)
    place = pick.randrange(len(body))
    damaged = body[:place] + bytes([body[place] ^ (1 << pick.randrange(8))]) + body[place + 1 :]
    rows.set(table, number, "body", damaged)
    return f"bit in byte {place} of a {table} body"


def swap_two_bodies(rows: Rows, pick: random.Random) -> str:
    one, other = pick.sample(rows.numbers("block"), 2)
    columns = ["body", "size", "codec"] if pick.random() < 0.5 else ["body"]
    first = {column: rows.get("block", one, column) for column in columns}
    second = {column: rows.get("block", other, column) for column in columns}
    for column in columns:
        rows.set("block", one, column, second[column])
        rows.set("block", other, column, first[column])
    return f"bodies of two blocks, with {columns}"


def truncate_a_body(rows: Rows, pick: random.Random) -> str:
    number, body = rows.pick_body("block", pick)
    rows.set("block", number, "body", body[: pick.randrange(len(body))])
    return "a body cut short"


def delete_a_row(rows: Rows, pick: random.Random) -> str:
    table = pick.choice(["block", "manifest", "journal"])
    rows.delete(table, pick.choice(rows.numbers(table)))
    return f"a row of {table}"


def change_a_manifest_column(rows: Rows, pick: random.Random) -> str:
    column, value = pick.choice(
        [
            ("version", pick.randrange(100, 1000)),
            ("created_at", pick.randrange(10**15)),
            ("message", "forged"),
            ("execution", "forged"),
            ("segment", pick.randrange(100, 200)),
            ("owner", "mallory"),
            ("branch", "forged"),
            ("parent", pick.randbytes(32)),
            ("root", pick.randbytes(32)),
        ]
    )
    rows.set("manifest", pick.choice(rows.numbers("manifest")), column, value)
    return f"manifest.{column}"


def change_a_journal_column(rows: Rows, pick: random.Random) -> str:
    column, value = pick.choice(
        [("kind", "approved"), ("manifest", pick.randbytes(32)), ("created_at", 7), ("hash", pick.randbytes(32))]
    )
    rows.set("journal", pick.choice(rows.numbers("journal")), column, value)
    return f"journal.{column}"


def reorder_journal_rows(rows: Rows, pick: random.Random) -> str:
    one, other = pick.sample(rows.numbers("journal"), 2)
    first, second = rows.get("journal", one, "seq"), rows.get("journal", other, "seq")
    rows.set("journal", one, "seq", 10**6)
    rows.set("journal", other, "seq", first)
    rows.set("journal", one, "seq", second)
    return f"journal records {first} and {second}"


def move_a_head(rows: Rows, pick: random.Random) -> str:
    head = rows.numbers("head")[0]
    target = pick.choice([n for n in rows.numbers("manifest") if rows.get("manifest", n, "version") < 6])
    rows.set("head", head, "manifest", rows.get("manifest", target, "id"))
    if pick.random() < 0.5:
        rows.set("head", head, "version", rows.get("manifest", target, "version"))
    return "the head, to an older version"


MUTATIONS: list[Mutation] = [
    flip_a_byte,
    swap_two_bodies,
    truncate_a_body,
    delete_a_row,
    change_a_manifest_column,
    change_a_journal_column,
    reorder_journal_rows,
    move_a_head,
]


def verify(app: App, **options: Any) -> Any:
    return app.kernel.verify(workflow_id=WORKFLOW, owner_id=OWNER, **options)


def write_history(app: App) -> list[Commit]:
    pick = random.Random(3)
    commits = []
    for number in range(6):
        messages = [{"text": " ".join(pick.choices(WORDS, k=40)), "n": number} for _ in range(12)]
        commits.append(
            app.kernel.save_state_delta(
                {"messages": messages, "n": number, "raw": pick.randbytes(50)},
                workflow_id=WORKFLOW,
                owner_id=OWNER,
                execution_id="e1",
                segment_id=number,
                message=f"step {number}",
                metadata={"k": number},
            )
        )
    return commits


@pytest.fixture(scope="module")
def written(module_store: Store) -> tuple[Store, list[Commit]]:
    with module_store.open() as app:
        return module_store, write_history(app)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_inconsistent_edit_is_found(written: tuple[Store, list[Commit]], mutation: Mutation) -> None:
    store, _ = written
    unnoticed = []
    with store.open(cache_bytes=0) as app, damaged(store) as rows:
        assert verify(app).ok
        for seed in range(count(test=20, deep=70)):
            told = mutation(rows, random.Random(f"{mutation.__name__}{seed}"))
            if verify(app).ok:
                unnoticed.append(f"seed {seed}: {told}")
            rows.undo()
        assert unnoticed == []
        assert verify(app).ok


def test_a_consistent_truncation_is_found_against_a_receipt(written: tuple[Store, list[Commit]]) -> None:
    store, commits = written
    newest, before = commits[-1].receipt, commits[-2].receipt
    with store.open(cache_bytes=0) as app, damaged(store) as rows:
        assert verify(app, expect=newest).ok
        rows.forget_newest_version()
        # The store is consistent with itself again: only something kept elsewhere tells.
        assert verify(app).ok
        assert verify(app, expect=before).ok
        assert not verify(app, expect=newest).ok
        rows.undo()
        assert verify(app, expect=newest).ok
