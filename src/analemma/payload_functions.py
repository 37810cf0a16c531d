"""Functions of a state as functions of an event, for places that pass events around."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from analemma.app import App, open_app

if TYPE_CHECKING:
    from analemma.payloads.payloads import Payloads


class _SharedApps:
    """One open store per place and process, for handlers: a function that is called again finds it open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._apps: dict[str | None, App] = {}

    def get(self, url: str | None) -> App:
        with self._lock:
            if url not in self._apps:
                self._apps[url] = open_app(url, create=False)
            return self._apps[url]

    def forget(self) -> None:
        """In a forked child, which opens its own."""
        self._lock = threading.Lock()
        self._apps = {}


_SHARED = _SharedApps()
os.register_at_fork(after_in_child=_SHARED.forget)


@overload
def with_payloads(function: Callable[..., Any], /) -> Callable[..., Any]: ...


@overload
def with_payloads(
    function: None = None,
    /,
    *,
    app: App | None = None,
    url: str | None = None,
    tenant: str | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def with_payloads(
    function: Callable[..., Any] | None = None,
    /,
    *,
    app: App | None = None,
    url: str | None = None,
    tenant: str | None = None,
    **options: Any,
) -> Any:
    """A function of a state as a function of an event: hydrate in, run, dehydrate out. Bare, or with arguments.

    The function gets the state and whatever else the caller passes, and returns the new state; None means the state it
    was given, with its changes. The store is `app`, or opened once per process from `url` or the settings. Other
    arguments are those of `HandlerOptions`.

    >>> @with_payloads(app=open_app("sqlite:///:memory:"), owner_id="ann", workflow_id="trip", execution_id="run-1")
    ... def count(state):
    ...     state["n"] += 1
    >>> count({"n": 1})["n"]
    2
    """
    from analemma.payloads.handlers import HandlerOptions, wrap_handler

    chosen = HandlerOptions(**options)

    def payloads() -> Payloads:
        store = app or _SHARED.get(url)
        return store.payloads if tenant is None else store.tenant(tenant).payloads

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        return wrap_handler(function, payloads, chosen)

    return wrap if function is None else wrap(function)


lambda_handler = with_payloads
"""`with_payloads` under the name that says where it is mostly used: `def handler(state, context)` becomes
`handler(event, context)`."""
