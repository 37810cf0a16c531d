"""Some fields of a large value are read as a whole or in part, by size, share and measured latency."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from analemma import App
from analemma.errors import Denied, Expired, Invalid, NotFound
from tests.api.bag.payload_stores import LARGE, NAMES, send
from tests.api.bag.read_counts import IN_OBJECTS, counted
from tests.stores import Store, local

KIB = 1024
WORKFLOW: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


Route = Literal["whole", "partial"]


def route(app: App, manifest: str, names: list[str], **options: Any) -> Route:
    """Which way a read took."""
    before = app.payloads.router.counts["whole"]
    app.payloads.load_fields_selective(manifest, names, **options)
    return "whole" if app.payloads.router.counts["whole"] > before else "partial"


def of_size(app: App, size_kib: int, total: int) -> str:
    """A version of about this size, with so many fields of the same size."""
    state = {f"{number:03}": random.Random(number).randbytes(size_kib * KIB // total) for number in range(total)}
    workflow = f"{size_kib} KiB in {total}"
    return app.kernel.save_state_delta(state, workflow_id=workflow, owner_id="ann").manifest_id


@pytest.mark.parametrize(
    ("size_kib", "wanted", "total", "expected"),
    [
        (8, 1, 20, "whole"),
        (12, 1, 20, "partial"),
        (12, 3, 20, "partial"),
        (12, 4, 20, "whole"),
        (44, 10, 20, "whole"),
        (55, 4, 20, "partial"),
        (55, 16, 20, "partial"),
        (500, 17, 20, "whole"),
        (500, 1, 1, "whole"),
        (500, 0, 20, "partial"),
    ],
)
def test_size_and_share_decide(size_kib: int, wanted: int, total: int, expected: Route, app: App) -> None:
    names = [f"{number:03}" for number in range(wanted)]
    assert route(app, of_size(app, size_kib, total), names) == expected


def test_without_routing_only_the_size_decides(app: App) -> None:
    every = [f"{number:03}" for number in range(20)]
    assert route(app, of_size(app, 8, 20), every[:1], auto_routing=False) == "whole"
    assert route(app, of_size(app, 12, 20), every, auto_routing=False) == "partial"


def fields(count: int) -> dict[str, Any]:
    return {f"field {number:02}": [f"{number} {item} word" * 5 for item in range(400)] for number in range(count)}


@pytest.mark.parametrize("kind", ["version", "pointer"])
def test_few_fields_of_much_are_read_in_part(kind: str, store: Store) -> None:
    with store.open(**IN_OBJECTS) as app:
        source: Any = app.kernel.save_state_delta(fields(20), **WORKFLOW).manifest_id
        if kind == "pointer":
            source = send(app, {"plan": fields(20)})["plan"]
    sizes: list[int] = []
    for names in (["field 03", "none"], list(fields(20))):
        with counted(store) as reads:
            expected = {name: value for name, value in fields(20).items() if name in names}
            assert reads.app.payloads.load_fields_selective(source, names) == expected
            sizes.append(reads.since()[1])
    assert sizes[0] < sizes[1] / 5


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
    # All that it has is wanted, or nearly all of much more.
    assert app.payloads.load_fields_selective(manifest, names) == expected
    assert app.payloads.load_fields_selective(manifest, names, auto_routing=False) == expected
    assert app.payloads.router.counts == {"whole": 1, "partial": 1}


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


@pytest.mark.parametrize("auto_routing", [False, True], ids=["in part", "whole"])
def test_a_version_that_has_expired_is_not_read(store: Store, auto_routing: bool) -> None:
    with store.open(cache_bytes=0) as app:
        kernel = app.kernel
        old = kernel.save_state_delta({"plan": LARGE}, workflow_id="trip", owner_id="ann")
        kernel.save_state_delta({"n": 2}, workflow_id="trip", owner_id="ann", deleted=["plan"])
        kernel.set_retention(owner_id="ann", keep_last=1)
        load = partial(app.payloads.load_fields_selective, old.manifest_id, ["plan"], auto_routing=auto_routing)
        assert load() == {"plan": LARGE}
        kernel.expire(workflow_id="trip", owner_id="ann")
        with pytest.raises(Expired):
            load()


def test_a_pointer_whose_value_is_gone_was_released(store: Store) -> None:
    with store.open(cache_bytes=0) as app, store.open() as other:
        pointer = send(app, {"notes": {"n": LARGE[1:]}})["notes"]
        other.payloads.release(**NAMES)
        for _ in range(2):
            other.gc.run(grace_s=0, force=True)
        with pytest.raises(Denied, match="ended"):
            app.payloads.load_fields_selective(pointer, ["n"])
