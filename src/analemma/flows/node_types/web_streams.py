"""Connections whose every read and write is bounded: also while headers come, one letter at a time or without end."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Final

from analemma.clock import Clock
from analemma.errors import Limit, Timeout

LARGEST_HEAD: Final = 256 << 10
"""What may come before the body of an answer: headers, and notices that it will come."""
LOOK_S: Final = 0.5
"""So often somebody who waits looks whether anybody waits for him."""


class BoundedBackend:
    """Makes connections for one request; the form is that of `httpcore.NetworkBackend`."""

    def __init__(
        self,
        inner: Any,
        nothing_came: type[Exception],
        clock: Clock,
        host: str,
        check: Callable[[], None],
        deadline: float | None,
        read_s: float,
    ) -> None:
        """`nothing_came` is what `inner` raises when a read takes too long."""
        self._inner = inner
        self.nothing_came = nothing_came
        self._clock = clock
        self._host = host
        self._check = check
        self._deadline = deadline
        self._read_s = read_s
        self.is_answered = False
        """Whether the headers are there. Until then all of them together have the time of one read."""
        self._answer_by: float | None = None
        self._head_bytes = 0

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> BoundedStream:
        made = self._inner.connect_tcp(
            host,
            port,
            timeout=self.left_s(timeout),
            local_address=local_address,
            socket_options=socket_options,
        )
        return BoundedStream(made, self)

    def connect_unix_socket(self, path: str, timeout: float | None = None, socket_options: Any = None) -> Any:
        raise NotImplementedError("nodes speak to hosts")

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def left_s(self, timeout: float | None) -> float:
        """How long the next step may take; Timeout if there is no time left."""
        self._check()
        now = self._clock.monotonic()
        left = self._read_s if timeout is None else timeout
        for until in (self._deadline, None if self.is_answered else self._answer_by):
            if until is not None:
                left = min(left, until - now)
        if left <= 0:
            raise Timeout(f"{self._host} did not answer in time", hint="raise timeout_s, or ask for less")
        return left

    def sent(self) -> None:
        """The last of the request is on its way, as far as is known."""
        self._answer_by = self._clock.monotonic() + self._read_s

    def read(self, stream: Any, max_bytes: int, timeout: float | None) -> bytes:
        """The next bytes of a connection."""
        until = self._clock.monotonic() + self.left_s(timeout)
        while True:
            left = min(self.left_s(timeout), until - self._clock.monotonic())
            try:
                data: bytes = stream.read(max_bytes, timeout=max(0.001, min(left, LOOK_S)))
            except self.nothing_came:
                if self._clock.monotonic() >= until:
                    raise
                continue
            self._count(data)
            return data

    def _count(self, data: bytes) -> None:
        if not self.is_answered:
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD:
                raise Limit(f"{self._host} sends headers without end", limit=LARGEST_HEAD)


class BoundedStream:
    """A connection; the form is that of `httpcore.NetworkStream`."""

    def __init__(self, inner: Any, backend: BoundedBackend) -> None:
        self._inner = inner
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._backend.read(self._inner, max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In parts: each has the time of a step, and somebody looks between them.
        for start in range(0, len(buffer), 65_536):
            self._inner.write(buffer[start : start + 65_536], timeout=self._backend.left_s(timeout))
        self._backend.sent()

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> BoundedStream:
        made = self._inner.start_tls(ssl_context, server_hostname, self._backend.left_s(timeout))
        return BoundedStream(made, self._backend)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
