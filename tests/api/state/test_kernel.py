"""The kernel's verbs as a user calls them: pointers, refusals, idempotency, and what is not there."""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import threading
from typing import Any

import jsonpatch
import pytest

from analemma import DeltaUpdate, Kernel, Operation
from analemma.errors import AnalemmaError, Conflict, HeadMoved, Invalid, NotFound
from analemma.testing.strategies import SeededValues, shown
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def test_the_first_screen_works(store: Store) -> None:
    with store.open() as app:
        k = app.kernel
        c1 = k.save_state_delta({"plan": [{"step": n} for n in range(5)], "n": 1}, **NAME)
        c2 = k.save_state_delta(
            {"n": 2, "/plan/3/done": True},
            **NAME,
            deleted=["/scratch"],
            previous_manifest_id=c1.manifest_id,
            segment_id=5,
            execution_id="e1",
            idempotency_key="x-1",
        )
        assert k.load_latest_state(**NAME)["n"] == 2
        assert k.load_state(c1.manifest_id)["n"] == 1
        assert k.load_fields(c2.manifest_id, ["n", "/plan/3"]) == {"n": 2, "/plan/3": {"step": 3, "done": True}}
        assert [version.version for version in k.history(**NAME)] == [2, 1]
        assert {change["path"] for change in k.diff(c1.manifest_id, c2.manifest_id)} == {"/n", "/plan/3/done"}
        assert (k.blame(**NAME, path="/n").version, k.blame(**NAME, path="/plan/2").version) == (2, 1)
        assert k.rollback_to_version(**NAME, version=1, preview=True).changes
        back = k.rollback_to_version(**NAME, version=1)
        assert (back.version, back.root_hash, back.parent_id) == (3, c1.root_hash, c2.manifest_id)
        assert k.load_latest_state(**NAME, execution_id="e1")["n"] == 2
        assert k.fork(c1.manifest_id, workflow_id="copy", owner_id="ann").version == 1
        assert k.verify_manifest_integrity(c2.manifest_id) and k.verify(**NAME).ok


def test_a_commit_reads_as_a_mapping_too(store: Store) -> None:
    with store.open() as app:
        commit = app.kernel.save_state_delta({"n": 1}, **NAME)
        assert dict(commit)["manifest_hash"] == commit["manifest_id"] == commit.manifest_hash
        assert commit["blocks_stored"] == len(commit.block_ids) == 2
        with pytest.raises(KeyError):
            commit["nonsense"]


DELTAS: list[tuple[dict[str, Any], list[str], dict[str, Any]]] = [
    ({"a": None, "b": [], "c": {}}, [], {"a": None, "b": [], "c": {}, "keep": {"list": [1, 2], "": 0, "x/y": 1, "~":
    2}}), ({"/keep/x~1y": 5, "/keep/~0": 6}, [], {"keep": {"list": [1, 2], "": 0, "x/y": 5, "~": 6}}), ({"/keep/": 7},
    [], {"keep": {"list": [1, 2], "": 7, "x/y": 1, "~": 2}}), ({"/keep/list/-": 3}, [], {"keep": {"list": [1, 2, 3], "":
    0, "x/y": 1, "~": 2}}), ({"/keep/list/0": None}, [], {"keep": {"list": [None, 2], "": 0, "x/y": 1, "~": 2}}), ({},
    ["/keep/list/0"], {"keep": {"list": [2], "": 0, "x/y": 1, "~": 2}}), ({}, ["keep", "missing", "/missing/deep",
    "/keep/nothing"], {}), ({"/~1x": 1}, [], {"/x": 1, "keep": {"list": [1, 2], "": 0, "x/y": 1, "~": 2}}), ({"": 1},
    [], {"": 1, "keep": {"list": [1, 2], "": 0, "x/y": 1, "~": 2}}), ({"keep": {"new": 1}}, ["/keep/new"], {"keep":
    {}}), ({"new": {}, "/new/a": 1}, [], {"new": {"a": 1}, "keep": {"list": [1, 2], "": 0, "x/y": 1, "~": 2}}),
]  # fmt: skip


