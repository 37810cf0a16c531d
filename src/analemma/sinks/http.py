"""Requests of sinks that speak HTTP, through httpx, which is imported when the first such sink is opened.

Redirects are not followed: they would carry documents and credentials to a place that nobody named."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from analemma.clock import Clock
from analemma.errors import Invalid, Unavailable
from analemma.sinks.port import Shipped, one_line, retry

MOST_ANSWER_BYTES: Final = 64 << 20
LONGEST_WAIT_S: Final = 3600.0
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


_sending: ContextVar[bool] = ContextVar("analemma_sinks_sending", default=False)


class _NotOurs(logging.Filter):
    """httpx logs the URL of every request; those of sinks may have a key in them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _sending.get()


_QUIET: Final = _NotOurs()


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Their names in lower case."""
    body: bytes

    @property
    def reason(self) -> str:
        """For people: the status, and how the body begins."""
        text = one_line(self.body[:400].decode("utf-8", "replace"), 200)
        return f"HTTP status {self.status}" + (f": {text}" if text else "")


class HttpClient:
    """Connections to one place. Threads may share it."""

    def __init__(
        self, place: str, *, timeout_s: float, clock: Clock, verify: ssl.SSLContext | bool = True, **options: Any
    ) -> None:
        try:
            import httpx
        except ModuleNotFoundError as exc:
            raise Unavailable("this sink needs httpx", hint="pip install 'analemma[sinks]'") from exc
        logging.getLogger("httpx").addFilter(_QUIET)
        self.place = place
        self._clock = clock
        self._timeout_s = timeout_s
        self._httpx = httpx
        self._client = httpx.Client(timeout=timeout_s, follow_redirects=False, verify=verify, **options)

    def request(
        self, method: str, url: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer | Shipped:
        """The answer, or RETRY when there was none."""
        sending = _sending.set(True)
        try:
            with self._client.stream(method, url, content=content, headers=dict(headers or {})) as response:
                # The client's own limit is for each piece of the body, of which there may be any number. What was sent
                # before may have taken longer than that, and has been accepted or refused by now.
                deadline = self._clock.monotonic() + self._timeout_s
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if self._clock.monotonic() > deadline:
                        return retry(f"{self.place} did not answer in time")
                    if len(body) > MOST_ANSWER_BYTES:
                        return retry(f"{self.place} answered with more than {MOST_ANSWER_BYTES} bytes")
                return HttpAnswer(response.status_code, dict(response.headers), bytes(body))
        except self._httpx.TimeoutException:
            return retry(f"{self.place} did not answer in time")
        except (self._httpx.HTTPError, self._httpx.InvalidURL, self._httpx.StreamError) as exc:
            # Its text may hold the URL, and that a key.
            return retry(f"{self.place} cannot be reached ({type(exc).__name__})")
        finally:
            _sending.reset(sending)

    def asked_to_wait_s(self, answer: HttpAnswer) -> float | None:
        """What `Retry-After` says, as seconds from now."""
        text = answer.headers.get("retry-after", "").strip()
        if not text:
            return None
        if text.isascii() and text.isdigit():
            return min(float(text), LONGEST_WAIT_S)
        try:
            moment = parsedate_to_datetime(text).timestamp()
        except (ValueError, OverflowError):
            return None
        return min(max(moment - self._clock.now_us() / 1_000_000, 0.0), LONGEST_WAIT_S)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def host_of(url: str, *, allow_http: bool) -> str:
    """The host that a URL names, for messages. Invalid if it would be spoken to in the clear, unless that is allowed or
    it is this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not allow_http and parts.hostname not in _LOCAL_HOSTS:
        raise Invalid(
            f"the connection to {parts.hostname} would not be encrypted", hint="use https, or set allowHttp to true"
        )
    return parts.netloc


def trusting(ca_file: str | None, base: Path) -> ssl.SSLContext | bool:
    """What certificates are checked by: those of a file, or those that everyone trusts."""
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(base / ca_file))
    except (OSError, ssl.SSLError) as exc:
        raise Invalid(f"caFile: {base / ca_file} has no certificates", hint="name a PEM file") from exc
