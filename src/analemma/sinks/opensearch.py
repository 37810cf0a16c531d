"""A sink that indexes documents in OpenSearch by `_bulk`, with `ship_seq` as external version.

OpenSearch refuses a version that is smaller than what it has (`external_gte`), also from a deleted document, but that
it forgets after `index.gc_deletes`, which is a minute: whoever ships has to remember deletes."""

from __future__ import annotations

import gzip
import re
from collections.abc import Hashable, Sequence
from typing import Any, Final, Self

import orjson
from pydantic import Field

from analemma.errors import Invalid
from analemma.sinks.batching import BatchingSink, Parcel, PlaceIsDown, in_chunks, send_chunks
from analemma.sinks.http import HttpAnswer, HttpClient, host_of, trusting
from analemma.sinks.port import SHIPPED, STALE, Health, Shipped, SinkDocument, one_line, refused, retry
from analemma.sinks.settings import HttpUrl, Route, Secret, SinkContext, SinkSettings, TemplateText, Text, TimeoutS

MOST_ID_BYTES: Final = 512
# What OpenSearch asks of the name of an index.
_INDEX: Final = re.compile(r"[^\\/*?\"<>| ,#:\sA-Z_+.-][^\\/*?\"<>| ,#:\sA-Z]{0,254}")


class OpenSearchSettings(SinkSettings):
    """Settings of OPENSEARCH sinks."""

    url: HttpUrl = Field(description="The server, as `https://host:9200`.")
    index: TemplateText = Field(description="The index. In it, `{entityType}` becomes lower case.")
    username: Text | None = Field(None, description="For basic authentication, with `password`.")
    password: Secret | None = Field(None, description="For basic authentication, with `username`.")
    bearer_token: Secret | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    ca_file: Text | None = Field(None, description="Certificates to trust instead of the usual ones, as PEM.")
    verify_tls: bool = Field(True, description="Check the server's certificate.")
    allow_http: bool = Field(False, description="Allow `http://` to other machines.")
    gzip: bool = Field(False, description="Compress requests.")
    most_documents: int = Field(1000, ge=1, le=10_000, description="Documents per request, at most.")
    most_bytes: int = Field(
        10 << 20, ge=1024, le=100 << 20, description="Bytes per request; a larger document goes alone."
    )
    timeout_s: TimeoutS = Field(30, description="How long a request may take.")


