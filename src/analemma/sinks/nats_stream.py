"""A sink that publishes documents to a NATS JetStream stream.

With `{docId}` in the subject, each document has a subject of its own, and its newest message says which `ship_seq` the
stream has. A message is published on condition that this is still the newest, so the stream never goes backwards, and
a delete is a message like any other. A stream that keeps one message per subject is then a table of documents."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import AfterValidator, Field

from analemma.contracts.templates import Template, parse_template
from analemma.errors import Invalid, Unavailable
from analemma.sinks.batching import BatchingSink, Parcel, PlaceIsDown
from analemma.sinks.naming import safe_name
from analemma.sinks.port import SHIPPED, STALE, Health, Shipped, SinkDocument, refused, retry
from analemma.sinks.settings import Secret, SinkContext, SinkSettings, Text, TimeoutS

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

SHIP_SEQ_HEADER: Final = "Analemma-Ship-Seq"
DOC_ID_HEADER: Final = "Analemma-Doc-Id"
OPERATION_HEADER: Final = "Analemma-Op"
_MESSAGE_ID: Final = "Nats-Msg-Id"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_WRONG_LAST_SEQUENCE: Final = (10071, 10164)
_AT_ONCE: Final = 64
_TRIES: Final = 5


def _checked_subject(text: str) -> str:
    template = parse_template(text, ("tenantId", "entityType", "docId"))
    sample = template.render({"tenantId": "x", "entityType": "x", "docId": "x"})
    if any(not part or any(each.isspace() or each in "*>" for each in part) for part in sample.split(".")):
        raise ValueError("is no subject: parts between dots, without spaces, `*` and `>`")
    return text


class NatsSettings(SinkSettings):
    """Settings of NATS sinks."""

    url: Secret = Field(description="The server, as `nats://host:4222`; several with commas between.")
    stream: Text = Field(description="The stream that takes the subjects.")
    subject: Annotated[Text, AfterValidator(_checked_subject)] = Field(
        "analemma.{tenantId}.{entityType}.{docId}",
        description="The subject, with `{docId}` too; without it, the sink does not guard.",
    )
    token: Secret | None = Field(None, description="For authentication by token.")
    credentials: Text | None = Field(None, description="A file of credentials.")
    create: bool = Field(False, description="Make the stream if it is not there, with one message per subject.")
    timeout_s: TimeoutS = Field(10, description="How long to wait for the server.")


class NatsSink(BatchingSink):
    """Publishes from a thread of its own, many messages at once."""

    settings_class = NatsSettings

    def __init__(self, settings: NatsSettings, context: SinkContext) -> None:
        super().__init__()
        try:
            import nats
        except ModuleNotFoundError as exc:
            raise Unavailable("NATS needs nats-py", hint="pip install 'analemma[nats]'") from exc
        if "." in settings.stream or any(each.isspace() or each in "*>/\\" for each in settings.stream):
            raise Invalid(f"not the name of a stream: {settings.stream!r}", hint="use letters, digits, '-' and '_'")
        self._nats = nats
        self._settings = settings
        self._credentials = None if settings.credentials is None else str(context.base / settings.credentials)
        self._subject: Template = parse_template(settings.subject, ("tenantId", "entityType", "docId"))
        self.guards = self.remembers_deletes = "docId" in self._subject.placeholders
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._connecting: asyncio.Lock | None = None

    @classmethod
    def open(cls, settings: NatsSettings, context: SinkContext) -> Self:
        return cls(settings, context)

    def identity(self, document: SinkDocument) -> Hashable:
        return document.doc_id, self.subject_of(document)

    def subject_of(self, document: SinkDocument) -> str:
        """The subject of a document; each placeholder is one part of it."""
        values = {"tenantId": document.tenant, "entityType": document.entity_type, "docId": document.doc_id}
        return self._subject.render({name: safe_name(value) for name, value in values.items()})

    def refuse(self, parcel: Parcel) -> str | None:
        if any(not part for part in self.subject_of(parcel.document).split(".")):
            return "the subject would have an empty part"
        return None

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        # Each request has its own timeout; this one is for a loop that hangs.
        longest_s = self._settings.timeout_s * (2 + 2 * _TRIES + len(parcels) // _AT_ONCE)
        found: list[Shipped] | Shipped = self._run(self._publish_all(parcels), longest_s)
        return [found] * len(parcels) if isinstance(found, Shipped) else found

    def check_health(self) -> Health:
        answer: Health | Shipped = self._run(self._look(), self._settings.timeout_s * 3)
        return Health(False, answer.reason or "") if isinstance(answer, Shipped) else answer

    def release(self) -> None:
        with self._starting:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(self._settings.timeout_s)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _run(self, coroutine: Any, longest_s: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._started_loop())
        try:
            return future.result(longest_s)
        except FutureTimeout:
            future.cancel()
            return retry("NATS did not answer in time")

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="analemma-nats", daemon=True)
                self._thread.start()
            return self._loop

    async def _publish_all(self, parcels: Sequence[Parcel]) -> list[Shipped] | Shipped:
        try:
            stream = await self._connected()
        except Exception as exc:
            # The client raises all sorts of things for addresses and files that are wrong.
            return retry(f"NATS cannot be reached ({type(exc).__name__})")
        at_once = asyncio.Semaphore(_AT_ONCE)
        down: Shipped | None = None

        async def publish(parcel: Parcel) -> Shipped:
            nonlocal down
            async with at_once:
                if down is None:
                    try:
                        return await self._publish(stream, parcel)
                    except PlaceIsDown as exc:
                        down = exc.answer
                return down

        return list(await asyncio.gather(*(publish(parcel) for parcel in parcels)))

    async def _publish(self, stream: JetStreamContext, parcel: Parcel) -> Shipped:
        try:
            for _ in range(_TRIES):
                answer = await self._publish_once(stream, parcel)
                if answer is not None:
                    return answer
            return retry("others keep writing to the same document")
        except self._nats.errors.MaxPayloadError:
            return refused(f"the body has {len(parcel.body or b'')} bytes, more than the server allows")
        except self._nats.js.errors.NoStreamResponseError:
            return retry(f"no stream takes the subject of this document; {self._settings.stream} should")
        except self._nats.js.errors.APIError as exc:
            return retry(f"NATS: {exc.description} ({exc.err_code})")
        except (TimeoutError, self._nats.errors.Error, OSError) as exc:
            raise PlaceIsDown(retry(f"NATS did not answer ({type(exc).__name__})")) from exc

    async def _publish_once(self, stream: JetStreamContext, parcel: Parcel) -> Shipped | None:
        """None: someone else published to the subject since it was looked at."""
        document = parcel.document
        subject = self.subject_of(document)
        name = safe_name(document.doc_id)
        headers = {
            _MESSAGE_ID: message_id(subject, parcel),
            SHIP_SEQ_HEADER: str(document.ship_seq),
            DOC_ID_HEADER: name,
            OPERATION_HEADER: "delete" if parcel.body is None else "upsert",
        }
        newest = document.ship_seq
        if self.guards:
            place, newest = await self._newest(stream, subject)
            if newest > document.ship_seq:
                return STALE
            headers[_EXPECTED] = str(place)
        body = parcel.body or b""
        options: dict[str, Any] = {"timeout": self._settings.timeout_s, "stream": self._settings.stream}
        try:
            found = await stream.publish(subject, body, headers=headers, **options)
            if found.duplicate and newest < document.ship_seq:
                # The stream has seen it, and has it no more: it was purged, perhaps, and is to be filled again.
                del headers[_MESSAGE_ID]
                await stream.publish(subject, body, headers=headers, **options)
        except self._nats.js.errors.APIError as exc:
            if exc.err_code in _WRONG_LAST_SEQUENCE:
                return None
            raise
        return SHIPPED

    async def _newest(self, stream: JetStreamContext, subject: str) -> tuple[int, int]:
        """Where in the stream the subject's newest message is, and its `ship_seq`; (0, -1) if there is none."""
        try:
            found = await stream.get_last_msg(self._settings.stream, subject)
        except self._nats.js.errors.NotFoundError as exc:
            if exc.err_code == 10037:
                return 0, -1
            raise
        text = (found.headers or {}).get(SHIP_SEQ_HEADER, "")
        return found.seq or 0, int(text) if text.isascii() and text.isdigit() else -1

    async def _look(self) -> Health | Shipped:
        try:
            stream = await self._connected()
            info = await stream.stream_info(self._settings.stream)
        except self._nats.js.errors.APIError as exc:
            return Health(False, f"the stream {self._settings.stream}: {exc.description}")
        except Exception as exc:
            return Health(False, f"NATS cannot be reached ({type(exc).__name__})")
        return Health(True, f"the stream {self._settings.stream} has {info.state.messages} messages")

    async def _connected(self) -> JetStreamContext:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            client = self._client
            if client is None or not client.is_connected:
                await self._disconnect()
                client = self._client = await self._connect()
                if self._settings.create:
                    await self._make_stream(client.jetstream(timeout=self._settings.timeout_s))
        return client.jetstream(timeout=self._settings.timeout_s)

    async def _connect(self) -> Client:
        async def ignore(_: Exception) -> None:
            """What fails is answered for where it fails; the client would log it with the server's address."""

        options: dict[str, Any] = {
            "servers": self._settings.url.get_secret_value().split(","),
            "connect_timeout": max(1, int(self._settings.timeout_s)),
            # Whoever ships tries again; the client would go on for two minutes.
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0.1,
            "error_cb": ignore,
            "name": "analemma",
        }
        if self._settings.token is not None:
            options["token"] = self._settings.token.get_secret_value()
        if self._credentials is not None:
            options["user_credentials"] = self._credentials
        from nats.aio.client import Client

        client = Client()
        try:
            await asyncio.wait_for(client.connect(**options), self._settings.timeout_s)
        except BaseException:
            # A server that hangs up while it is greeted leaves a connection half made.
            with contextlib.suppress(Exception):
                await client.close()
            raise
        return client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None and not client.is_closed:
            await client.close()

    async def _make_stream(self, stream: JetStreamContext) -> None:
        subject = self._subject.render(dict.fromkeys(self._subject.placeholders, "*"))
        try:
            await stream.stream_info(self._settings.stream)
        except self._nats.js.errors.NotFoundError:
            await stream.add_stream(
                name=self._settings.stream, subjects=[subject], max_msgs_per_subject=1 if self.guards else -1
            )


def message_id(subject: str, parcel: Parcel) -> str:
    """The same whenever the same state is published to the same subject. A stream compares ids whatever their subjects
    are, and drops what it has seen: so two rules, tenants or bodies must never have one in common."""
    document = parcel.document
    digest = hashlib.sha256(subject.encode() + (b"\n-" if parcel.body is None else b"\n+" + parcel.body))
    return f"{safe_name(document.doc_id)}:{document.ship_seq}:{digest.hexdigest()[:32]}"
