"""Opens an object store by its URL. Credentials stand in the query or in the environment and are never repeated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from analemma.blocks.local import LocalStore
from analemma.blocks.port import ObjectStore, check_prefix
from analemma.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

    from analemma.blocks.cloud import CloudStore

REQUEST_TIMEOUT_S = 120
CONNECT_TIMEOUT_S = 5
STREAM_RETRIES = 4

_ONCE: RetryConfig = {"max_retries": 0}
_PATIENT: RetryConfig = {"max_retries": STREAM_RETRIES, "retry_timeout": timedelta(minutes=3)}


def open_objects(url: str, *, create: bool = True) -> ObjectStore:
    """The store that a URL or a plain path names; without `create`, a directory is made by the first write.

    `memory://`, `/some/directory`, `file:///some/directory`, `s3://bucket/prefix?endpoint=...&region=...&allow_http=true`,
    `gs://bucket/prefix`, `az://container/prefix?account_name=...`; other query settings are obstore's.
    """
    scheme, separator, rest = url.partition("://")
    if "\0" in unquote(url):
        raise _refused(scheme if separator else "path", "holds a NUL character")
    if not separator:
        if not url:
            raise _refused(url, "is empty")
        return LocalStore(url, create=create)
    # The others are loaded by those who have them.
    if scheme == "memory":
        from analemma.blocks.memory import MemoryStore

        return MemoryStore()
    if scheme == "file":
        if not rest.startswith("/") or "?" in rest or "#" in rest:
            raise _refused(scheme, "needs an absolute path: file:///some/directory")
        return LocalStore(unquote(rest), create=create)
    if scheme in ("s3", "gs", "az"):
        return _open_cloud(scheme, url)
    raise _refused(scheme, "is not memory, file, s3, gs or az")


def _open_cloud(scheme: str, url: str) -> CloudStore:
    from analemma.blocks.cloud import CloudStore

    try:
        parts = urlsplit(url)
    except ValueError:
        # Not the error itself, which may quote a part of the URL.
        raise _refused(scheme, f"looks like {scheme}://bucket/prefix?setting=value") from None
    if "@" in parts.netloc or not parts.netloc or parts.fragment:
        raise _refused(scheme, f"looks like {scheme}://bucket/prefix?setting=value")
    prefix = check_prefix(unquote(parts.path).strip("/"))
    place = f"{scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    settings: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": timedelta(seconds=_seconds(settings.pop("timeout_s", None))),
        "allow_http": settings.pop("allow_http", "false").lower() in ("1", "true", "yes"),
    }
    if settings.get("endpoint", "").startswith("http://") and not options["allow_http"]:
        raise Invalid(f"{place}: the endpoint is not encrypted", hint="use https, or add allow_http=true to the URL")
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as exc:
        raise Unavailable(f"{scheme}:// needs obstore", hint="pip install 'analemma[s3]'") from exc
    build: Callable[..., Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
    common: dict[str, Any] = {"prefix": prefix or None, "config": settings, "client_options": options}
    try:
        client = build(parts.netloc, retry_config=_ONCE, **common)
        patient = build(parts.netloc, retry_config=_PATIENT, **common)
    except Exception as exc:
        # obstore's text may quote a setting's value, so only the names of the settings are shown, and the cause is cut.
        names = ", ".join(sorted(settings)) or "none"
        hint = f"settings given: {names}; see the obstore documentation for their names and values"
        raise Invalid(f"{place}: obstore refuses these settings ({type(exc).__name__})", hint=hint) from None
    return CloudStore(client, patient, place=place, supports_tags=scheme in ("s3", "az"))


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text) if text is not None else REQUEST_TIMEOUT_S
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 3600:
        raise Invalid("timeout_s in an object store URL is not a number of seconds up to 3600")
    return seconds


def _refused(scheme: str, reason: str) -> Invalid:
    return Invalid(f"object store URL {scheme!r} {reason}", hint="for example s3://bucket/prefix?region=eu-central-1")
