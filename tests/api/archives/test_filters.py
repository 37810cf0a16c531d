"""The collector that asks a Bloom filter which archives are needed: what the filter is wrong about costs nobody an
archive, and keeps no garbage for ever."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.api.archives.collections import FOLDER, cold, marks, superseded, units
from tests.raw_rows import change, change_all
from tests.stores import Store

NEEDED, NOBODYS = 500, 300
"""With two archives for each workspace that is being archived, these fill the smallest filter."""


def test_what_a_filter_has_forgotten_is_looked_at_again_before_it_goes(store: Store, tmp_path: Path) -> None:
    """Guard: a filter only nominates; whose an archive is, is read when it is claimed, and be its mark ever so old."""
    with store.open(archive_gc_filter="bloom") as app:
        names = ("a", "b", "c")
        kept = {f"{name}/{cold(app, tmp_path, name)}" for name in names}
        superseded(app, tmp_path, "d")
        for name in names:
            app.archives.delete(name)
        assert app.archives.gc_run(0).marked == 4
        have = "UPDATE workspace SET deleted_at = NULL, status = 'COLD', updated_at = 1 WHERE id IN ('a', 'b', 'c')"

        def forget(stage: str, count: int) -> None:
            # The filter was made without them, and what was changed so long ago is not added to it.
            if stage == "looking":
                assert change(store, have) == 3

        report = app.archives.gc_run(0, progress=forget)
        assert (report.refused, report.claimed, report.deleted, report.ok) == (3, 1, 1, True)
        assert units(app) == kept | {f"d/{app.archives.get('d').op_id}"}
        # Whoever is needed has no mark any more after the next pass, so its time begins anew.
        assert app.archives.gc_run(0).cleared == 3
        assert marks(store) == {}
        for name in (*names, "d"):
            assert app.archives.restore(name).status == "WARM"


def test_what_is_taken_for_needed_is_found_out_in_a_later_pass(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the filter of each pass has a salt of its own, and so takes others for its own."""
    monkeypatch.setattr(os, "urandom", random.Random(5).randbytes)
    with store.open(archive_gc_filter="bloom") as app:
        kept = {f"keep/{cold(app, tmp_path, 'keep')}"}
        row = (
            "INSERT INTO workspace (tenant, id, owner, volume, status, operation, op_id, archive_op,"
            " fence, lease_until, created_at, updated_at)"
            " SELECT id, ?, 'ann', ?, 'WARM', 'ARCHIVING', 'next', 'last', 1, 0, 0, ? FROM tenant"
        )
        far = 2**62  # Not long ago, so that nobody asks for their objects.
        change_all(store, [(row, [f"full-{number}", f"/{number}", far]) for number in range(NEEDED)])
        unit = (
            "INSERT INTO archive_unit (tenant, workspace, op_id, state, created_at)"
            " SELECT id, 'gone', ?, 'writing', 1 FROM tenant"
        )
        change_all(store, [(unit, [f"op{number}"]) for number in range(NOBODYS)])
        assert app.objects is not None
        for number in range(NOBODYS):
            app.objects.put(f"{FOLDER}/gone/op{number}/home.meta", b"{}")
        wrong = [app.archives.gc_run(0).counts.needed - 1 for _ in range(6)]
        assert sum(wrong[:2]) > 0, "these filters take nothing for something else, so the test shows nothing"
        assert wrong[-1] == 0
        assert units(app) == kept