class OpenSearchSink(BatchingSink):
    """Indexes and deletes; the answer is read item by item."""

    settings_class = OpenSearchSettings
    guards = True

    def __init__(self, settings: OpenSearchSettings, context: SinkContext) -> None:
        super().__init__()
        self._route = Route(settings.index, lower_case_type=True)
        self._settings = settings
        self._url = settings.url.rstrip("/")
        self._client = HttpClient(
            host_of(settings.url, allow_http=settings.allow_http),
            timeout_s=settings.timeout_s,
            clock=context.clock,
            verify=trusting(settings.ca_file, context.base) if settings.verify_tls else False,
            auth=_basic(settings),
            headers=_bearer(settings),
        )

    @classmethod
    def open(cls, settings: OpenSearchSettings, context: SinkContext) -> Self:
        return cls(settings, context)

    def refuse(self, parcel: Parcel) -> str | None:
        size = len(parcel.document.doc_id.encode())
        if size > MOST_ID_BYTES:
            return f"the document's id has {size} bytes, and OpenSearch allows {MOST_ID_BYTES}"
        reason = self._route.why_not(parcel.document)
        if reason is None and not _INDEX.fullmatch(index := self._route.place(parcel.document)):
            reason = f"{index!a} cannot be the name of an index, which is lower case"
        return reason

    def identity(self, document: SinkDocument) -> Hashable:
        return self._route.identity(document)

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        most, most_bytes = self._settings.most_documents, self._settings.most_bytes
        return send_chunks(in_chunks(parcels, most=most, most_bytes=most_bytes), self._send_bulk)

    def check_health(self) -> Health:
        answer = self._client.request("GET", f"{self._url}/")
        if isinstance(answer, Shipped):
            return Health(False, answer.reason or "")
        return Health(answer.status == 200, answer.reason if answer.status != 200 else f"{self._client.place} answers")

    def release(self) -> None:
        self._client.close()

    def _send_bulk(self, parcels: Sequence[Parcel]) -> list[Shipped] | Shipped:
        content = bulk_body(parcels, [self._route.place(parcel.document) for parcel in parcels])
        headers = {"content-type": "application/x-ndjson"}
        if self._settings.gzip:
            content = gzip.compress(content, 6, mtime=0)
            headers["content-encoding"] = "gzip"
        answer = self._client.request("POST", f"{self._url}/_bulk", content=content, headers=headers)
        if isinstance(answer, Shipped):
            raise PlaceIsDown(answer)
        return self._read(answer, parcels)

    def _read(self, answer: HttpAnswer, parcels: Sequence[Parcel]) -> list[Shipped] | Shipped:
        wait_s = self._client.asked_to_wait_s(answer)
        if answer.status in (400, 413):
            # One document is enough for that; the others are tried without it.
            return refused(f"OpenSearch: {answer.reason}")
        if answer.status != 200:
            # Whatever it is, it is not about single documents: those are items of an answer with status 200.
            raise PlaceIsDown(retry(f"OpenSearch: {answer.reason}", wait_s))
        try:
            items = orjson.loads(answer.body)["items"]
            if len(items) != len(parcels):
                raise ValueError("another number of items than was sent")
            return [_read_item(item, parcel, wait_s) for item, parcel in zip(items, parcels, strict=True)]
        except (ValueError, KeyError, TypeError, AttributeError):
            return retry(f"{self._client.place} does not answer as OpenSearch does")


def bulk_body(parcels: Sequence[Parcel], indexes: Sequence[str]) -> bytes:
    """The lines of a `_bulk` request."""
    lines: list[bytes] = []
    for parcel, index in zip(parcels, indexes, strict=True):
        document = parcel.document
        what = {
            "_index": index,
            "_id": document.doc_id,
            "version": document.ship_seq,
            "version_type": "external_gte",
        }
        lines.append(orjson.dumps({"delete" if parcel.body is None else "index": what}))
        if parcel.body is not None:
            lines.append(parcel.body)
    return b"\n".join(lines) + b"\n"


def _read_item(item: dict[str, Any], parcel: Parcel, wait_s: float | None) -> Shipped:
    [(action, found)] = item.items()
    if found["_id"] != parcel.document.doc_id:
        raise ValueError("the items are in another order than was sent")
    status = found["status"]
    if status in (200, 201) or (status == 404 and action == "delete"):
        return SHIPPED
    if status == 409:
        return STALE
    error = found.get("error")
    text = error if isinstance(error, str) else orjson.dumps(error).decode()
    reason = one_line(f"OpenSearch: status {status}: {text}")
    # 404 is an index that is not there, and 403 often one that is full and read-only: not the document's fault.
    if status in (401, 403, 404, 408, 429) or status >= 500:
        return retry(reason, wait_s)
    return refused(reason)


def _basic(settings: OpenSearchSettings) -> tuple[str, str] | None:
    if (settings.username is None) != (settings.password is None):
        raise Invalid("basic authentication needs both username and password", hint="give both, or neither")
    if settings.username is None or settings.password is None:
        return None
    if settings.bearer_token is not None:
        raise Invalid("there is a password and a bearerToken", hint="give one of the two")
    return settings.username, settings.password.get_secret_value()


def _bearer(settings: OpenSearchSettings) -> dict[str, str]:
    token = settings.bearer_token
    return {} if token is None else {"authorization": f"Bearer {token.get_secret_value()}"}
