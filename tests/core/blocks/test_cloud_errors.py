"""Each thing a cloud can answer becomes the error a caller can act on."""

from __future__ import annotations

import pytest

from analemma.errors import AnalemmaError, Denied, Invalid, NotFound, OutcomeUnknown, Unavailable
from tests.core.entry_points.blocks import is_transient, translate

exceptions = pytest.importorskip("obstore.exceptions")


def answered(status: int, code: str = "", key: str = "k/x") -> str:
    return (
        f"Generic S3 error: Error performing PUT https://host/bucket/{key}?sig=SECRET in 1ms - Server returned non-2xx "
        f"status code: {status} Something: <Error><Code>{code}</Code><Message>long\ntext</Message></Error>"
    )


NO_ANSWER = (
    "Generic S3 error: Error performing PUT https://host/bucket/k?sig=SECRET in 1ms - HTTP error: error sending request"
)


def test_a_server_that_stumbled_may_have_done_it_and_may_be_asked_again() -> None:
    for status in (408, 409, 429, 500, 502, 503, 504):
        error = translate(exceptions.GenericError(answered(status, "SlowDown")), place="s3://b", key="k", writing=True)
        assert type(error) is OutcomeUnknown and is_transient(error), status
        reading = translate(exceptions.GenericError(answered(status)), place="s3://b", key="k")
        assert type(reading) is Unavailable and is_transient(reading), status


def test_a_write_that_was_never_sent_is_not_in_doubt() -> None:
    refused = exceptions.GenericError(NO_ANSWER + "\nDebug source: HttpError { kind: Connect }")
    assert type(translate(refused, place="s3://b", key="k", writing=True)) is Unavailable
    broken = exceptions.GenericError(NO_ANSWER + "\nDebug source: HttpError { kind: Request }")
    assert type(translate(broken, place="s3://b", key="k", writing=True)) is OutcomeUnknown


LASTING: list[tuple[Exception, type[AnalemmaError]]] = [
    (FileNotFoundError(answered(404, "NoSuchKey")), NotFound),
    (FileNotFoundError(answered(404, "NoSuchBucket")), Unavailable),
    (FileNotFoundError(answered(404, "ContainerNotFound")), Unavailable),
    (FileNotFoundError(answered(404, "NoSuchKey", key="<Code>NoSuchBucket</Code>")), NotFound),
    (exceptions.PermissionDeniedError(answered(403, "SignatureDoesNotMatch")), Denied),
    (exceptions.UnauthenticatedError(answered(401)), Denied),
    (exceptions.GenericError(answered(403, "AccessDenied")), Denied),
    (exceptions.GenericError(answered(301, "PermanentRedirect")), Unavailable),
    (exceptions.GenericError(answered(400, "AuthorizationHeaderMalformed")), Unavailable),
    (exceptions.GenericError(answered(507)), Unavailable),
    (exceptions.InvalidPathError("bad"), Invalid),
    (exceptions.NotSupportedError("no"), Unavailable),
]


def test_what_will_not_pass_by_itself_says_what_to_do() -> None:
    for raised, expected in LASTING:
        error = translate(raised, place="s3://b", key="k/x", writing=True)
        assert type(error) is expected and not is_transient(error), raised
        assert error.hint or expected is NotFound, raised


def test_nothing_of_the_drivers_text_is_repeated() -> None:
    for status in (301, 400, 403, 404, 500, 507):
        text = str(translate(exceptions.GenericError(answered(status, "Code")), place="s3://b", key="k"))
        assert "SECRET" not in text and "\n" not in text