def test_a_delta_does_what_it_says(store: Store) -> None:
    wrong = []
    with store.open() as app:
        for number, (delta, deleted, expected) in enumerate(DELTAS):
            name: dict[str, Any] = {"workflow_id": f"report {number}", "owner_id": "ann"}
            app.kernel.save_state_delta({"keep": {"list": [1, 2], "": 0, "x/y": 1, "~": 2}}, **name)
            app.kernel.save_state_delta(delta, deleted=deleted, **name)
            found = app.kernel.load_latest_state(**name)
            if found != expected:
                wrong.append((delta, deleted, found))
    assert wrong == []


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ({"/missing/x": 1}, {}, "/missing"),
    ({"/n/x": 1}, {}, "/n"),
    ({"/list/9": 1}, {}, "/list/9"),
    ({"/list/x": 1}, {}, "/list/x"),
    ({"/list/01": 1}, {}, "/list/01"),
    ({"/~2": 1}, {}, "/~2"),
    ({"n": 1}, {"deleted": ["n"]}, "/n"),
    ({"/list/0": 1}, {"deleted": ["list"]}, "/list/0"),
    ({"bad": float("nan")}, {}, "/bad"),
    ({"bad": {"deep": [object()]}}, {}, "/bad/deep/0"),
]


def test_a_delta_that_cannot_be_applied_changes_nothing_and_says_where(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"n": 1, "list": [1, 2]}, **NAME)
        before = app.stats()
        told: list[str] = []
        for delta, options, _ in BAD:
            with pytest.raises(Invalid) as caught:
                app.kernel.save_state_delta(delta, **NAME, **options)
            told.append(caught.value.pointer)
        assert told == [pointer for _, _, pointer in BAD]
        assert app.stats() == before


def test_a_delta_that_would_make_no_dict_of_the_state_is_refused(store: Store) -> None:
    with store.open() as app:
        for number, state in enumerate([[1], "text", None, 7, dt.date(2024, 1, 1)]):
            name: dict[str, Any] = {"workflow_id": f"report {number}", "owner_id": "ann"}
            whole = DeltaUpdate((Operation("put", (), state),))
            with pytest.raises(Invalid):
                app.kernel.save_state_delta(whole, **name)
            app.kernel.save_state_delta({"n": 1}, **name)
            with pytest.raises(Invalid):
                app.kernel.save_state_delta(whole, **name)
            app.kernel.save_state_delta(DeltaUpdate((Operation("put", (), {"": 1}),)), **name)
            assert app.kernel.load_latest_state(**name) == {"": 1}


HOSTILE: list[dict[str, Any]] = [
    {"segment_id": 1.5},
    {"segment_id": 2**64},
    {"segment_id": "three"},
    {"execution_id": 7},
    {"execution_id": "x" * 600},
    {"message": b"bytes"},
    {"message": "\ud800"},
    {"message": "nul\0"},
    {"branch": ""},
    {"owner_id": 5},
    {"workflow_id": "x" * 600},
    {"idempotency_key": ""},
    {"previous_manifest_id": "xyz"},
    {"previous_manifest_id": 12},
    {"deleted": "n"},
    {"metadata": {"bad": object()}},
    {"metadata": [("a", 1)]},
]


def test_hostile_arguments_are_refused_before_anything_is_stored(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"n": 0}, **NAME)
        before = app.stats()
        taken = []
        for options in HOSTILE:
            try:
                app.kernel.save_state_delta({"big": b"\1" * 600_000, "n": 1}, **{**NAME, **options})
            except Invalid:
                continue
            taken.append(options)
        assert taken == []
        assert app.stats() == before


def test_not_found_is_not_empty(store: Store) -> None:
    with store.open() as app:
        k = app.kernel
        commit = k.save_state_delta({}, **NAME)
        assert k.load_latest_state(**NAME) == {}
        for call in (
            lambda: k.load_latest_state(workflow_id="other", owner_id="ann"),
            lambda: k.load_latest_state(workflow_id="report", owner_id="bob"),
            lambda: k.load_latest_state(**NAME, branch="other"),
            lambda: k.load_latest_state(**NAME, execution_id="other"),
            lambda: k.load_state(commit.manifest_id, owner_id="bob"),
            lambda: k.history(workflow_id="other", owner_id="ann"),
            lambda: k.rollback_to_version(**NAME, version=2),
            lambda: k.fork(commit.manifest_id, owner_id="bob", workflow_id="mine"),
            lambda: k.blame(**NAME, path="/missing"),
            lambda: k.verify(workflow_id="other", owner_id="ann"),
            lambda: app.tenant("other").kernel.load_state(commit.manifest_id),
        ):
            with pytest.raises(NotFound):
                call()


