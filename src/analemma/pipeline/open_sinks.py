"""The sinks of a process: each opened once for every version of its rule, by whoever ships to it first, and closed in
the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from analemma.clock import Clock
from analemma.contracts.models import SinkRule
from analemma.errors import AnalemmaError, Unavailable
from analemma.sinks.port import Health, Sink
from analemma.sinks.registry import open_sink

log = logging.getLogger("analemma.ship")


@dataclass(slots=True)
class _Opened:
    checksum: str
    sink: Sink
    users: int = 0
    is_replaced: bool = False


class OpenSinks:
    """Opens sinks by their rules. Relative paths begin at `base`; `environment` replaces the process's, for tests."""

    def __init__(self, *, base: Path, clock: Clock, environment: Mapping[str, str] | None = None) -> None:
        self._base = base
        self._clock = clock
        self._environment = environment
        self._lock = threading.Lock()
        self._opened: dict[str, _Opened] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._is_closed = False

    @contextmanager
    def use(self, rule: SinkRule) -> Iterator[Sink]:
        """The rule's sink. One that was opened for another version of the rule is closed when nobody uses it any more.
        Invalid if its settings are wrong; it need not answer."""
        opened = self._take(rule)
        try:
            yield opened.sink
        finally:
            self._give_back(opened, rule.id)

    def health(self, rule: SinkRule) -> Health:
        """Ask a rule's sink whether it would take documents; does not raise."""
        try:
            with self.use(rule) as sink:
                return sink.health()
        except Exception as exc:
            return Health(False, why(exc))

    def close(self) -> None:
        """Close all of them; safe to call twice."""
        with self._lock:
            self._is_closed = True
            opened, self._opened = self._opened, {}
        for rule, each in opened.items():
            self._replace(each, rule)

    def _take(self, rule: SinkRule) -> _Opened:
        with self._lock:
            opening = self._opening.setdefault(rule.id, threading.Lock())
        # Whoever opens a sink may take long: only those who want the same one wait.
        with opening:
            found = self._find(rule)
            if found is not None:
                return found
            made = _Opened(rule.checksum, self._open(rule), users=1)
            with self._lock:
                is_closed = self._is_closed
                before = None if is_closed else self._opened.get(rule.id)
                if not is_closed:
                    self._opened[rule.id] = made
        if is_closed:
            _close(made.sink, rule.id)
            raise _closed()
        if before is not None:
            self._replace(before, rule.id)
        return made

    def _find(self, rule: SinkRule) -> _Opened | None:
        with self._lock:
            if self._is_closed:
                raise _closed()
            found = self._opened.get(rule.id)
            if found is None or found.checksum != rule.checksum:
                return None
            found.users += 1
            return found

    def _open(self, rule: SinkRule) -> Sink:
        try:
            return open_sink(
                {**rule.target, "type": rule.target_type},
                environment=self._environment,
                base=self._base,
                timeout_s=rule.timeout_ms / 1000,
                clock=self._clock,
            )
        except AnalemmaError:
            raise
        except Exception as exc:
            # Its text may hold anything, also secrets; so it is not even the cause.
            raise Unavailable(
                f"the sink of {rule.id} cannot be opened ({type(exc).__name__})", hint="check its settings"
            ) from None

    def _replace(self, opened: _Opened, rule: str) -> None:
        with self._lock:
            opened.is_replaced = True
            is_free = opened.users == 0
        if is_free:
            _close(opened.sink, rule)

    def _give_back(self, opened: _Opened, rule: str) -> None:
        with self._lock:
            opened.users -= 1
            is_over = opened.is_replaced and opened.users == 0
        if is_over:
            _close(opened.sink, rule)


def _closed() -> Unavailable:
    return Unavailable("the store is closed", hint="open it again")


def _close(sink: Sink, rule: str) -> None:
    """What it was sent has been answered: that it cannot be closed changes nothing."""
    try:
        sink.close()
    except Exception as exc:
        log.warning("a sink of %s could not be closed (%s)", rule, type(exc).__name__)


def why(error: BaseException) -> str:
    """What may be told of an error that came out of a sink. Only our own errors are known to have no secrets in
    them."""
    return error.message if isinstance(error, AnalemmaError) else f"the sink failed ({type(error).__name__})"
