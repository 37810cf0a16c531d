"""A proxy in front of a PostgreSQL socket that can lose an answer, as a network does."""

from __future__ import annotations

import re
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict


class LossyProxy:
    """Forwards every connection; armed, it lets one statement through and cuts the connection instead of answering."""

    def __init__(self, url: str) -> None:
        parts = conninfo_to_dict(url)
        port = parts.get("port") or 5432
        self._server = f"{parts['host']}/.s.PGSQL.{port}"
        self._folder = tempfile.TemporaryDirectory(prefix="proxy-")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self._folder.name) / f".s.PGSQL.{port}"))
        self._listener.listen()
        self.url = re.sub(r"(?<=[?&]host=)[^&]+", self._folder.name, url)
        self._armed: bytes | None = None
        self._then_refuse = False
        self._meanwhile: Callable[[], object] = lambda: None
        self._at_once = False
        self.refusing = False
        self.lost = 0
        self._closing = False
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def lose_answer_to(
        self, fragment: bytes, *, then_refuse: bool = False, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Lose the answer to the next message that holds `fragment`; call `meanwhile` before the client knows."""
        self._armed, self._then_refuse, self._meanwhile = fragment, then_refuse, meanwhile

    def lose_connection_at(self, fragment: bytes) -> None:
        """Cut the client off as soon as the next message that holds `fragment` is through; the server goes on."""
        self._armed, self._at_once = fragment, True

    def close(self) -> None:
        self._closing = True
        # A last connection wakes the accepting thread.
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self._listener.getsockname())
        for end in self._ends:
            _shut(end)
        for thread in self._threads:
            thread.join(10)
        for end in (*self._ends, self._listener):
            end.close()
        self._folder.cleanup()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closing or self.refusing:
                client.close()
                if self._closing:
                    return
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._ends += (client, server)
            cut = threading.Event()
            self._start(self._forward, client, server, cut)
            self._start(self._answer, server, client, cut)

    def _forward(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        try:
            while data := client.recv(1 << 16):
                if self._armed is not None and self._armed in data:
                    self._armed = None
                    self.refusing = self._then_refuse
                    cut.set()
                    if self._at_once:
                        # A server that is at work on a statement does not notice.
                        self._at_once = False
                        server.sendall(data)
                        _shut(client)
                        return
                server.sendall(data)
        except OSError:
            pass
        finally:
            _shut(server)

    def _answer(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        try:
            while data := server.recv(1 << 16):
                if cut.is_set():
                    # Something came back: the statement has run. Nobody will hear of it.
                    self.lost += 1
                    self._meanwhile()
                    break
                client.sendall(data)
        except OSError:
            pass
        finally:
            _shut(client)
            _shut(server)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