def test_two_owners_and_two_branches_making_the_same_save_make_two_manifests(store: Store) -> None:
    with store.open() as app:
        k = app.kernel
        commits = [
            k.save_state_delta({"n": 1}, workflow_id="report", owner_id=owner, branch=branch)
            for owner in ("ann", "bob")
            for branch in ("main", "side")
        ]
        assert len({commit.manifest_id for commit in commits}) == 4
        assert len({commit.root_hash for commit in commits}) == 1


def test_the_same_key_gives_the_same_commit_from_many_threads_at_once(store: Store) -> None:
    with store.open() as app:
        first = app.kernel.save_state_delta({"n": 0}, **NAME)
        answers: list[Any] = []

        def save() -> None:
            answers.append(
                app.kernel.save_state_delta(
                    {"n": 1}, **NAME, previous_manifest_id=first.manifest_id, idempotency_key="once"
                )
            )

        threads = [threading.Thread(target=save) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 8 and len({answer.manifest_id for answer in answers}) == 1
        assert answers[0].version == 2
        with pytest.raises(Conflict):
            app.kernel.save_state_delta({"n": 2}, **NAME, idempotency_key="once")
        with pytest.raises(HeadMoved):
            app.kernel.save_state_delta({"n": 2}, **NAME, previous_manifest_id=first.manifest_id)


def test_a_key_still_answers_after_later_versions(store: Store) -> None:
    with store.open() as app:
        once = app.kernel.save_state_delta({"n": 1}, **NAME, idempotency_key="once")
        for number in range(3):
            app.kernel.save_state_delta({"n": number}, **NAME)
    with store.open() as app:
        assert app.kernel.save_state_delta({"n": 1}, **NAME, idempotency_key="once") == once


def test_diff_applied_by_jsonpatch_turns_one_version_into_the_other(store: Store) -> None:
    with store.open() as app:
        for seed in range(25):
            name: dict[str, Any] = {"workflow_id": f"w{seed}", "owner_id": "ann"}
            seeded = SeededValues(seed)
            states = [_plain(seeded.container(1)) for _ in range(2)]
            old, new = [state if isinstance(state, dict) else {"v": state} for state in states]
            first = app.kernel.save_state_delta(old, **name) if all(k[:1] != "/" for k in old) else None
            if first is None or any(k[:1] == "/" for k in new):
                continue
            second = app.kernel.save_state_delta(new, **name, deleted=[k for k in old if k not in new])
            changes = app.kernel.diff(first.manifest_id, second.manifest_id)
            assert shown(jsonpatch.apply_patch(old, changes)) == shown(new)


def _plain(value: Any) -> Any:
    """Only what JSON Patch tools know."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def test_types_and_metadata_survive(store: Store) -> None:
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    with store.open() as app:
        commit = app.kernel.save_state_delta(
            {"at": moment, "t": (1, 2)}, **NAME, metadata={"big": "x" * 5000, "at": moment}
        )
        assert app.kernel.load_state(commit.manifest_id) == {"at": moment, "t": (1, 2)}
        assert app.kernel.verify(**NAME).ok


def test_history_is_filtered_by_execution_segment_and_time(store: Store) -> None:
    with store.open() as app:
        k = app.kernel
        for number in range(6):
            k.save_state_delta({"n": number}, **NAME, execution_id=f"e{number % 2}", segment_id=number % 3)
        versions = k.history(**NAME)
        middle = versions[2].created_at

        def listed(**filters: Any) -> list[int]:
            return [version.version for version in k.history(**NAME, **filters)]

        assert listed(execution_id="e1") == [6, 4, 2]
        assert listed(segment_id=0) == [4, 1]
        assert listed(segment_id=0, execution_id="e1") == [4]
        assert listed(since=middle) == [6, 5, 4]
        assert listed(until=middle) == [3, 2, 1]
        assert listed(since=versions[4].created_at, until=middle, limit=1, after=3) == [2]
        assert listed(execution_id="none") == []
        for wrong in ({"since": dt.datetime(2024, 1, 1)}, {"limit": 0}, {"after": -1}, {"segment_id": "x"}):
            with pytest.raises(Invalid):
                listed(**wrong)


def test_pages_of_a_history_neither_skip_nor_repeat(store: Store) -> None:
    with store.open() as app:
        for number in range(90):
            app.kernel.save_state_delta({"n": number}, **NAME)
        assert [version.version for version in app.kernel.history(limit=1000, **NAME)] == list(range(90, 0, -1))
        pages: list[int] = []
        while page := app.kernel.history(limit=40, after=pages[-1] if pages else None, **NAME):
            pages += [version.version for version in page]
        assert pages == list(range(90, 0, -1))


def test_verifying_while_others_save_and_expire_ends_and_finds_nothing(store: Store) -> None:
    with store.open() as app, store.open() as other:
        app.kernel.save_state_delta({"n": 0}, **NAME)
        app.kernel.set_retention(owner_id="ann", workflow_id="report", keep_last=5)

        def work() -> None:
            for number in range(1, 121):
                other.kernel.save_state_delta({"n": number}, **NAME)
                if number % 20 == 0:
                    other.kernel.expire(**NAME)

        writer = threading.Thread(target=work)
        writer.start()
        problems: list[str] = []
        while writer.is_alive():
            problems += app.kernel.verify(**NAME).problems
        writer.join()
        assert problems == []
        assert app.kernel.history(limit=1, **NAME)[0].version == 121


def test_a_rollback_happens_only_on_the_version_it_was_planned_for(store: Store) -> None:
    with store.open() as app:
        k = app.kernel
        first = k.save_state_delta({"n": 1}, **NAME)
        second = k.save_state_delta({"n": 2}, **NAME)
        planned = k.rollback_to_version(**NAME, version=1, preview=True)
        assert planned.previous_manifest_id == second.manifest_id
        k.save_state_delta({"n": 3}, **NAME)
        expected = planned.previous_manifest_id
        for preview in (False, True):
            with pytest.raises(HeadMoved) as moved:
                k.rollback_to_version(**NAME, version=1, previous_manifest_id=expected, preview=preview)
            assert moved.value.found.version == 3
        with pytest.raises(Invalid):
            k.rollback_to_version(**NAME, version=1, previous_manifest_id="nonsense")
        assert len(k.history(**NAME)) == 3
        newest = k.history(**NAME)[0].manifest_id
        # A record on the branch that moves no version is no reason to refuse.
        k.decide(first.manifest_id, "approved", actor="eve")
        assert k.rollback_to_last_safe(**NAME, previous_manifest_id=newest).version == 4
        assert k.load_latest_state(**NAME) == {"n": 1}


def text_arguments() -> list[tuple[str, str]]:
    """Every verb with each of its parameters that takes text."""
    found = []
    for name, verb in inspect.getmembers(Kernel, inspect.isfunction):
        if not name.startswith("_"):
            parameters = inspect.signature(verb).parameters.values()
            kinds = [(each.name, str(each.annotation)) for each in parameters]
            found += [(name, parameter) for parameter, kind in kinds if "str" in kind and "Mapping" not in kind]
    return found


def test_text_that_is_no_text_is_refused_as_such(store: Store) -> None:
    with store.open() as app:
        k = app.kernel
        first = k.save_state_delta({"n": 1}, **NAME).manifest_id
        k.tag(first, "t", owner_id="ann")
        good: dict[str, Any] = {**NAME, "path": "n", "name": "t", "version": 1, "source": "b", "actor": "eve"}
        good |= {"manifest_id": first, "old_manifest_id": first, "new_manifest_id": first, "decision": "approved"}
        good |= {"delta": {"n": 2}, "fields": ["n"], "workflow_config": {}, "segment_manifest": [], "ticket": first}
        good |= {"segment_config": {}, "segment_index": 0, "insert_position": 0}
        crashed = []
        for (name, parameter), bad in itertools.product(text_arguments(), ["\ud800", "/a/\udc80", "a\0b", 7]):
            verb = getattr(k, name)
            needed = [each.name for each in inspect.signature(verb).parameters.values() if each.default is each.empty]
            given = {each: good[each] for each in needed}
            given[parameter] = [bad] if parameter in ("fields", "deleted") else bad
            try:
                verb(**given)
            except AnalemmaError as exc:
                str(exc).encode(errors="backslashreplace")
            except Exception as exc:
                crashed.append(f"{name}({parameter}={bad!r}): {exc!r}")
        assert crashed == []
        for ask in (
            lambda: k.load_fields(first, ["/a/\ud800"]),
            lambda: k.blame(**NAME, path="/\ud800"),
            lambda: k.save_state_delta({"/\ud800": 1}, **NAME),
            lambda: k.load_latest_state(**NAME, execution_id="\ud800"),
        ):
            with pytest.raises(Invalid):
                ask()
