"""The journal of a branch as it is stored: read past the package, and continued by somebody with full access."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import libipld

from tests.raw_rows import change_all, select
from tests.stores import Store


def journal(store: Store, workflow: str = "trip", branch: str = "main") -> list[dict[str, Any]]:
    """What the records of a branch say, oldest first."""
    rows = select(store, "SELECT body FROM journal WHERE workflow = ? AND branch = ? ORDER BY seq", (workflow, branch))
    records = [libipld.decode_dag_cbor(bytes(body)) for (body,) in rows]
    assert all(record[:2] == ["journal", 1] for record in records)
    return [record[2] for record in records]


def append(store: Store, kind: str, manifest: bytes | None, facts: dict[str, Any], workflow: str = "trip") -> None:
    """One record more on the main branch, of which everything is right but perhaps what it says."""
    where = "workflow = ? AND branch = 'main'"
    last = journal(store, workflow)[-1]
    [(tip,)] = select(store, f"SELECT journal_tip FROM head WHERE {where}", (workflow,))  # noqa: S608
    record = {
        **last,
        "seq": last["seq"] + 1,
        "before": b"\0" + bytes(tip),
        "kind": kind,
        "manifest": None if manifest is None else b"\0" + manifest,
        "version": None,
        "facts": facts,
    }
    body = bytes(libipld.encode_dag_cbor(["journal", 1, record]))
    name = sha256(body).digest()
    columns = "tenant, owner, workflow, branch"
    row = f"INSERT INTO journal ({columns}, seq, kind, manifest, body, hash, created_at)"
    insert = f"{row} SELECT {columns}, ?, ?, ?, ?, ?, ? FROM head WHERE {where}"  # noqa: S608
    move = f"UPDATE head SET journal_seq = ?, journal_tip = ? WHERE {where}"  # noqa: S608
    values = (record["seq"], kind, manifest, body, name, record["at"], workflow)
    change_all(store, [(insert, values), (move, (record["seq"], name, workflow))])
