"""Requests of nodes, through httpx and what is below it, which are imported with the first: to an address that was
judged, without following redirects, and with every answer bounded in size and time."""

from __future__ import annotations

import logging
import ssl
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Final

from analemma.clock import Clock
from analemma.errors import Limit, Timeout, Unavailable
from analemma.flows.node_types.places import Destination
from analemma.flows.node_types.web_streams import BoundedBackend

LONGEST_WAIT_S: Final = 3600.0
CONNECT_S: Final = 15.0
LARGEST_PIECE: Final = 1 << 20
"""A few bytes may be compressed from very many: no more than this is unpacked at a time."""

_sending: ContextVar[bool] = ContextVar("analemma_nodes_sending", default=False)


class _NotOurs(logging.Filter):
    """What a host answered is logged below us, for those who look for faults; it may have a key in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _sending.get()


_QUIET: Final = _NotOurs()
_TELLING: Final = ("httpx", "httpcore.connection", "httpcore.http11")


@dataclass(frozen=True, slots=True)
class WebRequest:
    """What is sent."""

    method: str
    destination: Destination
    headers: Mapping[str, str]
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long an answer may take, and how large it may be."""

    maximum_bytes: int
    read_s: float
    """Between two parts of it."""
    deadline: float | None
    """When all of it has to be there, as the clock's `monotonic` tells time."""
    check: Callable[[], None]
    """Raises if nobody waits for it any more."""


class WebAnswer:
    """An answer whose body is still to be read."""

    def __init__(self, status: int, headers: Mapping[str, str], pieces: Iterator[bytes]) -> None:
        self.status = status
        self.headers = headers
        """By their names in small letters."""
        self.pieces = pieces
        """The body, bounded."""

    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)


class Web:
    """Sends requests. Threads may share it.

    A connection is used once: it is made to an address, for a host whose certificate was checked, and the next request
    to that address may be for another host."""

    def __init__(self, clock: Clock, *, verify: ssl.SSLContext | None = None) -> None:
        self._clock = clock
        self._given = verify

    @contextmanager
    def send(self, request: WebRequest, bounds: Bounds) -> Iterator[WebAnswer]:
        """Send it; Unavailable if nobody answers, Timeout if it takes too long, Limit if the answer is too large."""
        httpx, core = self._httpx, self._core
        host = request.destination.host
        sending = _sending.set(True)
        backend = BoundedBackend(
            core.SyncBackend(), core.ReadTimeout, self._clock, host, bounds.check, bounds.deadline, bounds.read_s
        )
        # What is raised below us may hold the URL, and that a key: neither its text nor itself is told on.
        try:
            with (
                core.ConnectionPool(ssl_context=self._verify, network_backend=backend) as pool,
                self._connected(pool, request, bounds) as response,
            ):
                backend.is_answered = True
                headers = _headers(httpx.Headers(response.headers))
                pieces = _decoded(response.iter_stream(), headers.get("content-encoding", ""), host)
                yield WebAnswer(response.status, headers, self._bounded(pieces, host, bounds))
        except core.TimeoutException:
            raise Timeout(f"{host} did not answer in time", hint="raise timeout_s, or ask for less") from None
        except (core.NetworkError, core.ProtocolError, httpx.InvalidURL, ssl.SSLError) as exc:
            raise Unavailable(
                f"{host} cannot be reached, or broke off ({type(exc).__name__})",
                hint="check its address, and that it answers from here",
            ) from None
        finally:
            _sending.reset(sending)

    def asked_to_wait_s(self, headers: Mapping[str, str]) -> float | None:
        """What `Retry-After` says, as seconds from now."""
        text = headers.get("retry-after", "").strip()
        if not text:
            return None
        try:
            seconds = float(text) if text.replace(".", "", 1).isdigit() else self._until(text)
        except (ValueError, OverflowError):
            return None
        return min(max(seconds, 0.0), LONGEST_WAIT_S)

    @cached_property
    def _httpx(self) -> Any:
        try:
            import httpx
        except ModuleNotFoundError as exc:
            raise Unavailable("llm_chat and http_request need httpx", hint="pip install 'analemma[flows]'") from exc
        for name in _TELLING:
            logging.getLogger(name).addFilter(_QUIET)
        return httpx

    @cached_property
    def _core(self) -> Any:
        """What httpx is built on. It has a place where one may bound each read, also of what comes before a body."""
        import httpcore

        return httpcore

    @cached_property
    def _verify(self) -> ssl.SSLContext:
        made: ssl.SSLContext = self._given or self._httpx.create_ssl_context()
        return made

    @contextmanager
    def _connected(self, pool: Any, request: WebRequest, bounds: Bounds) -> Iterator[Any]:
        """The answer of the first address that takes the connection."""
        httpx, core, destination = self._httpx, self._core, request.destination
        known = {"accept": "*/*", "accept-encoding": "gzip", "user-agent": "analemma"}
        for number, address in enumerate(destination.addresses, 1):
            made = httpx.Request(
                request.method,
                destination.at(address),
                headers={**known, **request.headers, "host": destination.host, "connection": "close"},
                content=request.content or None,
            )
            asked = core.Request(
                request.method,
                core.URL(
                    scheme=made.url.raw_scheme, host=made.url.raw_host, port=made.url.port, target=made.url.raw_path
                ),
                headers=made.headers.raw,
                content=made.stream,
                extensions={"sni_hostname": destination.url.hostname or "", "timeout": self._timeouts(bounds)},
            )
            try:
                response = pool.handle_request(asked)
            except (core.ConnectError, core.ConnectTimeout):
                if number == len(destination.addresses):
                    raise
                continue
            try:
                yield response
            finally:
                response.close()
            return

    def _bounded(self, pieces: Iterator[bytes], host: str, bounds: Bounds) -> Iterator[bytes]:
        count = 0
        for piece in pieces:
            bounds.check()
            if bounds.deadline is not None and self._clock.monotonic() > bounds.deadline:
                raise Timeout(f"{host} did not finish its answer in time", hint="raise timeout_s, or ask for less")
            count += len(piece)
            if count > bounds.maximum_bytes:
                raise Limit(
                    f"{host} answered with more than {bounds.maximum_bytes} bytes",
                    hint="raise maximum_bytes, or ask for less",
                    limit=bounds.maximum_bytes,
                )
            yield piece

    def _timeouts(self, bounds: Bounds) -> dict[str, float]:
        read_s = bounds.read_s
        return {"connect": min(read_s, CONNECT_S), "pool": read_s, "read": read_s, "write": read_s}

    def _until(self, text: str) -> float:
        return parsedate_to_datetime(text).timestamp() - self._clock.now_us() / 1_000_000


def _decoded(pieces: Iterator[bytes], encoding: str, host: str) -> Iterator[bytes]:
    """A body without its compression, in pieces of bounded size. Only what was asked for is understood."""
    if encoding.strip().lower() in ("", "identity"):
        yield from pieces
        return
    if encoding.strip().lower() not in ("gzip", "x-gzip"):
        raise Unavailable(f"{host} answers in an encoding that it was not asked for", hint="it was asked for gzip")
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        for piece in pieces:
            left = piece
            while left and not unpacking.eof:
                yield unpacking.decompress(left, LARGEST_PIECE)
                left = unpacking.unconsumed_tail
            if unpacking.eof and not unpacking.unused_data:
                # Over, whatever may still come.
                return
            if unpacking.eof:
                break
    except zlib.error:
        raise Unavailable(f"{host} broke off, or its answer is damaged") from None
    raise Unavailable(f"{host} broke off, or its answer is damaged")


def _headers(found: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in found.items()}
