"""A server that speaks the protocol of OpenAI-compatible endpoints over real sockets: whole, streamed in pieces, late,
wrong, and broken off."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

USAGE = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Answering(BaseHTTPRequestHandler):
    """What an answer of the script may do with a connection."""

    protocol_version = "HTTP/1.1"

    def whole(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content_type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def break_off(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        pass


Answer = Callable[[Answering], None]


class ModelServer:
    """Answers with what is next in its script, and with the last of it from then on."""

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.asked: list[Asked] = []
        self.lock = threading.Lock()
        server = self

        class Handler(Answering):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                with server.lock:
                    server.asked.append(Asked(self.command, self.path, headers, body))
                    answer = server.script[min(len(server.asked), len(server.script)) - 1]
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    answer(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = handle_any

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Whoever asked may be gone: that is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def speak_tls(self, certificate: Path, key: Path) -> None:
        """From the next connection on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = self.url.replace("http://", "https://")

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def says(text: str | None, **message: Any) -> Answer:
    """The whole answer at once."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
    return lambda to: to.whole(200, {"model": "m-1", "choices": [choice], "usage": USAGE})


def events(*deltas: dict[str, Any], finish: str | None = "stop", usage: bool = True) -> bytes:
    """A stream of these deltas."""
    made: list[Any] = [{"model": "m-1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    if finish is not None:
        made.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage:
        made.append({"choices": [], "usage": USAGE})
    return b"".join(b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\n\n" for each in made)


def streams(data: bytes, *, piece: int = 7, end: bytes = b"data: [DONE]\n\n", pause_s: float = 0.0) -> Answer:
    """The answer in pieces that are cut anywhere."""

    def answer(to: Answering) -> None:
        to.begin_stream()
        text = data + end
        for at in range(0, len(text), piece):
            to.chunk(text[at : at + piece])
            time.sleep(pause_s)
        to.end_stream()

    return answer


def breaks_off(data: bytes) -> Answer:
    """The beginning of a stream, and then nothing."""

    def answer(to: Answering) -> None:
        to.begin_stream()
        to.chunk(data)
        to.break_off()

    return answer


def fails(status: int, text: str = "no", **headers: str) -> Answer:
    return lambda to: to.whole(status, {"error": {"message": text}}, **headers)


def hangs(seconds: float) -> Answer:
    def answer(to: Answering) -> None:
        time.sleep(seconds)
        to.break_off()

    return answer
