"""Marking follows every link: whatever a version leads to stays, however deep it lies."""

from __future__ import annotations

from typing import Any

from tests.api.gc.collections import PLACE, text
from tests.stores import Store


def test_everything_that_a_version_leads_to_stays(store: Store) -> None:
    state: dict[str, Any] = {
        "rows": [{"note": text(f"{row}", 2500) if row % 50 == 0 else "x" * 40} for row in range(400)],
        "map": {f"k{number}": number for number in range(3000)},
        "text": text("long", 400_000),
        "deep": {"deeper": {f"k{number}": [text(f"deep {number}", 2500), {"n": number}] for number in range(60)}},
    }
    with store.open(cache_bytes=0) as app:
        app.kernel.save_state_delta(state, **PLACE, metadata={"large": text("metadata")})
        segments: list[dict[str, Any]] = [{"s": text("one")}, {"s": 2}]
        pointer = app.kernel.create_manifest("flow", {"c": text("config")}, segments, owner_id="ann")
        before = app.stats().blocks
        for _ in range(3):
            report = app.gc.run(grace_s=0)
            assert report.ok and (report.doomed, report.deleted) == (0, 0)
        assert app.stats().blocks == before > 80
    with store.open(cache_bytes=0) as app:
        assert app.kernel.load_latest_state(**PLACE) == state
        assert app.kernel.verify_manifest_integrity(pointer.manifest_id)
        assert app.kernel.verify(**PLACE).ok


def test_what_expired_versions_shared_with_others_stays(store: Store) -> None:
    """However far below: most of a large list is the same in all versions."""
    with store.open(cache_bytes=0) as app:
        rows = [{"note": text(f"{row}", 2500) if row % 20 == 0 else "x" * 40} for row in range(300)]
        app.kernel.save_state_delta({"rows": rows}, **PLACE)
        for number in range(4):
            rows[number * 70] = {"note": text(f"changed {number}", 2500)}
            app.kernel.save_state_delta({f"/rows/{number * 70}": rows[number * 70]}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        first, second = (app.gc.run(grace_s=0) for _ in range(2))
        assert first.doomed == second.deleted > 4
        assert app.gc.run(grace_s=0).deleted == 0
        assert app.kernel.load_latest_state(**PLACE) == {"rows": rows}
        assert app.kernel.verify(**PLACE).ok
