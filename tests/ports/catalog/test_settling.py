"""A commit whose answer was lost is sent again; a refusal counts only if it also refuses the one that was lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from analemma import App
from analemma.catalog.port import CommitRequest, Committed
from analemma.catalog.settling import settle
from analemma.errors import HeadMoved, OutcomeUnknown
from analemma.testing.catalog_ledger import make_entry
from analemma.testing.commits import make_request
from tests.stores import Store


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def settle_lost(app: App, request: CommitRequest) -> Committed:
    """As after a statement of which nobody knows whether the server is still at work on it."""
    return settle(
        request,
        is_stored=lambda: app.catalog.manifest(request.tenant, request.manifest.id) is not None,
        send=lambda: app.catalog.commit(request),
        unknown=lambda: OutcomeUnknown("the answer was lost"),
    )


def test_a_refusal_for_what_is_pending_does_not_say_that_the_lost_commit_will_not_happen(app: App) -> None:
    tenant = app.default.id
    first = make_request(tenant, None)
    app.catalog.commit(first)
    lost = make_request(tenant, first.head, unless_pending=True)
    app.catalog.enter(tenant, make_entry())
    # The head is where the lost commit expects it: told that it moved, the caller would apply the change twice.
    with pytest.raises(OutcomeUnknown):
        settle_lost(app, lost)


def test_a_head_that_moved_says_so_whatever_is_pending(app: App) -> None:
    tenant = app.default.id
    first = make_request(tenant, None)
    app.catalog.commit(first)
    lost = make_request(tenant, first.head, unless_pending=True)
    app.catalog.commit(make_request(tenant, first.head))
    app.catalog.enter(tenant, make_entry())
    with pytest.raises(HeadMoved):
        settle_lost(app, lost)


def test_with_nothing_pending_it_happens(app: App) -> None:
    tenant = app.default.id
    first = make_request(tenant, None)
    app.catalog.commit(first)
    lost = make_request(tenant, first.head, unless_pending=True)
    assert settle_lost(app, lost).manifest == lost.manifest.id
    assert settle_lost(app, lost).manifest == lost.manifest.id
