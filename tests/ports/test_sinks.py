"""Every sink passes the same suite, on a real server or on one that is stricter than the real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from analemma import Sink, SinkDocument, open_sink, read_snapshot
from analemma.errors import NotFound
from analemma.testing.sinks import Outcome, SinkSuite, gone, make_document
from tests.ports.entry_points.objects import open_objects
from tests.ports.entry_points.sinks import safe_name
from tests.s3_server import SECRET_KEY as S3_SECRET
from tests.s3_server import CannotStart, S3Server, run_directory, shared_s3
from tests.servers import PostgresServer
from tests.sink_servers import (
    ACCESS_KEY,
    DATASET_ARN,
    REGION,
    SECRET_KEY,
    Gate,
    NatsServer,
    OpenSearchLike,
    PersonalizeLike,
    WebhookReceiver,
)


class JsonlPlace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "out"
        self.base = folder

    def open(self) -> Sink:
        return open_sink(
            {"type": "JSONL", "path": "${OUT:-out}/books-{tenantId}.jsonl"}, environment={}, base=self.base
        )

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        try:
            lines = list(read_snapshot(self.folder / "books-shop.jsonl"))
        except NotFound:
            return None
        return next((line.body for line in lines if line.doc_id == document.doc_id), None)

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """The folder is gone, and a file has its name."""
        self.folder.rename(self.base / "moved")
        self.folder.write_text("in the way")
        yield
        self.folder.unlink()
        (self.base / "moved").rename(self.folder)


class TestJsonl(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> JsonlPlace:
        return JsonlPlace(tmp_path)


class SqlitePlace:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = {"create": True, "timeoutS": 0.3, **settings}

    def open(self) -> Sink:
        target = {"type": "TABLE", "url": "sqlite:///shop.db", "table": "documents", **self.settings}
        return open_sink(target, environment={}, base=self.folder)

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        with contextlib.closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            row = connection.execute("SELECT body FROM documents WHERE doc_id = ?", (document.doc_id,)).fetchone()
        return None if row is None or row[0] is None else json.loads(row[0])

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """Another program keeps the file to itself."""
        with contextlib.closing(sqlite3.connect(self.folder / "shop.db", isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield
            connection.execute("ROLLBACK")


class TestSqliteTable(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> SqlitePlace:
        return SqlitePlace(tmp_path)


@pytest.mark.deep("what is removed is tried with tables")
class TestSqliteTableThatRemoves(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> SqlitePlace:
        return SqlitePlace(tmp_path, deletes="remove")


class PostgresPlace:
    """A table in a schema of its own: a database for each test would take far longer."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.schema = f"shop_{uuid4().hex}"
        self.settings = {"create": True, "timeoutS": 10, **settings}
        self._run("CREATE SCHEMA {schema}")

    def open(self) -> Sink:
        target = {"type": "TABLE", "url": "${SHOP_DATABASE}", "table": f"{self.schema}.documents", **self.settings}
        return open_sink(target, environment={"SHOP_DATABASE": self.url})

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        rows = self._run("SELECT body::text FROM {schema}.documents WHERE doc_id = %s", document.doc_id)
        if not rows or rows[0][0] is None:
            return None
        # jsonb writes 1e300 as three hundred digits.
        body: dict[str, Any] = json.loads(rows[0][0], parse_int=_number)
        return body

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """The connection is cut, and the table has another name."""
        self._run("ALTER TABLE {schema}.documents RENAME TO moved")
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        self._run(cut + " AND datname = current_database()")
        # In its place, or the sink would make another.
        self._run("CREATE VIEW {schema}.documents AS SELECT 1 AS doc_id")
        yield
        self._run("DROP VIEW {schema}.documents")
        self._run("ALTER TABLE {schema}.moved RENAME TO documents")

    def _run(self, query: str, *parameters: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.replace("{schema}", self.schema).encode(), parameters)
            return cursor.fetchall() if cursor.description else []


def _number(text: str) -> float:
    return int(text) if len(text) < 30 else float(text)


