"""Two move or remove one tag from different branches, whose journals do not meet: the tag is where its history says."""

from __future__ import annotations

from typing import Any

import pytest

from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def versions(store: Store) -> dict[str, str]:
    """Two versions of the main branch, the first of which is tagged, and one of another branch."""
    with store.open() as app:
        first = app.kernel.save_state_delta({"n": 1}, **PLACE).manifest_id
        app.kernel.fork(first, branch="other", owner_id="ann")
        other = app.kernel.save_state_delta({"n": 9}, **PLACE, branch="other").manifest_id
        second = app.kernel.save_state_delta({"n": 2}, **PLACE).manifest_id
        app.kernel.tag(first, "good", owner_id="ann")
    return {"first": first, "second": second, "other": other}


def test_a_tag_that_was_moved_meanwhile_is_moved_from_where_it_is(store: Store, versions: dict[str, str]) -> None:
    """Guard: a tag is moved by compare-and-set, whatever branch it is on."""
    with store.open() as app, store.open() as rival:
        move = lambda: app.kernel.tag(versions["second"], "good", owner_id="ann", force=True)  # noqa: E731
        with failpoints.paused("record.before_transaction", move) as held:
            rival.kernel.tag(versions["other"], "good", owner_id="ann", force=True)
            held.go_on()
        [tag] = app.kernel.tags(**PLACE)
        assert tag.manifest_id == versions["second"]
        assert app.kernel.verify(**PLACE).ok and app.kernel.verify(**PLACE, branch="other").ok


def test_a_tag_that_was_moved_meanwhile_is_not_removed(store: Store, versions: dict[str, str]) -> None:
    """Guard: a tag is removed only from the version on which it was seen."""
    with store.open() as app, store.open() as rival:
        remove = lambda: app.kernel.untag("good", **PLACE)  # noqa: E731
        with failpoints.paused("record.before_transaction", remove) as held:
            rival.kernel.tag(versions["other"], "good", owner_id="ann", force=True)
            with pytest.raises(Conflict):
                held.go_on()
        [tag] = app.kernel.tags(**PLACE)
        assert tag.manifest_id == versions["other"]
        assert app.kernel.verify(**PLACE).ok and app.kernel.verify(**PLACE, branch="other").ok


def test_a_tag_that_was_put_meanwhile_is_not_put_again(store: Store, versions: dict[str, str]) -> None:
    """Guard: a name that is taken is not given to another version, nor to the same one twice."""
    with store.open() as app, store.open() as rival:
        for name, there, error in (("new", "second", None), ("newer", "other", Conflict)):
            put = lambda name=name: app.kernel.tag(versions["second"], name, owner_id="ann")  # noqa: E731
            with failpoints.paused("record.before_transaction", put) as held:
                rival.kernel.tag(versions[there], name, owner_id="ann")
                if error is None:
                    held.go_on()
                else:
                    with pytest.raises(error):
                        held.go_on()
            assert {tag.name: tag.manifest_id for tag in app.kernel.tags(**PLACE)}[name] == versions[there]
            app.kernel.untag(name, **PLACE)
            assert app.kernel.verify(**PLACE).ok and app.kernel.verify(**PLACE, branch="other").ok
