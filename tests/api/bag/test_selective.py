"""Some fields of a large value are read as a whole or in part, by size, share and measured latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.bag.selective import ADJUST_EVERY_S, ReadRouter, Route
from analemma.errors import Denied, Expired, Invalid, NotFound
from tests.api.bag.payload_stores import LARGE, NAMES, send
from tests.internals import delete_doomed_blocks, doom_blocks
from tests.stores import Store, local

KIB = 1024
WORKFLOW: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


class SteppedClock:
    def __init__(self) -> None:
        self.at = 100.0

    def now_us(self) -> int:
        return int(self.at * 1_000_000)

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@pytest.mark.parametrize(
    ("size_kib", "wanted", "total", "route"),
    [
        (9, 1, 100, "whole"),
        (10, 1, 100, "partial"),
        (10, 19, 100, "partial"),
        (10, 20, 100, "whole"),
        (49, 50, 100, "whole"),
        (50, 20, 100, "partial"),
        (50, 80, 100, "partial"),
        (5_000, 81, 100, "whole"),
        (5_000, 1, 1, "whole"),
        (5_000, 0, 0, "partial"),
    ],
)
def test_size_and_share_decide(size_kib: int, wanted: int, total: int, route: Route) -> None:
    assert ReadRouter(SteppedClock()).choose(size_kib * KIB, wanted, total) == route


def test_without_routing_only_the_size_decides() -> None:
    router = ReadRouter(SteppedClock())
    assert router.choose(9 * KIB, 1, 100, auto_routing=False) == "whole"
    assert router.choose(10 * KIB, 99, 100, auto_routing=False) == "partial"


def measured(router: ReadRouter, clock: SteppedClock, route: Route, seconds: float) -> None:
    started = clock.monotonic()
    clock.at += seconds
    router.measured(route, started)


def test_slow_partial_reads_raise_what_counts_as_small_after_an_hour() -> None:
    clock = SteppedClock()
    router = ReadRouter(clock)
    measured(router, clock, "whole", 0.1)
    measured(router, clock, "partial", 0.3)
    assert router.choose(40 * KIB, 1, 100) == "partial"
    clock.at = 100 + ADJUST_EVERY_S - 1
    assert router.choose(40 * KIB, 1, 100) == "partial"
    clock.at = 100 + ADJUST_EVERY_S
    assert router.choose(40 * KIB, 1, 100) == "whole"
    assert router.choose(50 * KIB, 1, 100) == "partial"
    # The next hour they are quick again.
    measured(router, clock, "whole", 0.1)
    measured(router, clock, "partial", 0.2)
    clock.at += ADJUST_EVERY_S
    assert router.choose(40 * KIB, 1, 100) == "partial"


def test_an_hour_without_both_kinds_changes_nothing() -> None:
    clock = SteppedClock()
    router = ReadRouter(clock)
    measured(router, clock, "partial", 9.0)
    clock.at += ADJUST_EVERY_S
    assert router.choose(40 * KIB, 1, 100) == "partial"


def fields(count: int) -> dict[str, Any]:
    return {f"field {number:02}": [f"{number} {item} word" * 5 for item in range(400)] for number in range(count)}


def bytes_read(app: App, source: Any, names: list[str]) -> int:
    sizes: list[int] = []
    fetch = app.default.blocks.fetch

    def count(ids: Any) -> Any:
        found = fetch(ids)
        sizes.append(sum(map(len, found.values())))
        return found

    object.__setattr__(app.default.trees, "fetch", count)
    expected = {name: fields(20)[name] for name in names if name in fields(20)}
    assert app.payloads.load_fields_selective(source, names) == expected
    object.__setattr__(app.default.trees, "fetch", fetch)
    return sum(sizes)


@pytest.mark.parametrize("kind", ["version", "pointer"])
def test_few_fields_of_much_are_read_in_part(kind: str, store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        source: Any = app.kernel.save_state_delta(fields(20), **WORKFLOW).manifest_id
        if kind == "pointer":
            source = send(app, {"plan": fields(20)})["plan"]
        some = bytes_read(app, source, ["field 03", "none"])
        every = bytes_read(app, source, list(fields(20)))
        assert app.payloads.router.counts == {"whole": 1, "partial": 1}
        assert some < every / 10


def test_a_small_value_is_read_whole(app: App) -> None:
    manifest = app.kernel.save_state_delta({"a": 1, "b": 2}, **WORKFLOW).manifest_id
    assert app.payloads.load_fields_selective(manifest, ["a", "c"]) == {"a": 1}
    assert app.payloads.router.counts == {"whole": 1, "partial": 0}


def test_json_pointers_give_the_same_either_way(app: App) -> None:
    state = {"a": [{"b": 1}, {"b": None}], "c/d": {"": 3}, "e": {"f": "text"}, "large": LARGE}
    names = ["/a/1/b", "/a/7", "/a/x", "/a/-", "/c~1d/", "/e/f/0", "c/d", "/e/none", "large"]
    manifest = app.kernel.save_state_delta(state, **WORKFLOW).manifest_id
    expected = app.kernel.load_fields(manifest, names)
    assert set(expected) == {"/a/1/b", "/c~1d/", "c/d", "large"}
    for small_bytes in (0, 10**9):
        app.payloads.router.small_bytes = small_bytes
        assert app.payloads.load_fields_selective(manifest, names) == expected


def test_versions_and_pointers_of_others_are_refused(tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        manifest = app.kernel.save_state_delta(fields(2), **WORKFLOW).manifest_id
        pointer = send(app, {"plan": fields(2)})["plan"]
        load = app.payloads.load_fields_selective
        with pytest.raises(NotFound):
            load(manifest, ["field 01"], owner_id="bob")
        with pytest.raises(NotFound):
            load(manifest, ["field 01"], workflow_id="other")
        with pytest.raises(NotFound):
            app.tenant("shop").payloads.load_fields_selective(manifest, ["field 01"])
        with pytest.raises(Denied):
            app.tenant("shop").payloads.load_fields_selective(pointer, ["field 01"])
        with pytest.raises(Denied):
            load(pointer, ["field 01"], owner_id="bob")
        with pytest.raises(Denied):
            load(pointer, ["field 01"], workflow_id="other")
        with pytest.raises(Denied):
            load({**pointer, "hash": "00" * 32}, ["field 01"])
        with pytest.raises(Invalid):
            load({"__pointer__": 1}, ["field 01"])
        with pytest.raises(Invalid):
            load(manifest, "field 01")
        with pytest.raises(Invalid):
            load(5, ["field 01"])  # type: ignore[arg-type]
        app.payloads.release(**NAMES)
        with pytest.raises(Denied):
            load(pointer, ["field 01"])


def test_a_path_that_is_no_text_is_refused(app: App) -> None:
    commit = app.kernel.save_state_delta({"n": 1}, workflow_id="trip", owner_id="ann")
    for path in (5, None, "\ud800"):
        with pytest.raises(Invalid):
            app.payloads.load_fields_selective(commit.manifest_id, [path])  # type: ignore[list-item]


@pytest.mark.parametrize("route", ["whole", "partial"])
def test_a_version_that_goes_while_it_is_read_has_expired(
    store: Store, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.open() as app:
        kernel = app.kernel
        old = kernel.save_state_delta({"plan": LARGE, "n": 1}, workflow_id="trip", owner_id="ann")
        kernel.save_state_delta({"n": 2}, workflow_id="trip", owner_id="ann", deleted=["plan"])
        kernel.set_retention(owner_id="ann", keep_last=1)

        def choose(*_: Any, **__: Any) -> Route:
            kernel.expire(workflow_id="trip", owner_id="ann")
            doom_blocks(app, 1)
            delete_doomed_blocks(app)
            app.default.blocks._cache.clear()
            return route

        app.payloads.load_fields_selective(old.manifest_id, ["plan"])
        monkeypatch.setattr(app.payloads.router, "choose", choose)
        with pytest.raises(Expired):
            app.payloads.load_fields_selective(old.manifest_id, ["plan"])


def test_a_pointer_whose_value_goes_while_it_is_read_was_released(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.open() as app:
        pointer = send(app, {"notes": {"n": LARGE[1:]}})["notes"]

        def choose(*_: Any, **__: Any) -> Route:
            app.payloads.release(**NAMES)
            doom_blocks(app, 1)
            delete_doomed_blocks(app)
            app.default.blocks._cache.clear()
            return "partial"

        monkeypatch.setattr(app.payloads.router, "choose", choose)
        with pytest.raises(Denied, match="released"):
            app.payloads.load_fields_selective(pointer, ["n"])
