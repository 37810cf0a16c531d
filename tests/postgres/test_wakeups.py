"""Telling workers of other machines that there is work."""

from __future__ import annotations

import threading

import pytest

from tests.api.pipeline.shop import open_shop, put_book
from tests.stores import Store


def test_what_is_committed_is_not_refused_when_no_thread_can_tell_of_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_shop(Store(postgres_url)) as shop, monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", fail)
        assert shop.slices("BOOK", "0001", put_book(shop, "0001"))
