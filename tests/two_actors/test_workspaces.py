"""A process dies at work on a workspace: whoever is on the same machine need not wait for its lease."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Conflict
from tests.actors import Actor
from tests.raw_rows import change
from tests.stores import Store

AT = "workspace.after_begin"


def archive(url: str, objects: str | None) -> None:
    with Store(url, objects).open() as app:
        app.archives.archive("ws1")


@pytest.fixture
def arguments(store: Store, tmp_path: Path) -> list[Any]:
    with store.open() as app:
        app.archives.create("ws1", owner_id="ann", volume=tmp_path / "home")
        (tmp_path / "home" / "notes").write_text("kept")
    return [store.url, store.objects]


def kill(arguments: list[Any]) -> None:
    with Actor(archive, *arguments, at=AT, then="kill") as actor:
        assert actor.wait() == -signal.SIGKILL


def test_recovering_does_not_wait_for_the_lease_of_a_process_that_is_dead(store: Store, arguments: list[Any]) -> None:
    kill(arguments)
    with store.open() as app:
        assert app.archives.get("ws1").operation == "ARCHIVING"
        assert app.archives.recover("ws1").status == "COLD"


def test_reconciling_does_not_wait_for_the_lease_of_a_process_that_is_dead(store: Store, arguments: list[Any]) -> None:
    kill(arguments)
    with store.open() as app:
        (outcome,) = app.archives.reconcile()
        assert (outcome.workspace, outcome.status, outcome.error) == ("ws1", "COLD", None)


def test_whoever_meets_the_work_of_a_dead_process_is_told_to_recover_it(store: Store, arguments: list[Any]) -> None:
    kill(arguments)
    with store.open() as app, pytest.raises(Conflict, match="interrupted") as refused:
        app.archives.archive("ws1")
    assert refused.value.hint is not None and "recover" in refused.value.hint


def test_the_work_of_a_process_that_was_only_stopped_is_not_taken_over(store: Store, arguments: list[Any]) -> None:
    with Actor(archive, *arguments, at=AT) as actor:
        actor.wait_until_stopped()
        with store.open() as app:
            with pytest.raises(Conflict):
                app.archives.recover("ws1")
            assert app.archives.reconcile() == ()
            with pytest.raises(Conflict, match="ARCHIVING"):
                app.archives.delete("ws1")
            actor.thaw()
            assert actor.wait() == 0, actor.errors
            assert app.archives.get("ws1").status == "COLD"


def test_the_work_of_a_process_of_another_machine_is_left_alone_until_its_lease_ends(
    store: Store, arguments: list[Any]
) -> None:
    kill(arguments)
    assert change(store, "UPDATE workspace SET holder = 'elsewhere:1:' || fence") == 1
    with store.open() as app:
        with pytest.raises(Conflict, match="ARCHIVING"):
            app.archives.recover("ws1")
        assert app.archives.reconcile() == ()
        assert change(store, "UPDATE workspace SET lease_until = 0") == 1
        assert app.archives.recover("ws1").status == "COLD"
