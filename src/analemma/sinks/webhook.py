"""A sink that posts documents to a URL, signed, so that the receiver can tell who sent them, when, and unchanged.

`X-Analemma-Signature` is `v1=` and the hexadecimal HMAC-SHA256, by the secret, of the timestamp, a dot and the body. A
receiver checks it, refuses timestamps that are too old, and compares `shipSeq` with what it has."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, Final, Literal, Self

import orjson
from pydantic import Field

from analemma.errors import Invalid
from analemma.sinks.batching import BatchingSink, Parcel, PlaceIsDown, in_chunks, send_chunks
from analemma.sinks.http import HttpAnswer, HttpClient, host_of, trusting
from analemma.sinks.port import SHIPPED, STALE, Health, Outcome, Shipped, one_line, refused, retry
from analemma.sinks.settings import HttpUrl, Secret, SinkContext, SinkSettings, Text, TimeoutS

_LEAVE_ALONE: Final = ("host", "content-length", "content-type", "transfer-encoding", "connection")


class WebhookSettings(SinkSettings):
    """Settings of WEBHOOK sinks."""

    # Not shown: many such URLs have a key in them.
    url: HttpUrl = Field(description="Where documents are posted to.", repr=False)
    secret: Secret = Field(description="The key of the signatures, which the receiver has too.")
    mode: Literal["single", "batch"] = Field("single", description="One document per request, or many.")
    headers: dict[str, Secret] = Field({}, description="Further headers, as for authentication.")
    ca_file: Text | None = Field(None, description="Certificates to trust instead of the usual ones, as PEM.")
    allow_http: bool = Field(False, description="Allow `http://` to other machines.")
    most_documents: int = Field(100, ge=1, le=10_000, description="Documents per request in batch mode, at most.")
    most_bytes: int = Field(
        1 << 20, ge=1024, le=100 << 20, description="Bytes per request in batch mode; a larger document goes alone."
    )
    timeout_s: TimeoutS = Field(10, description="How long a request may take.")


class WebhookSink(BatchingSink):
    """Posts; what the receiver answers is what became of a document."""

    settings_class = WebhookSettings

    def __init__(self, settings: WebhookSettings, context: SinkContext) -> None:
        super().__init__()
        self._settings = settings
        self._clock = context.clock
        self._client = HttpClient(
            host_of(settings.url, allow_http=settings.allow_http),
            timeout_s=settings.timeout_s,
            clock=context.clock,
            verify=trusting(settings.ca_file, context.base),
            headers=_headers(settings),
        )

    @classmethod
    def open(cls, settings: WebhookSettings, context: SinkContext) -> Self:
        return cls(settings, context)

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        if self._settings.mode == "single":
            return send_chunks(([parcel] for parcel in parcels), self._send_one)
        most, most_bytes = self._settings.most_documents, self._settings.most_bytes
        return send_chunks(in_chunks(parcels, most=most, most_bytes=most_bytes), self._send_together)

    def check_health(self) -> Health:
        """Post an empty, signed body with `X-Analemma-Event: health`: any 2xx answer is a good one."""
        answer = self._post(b"{}", event="health", delivery="health")
        if isinstance(answer, Shipped):
            return Health(False, answer.reason or "")
        is_healthy = 200 <= answer.status < 300
        return Health(is_healthy, f"{self._client.place} answers" if is_healthy else answer.reason)

    def release(self) -> None:
        self._client.close()

    def _send_one(self, parcels: Sequence[Parcel]) -> Shipped:
        return self._read_status(self._post(_told(parcels[0]), event="document", delivery=_delivery(parcels)))

    def _send_together(self, parcels: Sequence[Parcel]) -> list[Shipped] | Shipped:
        body = b'{"documents":[%s]}' % b",".join([_told(parcel) for parcel in parcels])
        found = self._post(body, event="documents", delivery=_delivery(parcels))
        answer = self._read_status(found)
        if isinstance(found, Shipped) or answer is not SHIPPED:
            return answer
        return _read_answers(found.body, len(parcels)) or [SHIPPED] * len(parcels)

    def _post(self, body: bytes, *, event: str, delivery: str) -> HttpAnswer | Shipped:
        timestamp = str(self._clock.now_us() // 1_000_000)
        headers = {
            "content-type": "application/json",
            "x-analemma-event": event,
            "x-analemma-delivery": delivery,
            "x-analemma-timestamp": timestamp,
            "x-analemma-signature": sign(self._settings.secret.get_secret_value(), timestamp, body),
        }
        return self._client.request("POST", self._settings.url, content=body, headers=headers)

    def _read_status(self, answer: HttpAnswer | Shipped) -> Shipped:
        if isinstance(answer, Shipped):
            raise PlaceIsDown(answer)
        status = answer.status
        if 200 <= status < 300:
            return SHIPPED
        if status == 409:
            return STALE
        if 300 <= status < 400:
            return retry(f"{self._client.place} redirects, and redirects are not followed: HTTP status {status}")
        # A key or an address that is wrong is not the document's fault.
        if status in (401, 403, 404, 405, 408, 425, 429) or status >= 500:
            later = retry(f"the webhook: {answer.reason}", self._client.asked_to_wait_s(answer))
            if later.after_s is not None:
                raise PlaceIsDown(later)
            return later
        return refused(f"the webhook: {answer.reason}")


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """What `X-Analemma-Signature` is for a body; receivers compute the same, and compare by `hmac.compare_digest`."""
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={digest.hexdigest()}"


def _told(parcel: Parcel) -> bytes:
    document = parcel.document
    facts = orjson.dumps(
        {
            "docId": document.doc_id,
            "shipSeq": document.ship_seq,
            "op": "delete" if parcel.body is None else "upsert",
            "tenantId": document.tenant,
            "entityKey": document.entity_key,
            "version": str(document.version),
        }
    )
    return facts[:-1] + b',"body":' + (parcel.body or b"null") + b"}"


def _delivery(parcels: Sequence[Parcel]) -> str:
    """The same whenever the same states are sent."""
    digest = hashlib.sha256()
    for parcel in parcels:
        digest.update(orjson.dumps([parcel.document.doc_id, parcel.document.ship_seq]))
    return digest.hexdigest()[:32]


def _read_answers(body: bytes, count: int) -> list[Shipped] | None:
    """What a receiver of batches may answer with, `{"answers": [{"outcome": "stale"}, ...]}`; None if it did not."""
    try:
        answers = orjson.loads(body)["answers"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(answers, list) or len(answers) != count:
        return [retry("the webhook answered for another number of documents than it got")] * count
    return [_read_answer(answer) for answer in answers]


def _read_answer(answer: Any) -> Shipped:
    try:
        outcome = Outcome(answer["outcome"])
    except (ValueError, KeyError, TypeError):
        return retry("the webhook gave an answer that cannot be read")
    reason = answer.get("reason")
    after_s = answer.get("afterS")
    return Shipped(
        outcome,
        one_line(reason) if isinstance(reason, str) else None,
        float(after_s) if type(after_s) in (int, float) and 0 <= after_s <= 3600 else None,
    )


def _headers(settings: WebhookSettings) -> dict[str, str]:
    headers = {name.lower(): value.get_secret_value() for name, value in settings.headers.items()}
    for name, value in headers.items():
        if name in _LEAVE_ALONE or name.startswith("x-analemma-"):
            raise Invalid(f"the header {name} is the sink's own", hint="leave it out")
        if not name.isascii() or not value.isascii() or any(ord(each) < 32 for each in name + value):
            raise Invalid(f"the header {name!a} is not ASCII text", hint="encode what it says")
    return headers