@pytest.fixture(scope="module")
def sink_database(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


class PostgresSuite(SinkSuite):
    def refuses_id(self, doc_id: str) -> bool:
        # Longer ids do not fit PostgreSQL's indexes, unless they compress; NUL fits no text.
        return "\0" in doc_id

    def refuses_body(self, body: dict[str, Any]) -> bool:
        return "nul" in body

    def refused_by_the_place(self) -> dict[str, Any] | None:
        return {"text": "NUL is no character of jsonb: \0"}


class TestPostgresTable(PostgresSuite):
    @pytest.fixture
    def place(self, sink_database: str) -> PostgresPlace:
        return PostgresPlace(sink_database)


@pytest.mark.deep("what the other table and SQLite try together")
class TestPostgresTableThatRemoves(PostgresSuite):
    @pytest.fixture
    def place(self, sink_database: str) -> PostgresPlace:
        return PostgresPlace(sink_database, deletes="remove")


class OpenSearchPlace:
    def __init__(self, server: OpenSearchLike, **settings: Any) -> None:
        self.server = server
        self.settings = settings

    def open(self) -> Sink:
        target = {"type": "OPENSEARCH", "url": self.server.url, "index": "books-{tenantId}-{entityType}"}
        return open_sink({**target, "mostDocuments": 100, "timeoutS": 5, **self.settings}, environment={})

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        return self.server.documents.get(("books-shop-book", document.doc_id), (0, None))[1]

    def broken(self) -> AbstractContextManager[None]:
        return self.server.down()


class OpenSearchSuite(SinkSuite):
    secrets = ("opensearch-secret",)

    def refuses_id(self, doc_id: str) -> bool:
        return len(doc_id.encode()) > 512

    def refuses_body(self, body: dict[str, Any]) -> bool:
        return "" in body

    def refused_by_the_place(self) -> dict[str, Any] | None:
        return {"refuse me": True}


@pytest.mark.deep("its own tests try its answers one by one")
class TestOpenSearch(OpenSearchSuite):
    @pytest.fixture
    def place(self) -> Iterator[OpenSearchPlace]:
        server = OpenSearchLike(password="opensearch-secret")
        yield OpenSearchPlace(server, username="admin", password="opensearch-secret")
        server.stop()


@pytest.mark.deep("the same requests, compressed")
class TestOpenSearchCompressed(OpenSearchSuite):
    @pytest.fixture
    def place(self) -> Iterator[OpenSearchPlace]:
        server = OpenSearchLike(token="opensearch-secret")
        yield OpenSearchPlace(server, bearerToken="opensearch-secret", gzip=True, mostBytes=2000)
        server.stop()


class WebhookPlace:
    def __init__(self, server: WebhookReceiver, mode: str) -> None:
        self.server = server
        self.mode = mode

    def open(self) -> Sink:
        url = f"{self.server.url}/documents?key=webhook-key"
        target = {"type": "WEBHOOK", "url": url, "secret": "webhook-secret"}
        return open_sink({**target, "mode": self.mode, "timeoutS": 5}, environment={})

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        held = self.server.documents.get(document.doc_id)
        if held is None:
            return None
        assert held["op"] == ("delete" if held["body"] is None else "upsert")
        assert (held["tenantId"], held["entityKey"]) == (document.tenant, document.entity_key)
        body: dict[str, Any] | None = held["body"]
        return body

    def broken(self) -> AbstractContextManager[None]:
        return self.server.down()


@pytest.mark.deep("its own tests try its answers one by one")
class TestWebhook(SinkSuite):
    secrets = ("webhook-secret", "webhook-key")

    @pytest.fixture(params=["single", "batch"])
    def place(self, request: pytest.FixtureRequest) -> Iterator[WebhookPlace]:
        server = WebhookReceiver("webhook-secret")
        yield WebhookPlace(server, request.param)
        server.stop()

    def refused_by_the_place(self) -> dict[str, Any] | None:
        return {"refuse me": True}


class PersonalizePlace:
    def __init__(self, server: PersonalizeLike) -> None:
        self.server = server

    def open(self) -> Sink:
        target = {
            "type": "PERSONALIZE",
            "dataset": "items",
            "datasetArn": DATASET_ARN,
            "region": REGION,
            "accessKeyId": ACCESS_KEY,
            "secretAccessKey": SECRET_KEY,
            "endpointUrl": self.server.url,
            "deletedProperty": "deleted",
            "timeoutS": 5,
        }
        return open_sink(target, environment={})

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        held = self.server.entries.get(document.doc_id)
        return None if held == {"deleted": True} else held

    def broken(self) -> AbstractContextManager[None]:
        return self.server.down()


@pytest.mark.deep("its own tests try its answers one by one")
class TestPersonalize(SinkSuite):
    longest_body = 32_000
    secrets = (SECRET_KEY,)

    @pytest.fixture
    def place(self) -> Iterator[PersonalizePlace]:
        server = PersonalizeLike()
        yield PersonalizePlace(server)
        server.stop()

    def refuses_id(self, doc_id: str) -> bool:
        return len(doc_id) > 256

    def refused_by_the_place(self) -> dict[str, Any] | None:
        return {"refuse me": True}

    def test_health_says_whether_the_place_answers(self, sink: Sink, place: Any) -> None:
        """There is nothing to ask, so it says whether there are credentials."""
        assert sink.health().is_healthy


class ObjectsPlace:
    def __init__(self, url: str, base: Path, breaking: AbstractContextManager[None], **settings: Any) -> None:
        self.url = url
        self.base = base
        self._breaking = breaking
        self.settings = settings
        self._reading = open_objects(url if "://" in url else str(base / url))

    def open(self) -> Sink:
        target = {"type": "OBJECTS", "url": self.url, "prefix": "{tenantId}/{entityType}", **self.settings}
        return open_sink(target, environment={}, base=self.base)

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        try:
            data = self._reading.get(self._key(document))
        except NotFound:
            return None
        return json.loads(data) if data else None

    def keeps_metadata(self, document: SinkDocument) -> bool:
        info = self._reading.head(self._key(document))
        return info is not None and bool(info.metadata)

    def _key(self, document: SinkDocument) -> str:
        return f"{document.tenant}/BOOK/{safe_name(document.doc_id)}.json"

    def broken(self) -> AbstractContextManager[None]:
        return self._breaking


class ObjectsSuite(SinkSuite):
    def test_it_looks_before_it_writes(self, sink: Sink, place: ObjectsPlace) -> None:
        """Not a guard, but nearly: an older state that comes later is seen."""
        assert not sink.guards
        sink.ship(make_document(ship_seq=2))
        if not place.keeps_metadata(make_document()):
            pytest.skip("this file system keeps no metadata to look at")
        assert sink.ship(make_document(ship_seq=1)).outcome is Outcome.STALE
        assert sink.ship(gone(make_document(), 1)).outcome is Outcome.STALE
        assert place.read(make_document()) == {"title": "state 2"}
        assert sink.ship(gone(make_document(), 4)).outcome is Outcome.SHIPPED
        late = sink.ship(make_document(ship_seq=3)).outcome
        assert late is (Outcome.STALE if place.settings.get("deletes") == "mark" else Outcome.SHIPPED)


class TestObjectsInFiles(ObjectsSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> ObjectsPlace:
        @contextlib.contextmanager
        def in_the_way() -> Iterator[None]:
            """The folder for what is being written is a file."""
            scratch = tmp_path / "out" / ".tmp"
            scratch.rename(tmp_path / "moved")
            scratch.write_text("in the way")
            yield
            scratch.unlink()
            (tmp_path / "moved").rename(scratch)

        return ObjectsPlace("out", tmp_path, in_the_way())


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with shared_s3(run_directory(tmp_path_factory.getbasetemp())) as server:
            yield server
    except CannotStart as exc:
        pytest.skip(str(exc))


@pytest.mark.deep("the same sink as in files, on a store that passes its own suite")
class TestObjectsInS3(ObjectsSuite):
    secrets = (S3_SECRET,)

    @pytest.fixture(params=["remove", "mark"])
    def place(self, request: pytest.FixtureRequest, s3_server: S3Server, tmp_path: Path) -> Iterator[ObjectsPlace]:
        gate = Gate(int(s3_server.endpoint.rpartition(":")[2]))
        url = s3_server.url(f"sinks/{uuid4().hex}", endpoint=f"http://127.0.0.1:{gate.port}")
        yield ObjectsPlace(url, tmp_path, gate.shut(), deletes=request.param)
        gate.close()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    try:
        server = NatsServer()
    except (OSError, RuntimeError) as exc:
        pytest.skip(f"nats-server does not start here: {exc}")
    yield server
    server.stop()


class NatsPlace:
    """A stream of its own on the server; the test reads by a connection that goes past the gate."""

    def __init__(self, server: NatsServer, gate: Gate, **settings: Any) -> None:
        self.server = server
        self.gate = gate
        self.name = f"books-{uuid4().hex}"
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client: Any = self._run(self._connect())

    def open(self) -> Sink:
        target = {
            "type": "NATS",
            "url": f"nats://127.0.0.1:{self.gate.port}",
            "token": NatsServer.TOKEN,
            "stream": self.name,
            "subject": self.name + ".{tenantId}.{entityType}.{docId}",
            "create": True,
            "timeoutS": 3,
            **self.settings,
        }
        return open_sink(target, environment={})

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        message = self._run(self._newest(f"{self.name}.{document.tenant}.BOOK.{safe_name(document.doc_id)}"))
        return None if message is None or not message.data else json.loads(message.data)

    def broken(self) -> AbstractContextManager[None]:
        return self.gate.shut()

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    async def _connect(self) -> Any:
        import nats

        return await nats.connect(f"nats://127.0.0.1:{self.server.port}", token=NatsServer.TOKEN)

    async def _newest(self, subject: str) -> Any:
        from nats.js.errors import NotFoundError

        try:
            return await self._client.jetstream().get_last_msg(self.name, subject)
        except NotFoundError:
            return None


class TestNats(SinkSuite):
    secrets = (NatsServer.TOKEN,)

    @pytest.fixture
    def place(self, nats_server: NatsServer) -> Iterator[NatsPlace]:
        gate = Gate(nats_server.port)
        place = NatsPlace(nats_server, gate)
        yield place
        place.close()
        gate.close()
