"""A sink that keeps items, users or interactions of Amazon Personalize current, through botocore, which signs requests.

Personalize has no versions and no deletes: whoever ships has to see to the order, and a deleted item can only be
marked, for filters to leave out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Self

import orjson
from pydantic import Field

from analemma.errors import Invalid, Unavailable
from analemma.sinks.batching import BatchingSink, Parcel, PlaceIsDown, send_chunks
from analemma.sinks.port import SHIPPED, Health, Shipped, refused, retry
from analemma.sinks.settings import HttpUrl, Secret, SinkContext, SinkSettings, Text, TimeoutS

MOST_PER_REQUEST: Final = 10
LONGEST_ID: Final = 256
LONGEST_PROPERTIES: Final = {"items": 32_000, "users": 24_000, "interactions": 1024}
"""Characters of JSON."""
_EVENT_KEYS: Final = ("userId", "sessionId", "eventType", "sentAt")


class PersonalizeSettings(SinkSettings):
    """Settings of PERSONALIZE sinks."""

    dataset: Literal["items", "users", "interactions"] = Field(description="What the documents are.")
    dataset_arn: Text | None = Field(None, description="The dataset, of items and users.")
    tracking_id: Text | None = Field(None, description="The event tracker, of interactions.")
    region: Text = Field(description="The AWS region.")
    deleted_property: Text | None = Field(
        None, description="A property that is set to true for what is deleted; without it, deletes are refused."
    )
    access_key_id: Text | None = Field(None, description="Without it, credentials are found as AWS tools find them.")
    secret_access_key: Secret | None = Field(None, description="Belongs to `accessKeyId`.")
    session_token: Secret | None = Field(None, description="Of temporary credentials.")
    endpoint_url: HttpUrl | None = Field(None, description="Another endpoint than the region's.")
    timeout_s: TimeoutS = Field(10, description="How long a request may take.")


class PersonalizeSink(BatchingSink):
    """Puts up to ten documents per request."""

    settings_class = PersonalizeSettings

    def __init__(self, settings: PersonalizeSettings) -> None:
        super().__init__()
        try:
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
            from botocore.utils import parse_to_aware_datetime
        except ModuleNotFoundError as exc:
            raise Unavailable("Personalize needs botocore", hint="pip install 'analemma[aws]'") from exc
        self._settings = settings
        self._read_time: Callable[[Any], object] = parse_to_aware_datetime
        self._client_error, self._invalid, self._failed = ClientError, ParamValidationError, BotoCoreError
        secret, token = settings.secret_access_key, settings.session_token
        self._session: Any = botocore.session.get_session()
        self._client: Any = self._session.create_client(
            "personalize-events",
            region_name=settings.region,
            endpoint_url=settings.endpoint_url,
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=None if secret is None else secret.get_secret_value(),
            aws_session_token=None if token is None else token.get_secret_value(),
            # Trying again is the business of whoever ships.
            config=Config(
                connect_timeout=settings.timeout_s,
                read_timeout=settings.timeout_s,
                retries={"total_max_attempts": 1, "mode": "standard"},
            ),
        )

    @classmethod
    def open(cls, settings: PersonalizeSettings, context: SinkContext) -> Self:
        needed, name = (
            (settings.tracking_id, "trackingId")
            if settings.dataset == "interactions"
            else (settings.dataset_arn, "datasetArn")
        )
        if needed is None:
            raise Invalid(
                f"a sink of {settings.dataset} needs {name}", hint="give it in the rule's config", pointer=f"/{name}"
            )
        if (settings.access_key_id is None) != (settings.secret_access_key is None):
            raise Invalid("accessKeyId and secretAccessKey belong together", hint="give both, or neither")
        return cls(settings)

    def refuse(self, parcel: Parcel) -> str | None:
        dataset, document = self._settings.dataset, parcel.document
        if len(document.doc_id) > LONGEST_ID:
            return f"the document's id has more than {LONGEST_ID} characters"
        if parcel.body is None and (dataset == "interactions" or self._settings.deleted_property is None):
            return "Personalize cannot delete; the setting deletedProperty marks deleted items and users"
        if dataset == "interactions":
            return _why_no_event(document.body or {}, self._read_time)
        if len(self._properties(parcel)) > LONGEST_PROPERTIES[dataset]:
            return f"the body has more than the {LONGEST_PROPERTIES[dataset]} characters that Personalize allows"
        return None

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        requests = self._requests(parcels)
        found = send_chunks(([parcels[position] for position in positions] for positions in requests), self._put)
        answers = dict(zip([position for positions in requests for position in positions], found, strict=True))
        return [answers[position] for position in range(len(parcels))]

    def check_health(self) -> Health:
        """Whether there are credentials; Personalize has nothing that could be asked without writing."""
        if self._settings.access_key_id is not None:
            return Health(True, "there are AWS credentials in the settings")
        try:
            found = self._session.get_credentials()
        except self._failed as exc:
            return Health(False, f"no AWS credentials ({type(exc).__name__})")
        return Health(found is not None, "no AWS credentials were found" if found is None else "AWS credentials found")

    def release(self) -> None:
        self._client.close()

    def _requests(self, parcels: Sequence[Parcel]) -> list[list[int]]:
        """Which documents go together: ten, and interactions only with others of the same user and session."""
        groups: dict[tuple[str, str], list[int]] = {}
        for position, parcel in enumerate(parcels):
            body = parcel.document.body or {}
            events = self._settings.dataset == "interactions"
            key = (str(body["userId"]), str(body["sessionId"])) if events else ("", "")
            groups.setdefault(key, []).append(position)
        return [
            positions[start : start + MOST_PER_REQUEST]
            for positions in groups.values()
            for start in range(0, len(positions), MOST_PER_REQUEST)
        ]

    def _put(self, parcels: Sequence[Parcel]) -> list[Shipped] | Shipped:
        try:
            self._call(parcels)
        except self._invalid:
            return refused("botocore refuses the document as it is")
        except self._client_error as exc:
            facts = exc.response
            code = facts.get("Error", {}).get("Code", "")
            status = facts.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            reason = f"Personalize: {code} ({status}): {facts.get('Error', {}).get('Message', '')}"
            # Only this one is about the documents; it does not say which.
            return refused(reason) if code in ("InvalidInputException", "ValidationException") else retry(reason)
        except self._failed as exc:
            raise PlaceIsDown(retry(f"Personalize cannot be reached ({type(exc).__name__})")) from exc
        return [SHIPPED] * len(parcels)

    def _call(self, parcels: Sequence[Parcel]) -> None:
        settings = self._settings
        if settings.dataset == "interactions":
            first = parcels[0].document.body or {}
            self._client.put_events(
                trackingId=settings.tracking_id,
                userId=str(first["userId"]),
                sessionId=str(first["sessionId"]),
                eventList=[_event(parcel) for parcel in parcels],
            )
            return
        named, put = (
            ("itemId", self._client.put_items) if settings.dataset == "items" else ("userId", self._client.put_users)
        )
        entries = [{named: parcel.document.doc_id, "properties": self._properties(parcel)} for parcel in parcels]
        put(datasetArn=settings.dataset_arn, **{settings.dataset: entries})

    def _properties(self, parcel: Parcel) -> str:
        if parcel.body is None:
            return orjson.dumps({self._settings.deleted_property: True}).decode()
        return parcel.body.decode()


def _event(parcel: Parcel) -> dict[str, Any]:
    document = parcel.document
    body = document.body or {}
    identity = hashlib.sha256(orjson.dumps([document.doc_id, document.ship_seq])).hexdigest()
    event: dict[str, Any] = {"eventId": identity, "eventType": str(body["eventType"]), "sentAt": body["sentAt"]}
    if "itemId" in body:
        event["itemId"] = str(body["itemId"])
    if "eventValue" in body:
        event["eventValue"] = float(body["eventValue"])
    if "properties" in body:
        event["properties"] = orjson.dumps(body["properties"]).decode()
    return event


def _why_no_event(body: Any, read_time: Callable[[Any], object]) -> str | None:
    missing = [key for key in _EVENT_KEYS if body.get(key) in (None, "")]
    if missing:
        return f"an interaction has no {missing[0]}"
    for key in ("userId", "sessionId", "eventType", "itemId"):
        if len(str(body.get(key, ""))) > LONGEST_ID:
            return f"the interaction's {key} has more than {LONGEST_ID} characters"
    try:
        if type(body["sentAt"]) not in (int, float, str):
            raise TypeError("neither a number nor text")
        read_time(body["sentAt"])
    except Exception:
        # As botocore reads it when it writes the request, which one event out of range would be the end of.
        return "the interaction's sentAt is no time"
    if type(body.get("eventValue", 0)) not in (int, float):
        return "the interaction's eventValue is no number"
    if "properties" in body and len(orjson.dumps(body["properties"]).decode()) > LONGEST_PROPERTIES["interactions"]:
        return f"the interaction's properties have more than {LONGEST_PROPERTIES['interactions']} characters"
    return None
