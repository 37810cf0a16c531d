"""Functions of a state as functions of an event, for places that pass events around."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from analemma.store.open import open_app
from analemma.store.store import App

if TYPE_CHECKING:
    from analemma.payloads.payloads import Payloads

Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """What this process has made and keeps open, for whoever comes next; a forked child makes its own."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: Key) -> Value:
        """What is kept under a key, made when it is first asked for."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._make(key)
            return self._kept[key]

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Key, Value] = {}


_SHARED: Kept[str | None, App] = Kept(lambda url: open_app(url, create=False))


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
    from analemma.payloads.payloads import HandlerOptions

    chosen = HandlerOptions(**options)

    def payloads() -> Payloads:
        store = app or _SHARED.get(url)
        return store.payloads if tenant is None else store.tenant(tenant).payloads

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        return chosen.wrap(function, payloads)

    return wrap if function is None else wrap(function)


lambda_handler = with_payloads
"""`with_payloads` under the name that says where it is mostly used: `def handler(state, context)` becomes
`handler(event, context)`."""
