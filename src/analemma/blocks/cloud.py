"""Objects in S3 (and what speaks its protocol), Google Cloud Storage or Azure, through obstore.

Requests are made once: trying again is the business of `hardened.Hardened`, which can tell a lost answer from a
conflict. Streams are the exception, because nobody can replay them: obstore retries their parts, pages and pieces.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from analemma.blocks.port import (
    ObjectInfo,
    ObjectStore,
    Pieces,
    Ranges,
    check_key,
    check_prefix,
    missing,
    no_store,
    quote_metadata,
    short_read,
)
from analemma.errors import AnalemmaError, Corrupt, Denied, Invalid, NotFound, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, UpdateVersion
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

    Client = S3Store | GCSStore | AzureStore

REQUEST_TIMEOUT_S = 120
CONNECT_TIMEOUT_S = 5
STREAM_RETRIES = 4
PART_BYTES = 16 << 20
"""S3 allows 10,000 parts: streams of up to 160 GB."""
PARTS_AT_ONCE = 3
READ_CHUNK_BYTES = 8 << 20
LARGEST_TO_TAG_BYTES = 64 << 20
_LIST_PAGE = 1000
_DELETE_BATCH = 1000
_RANGE_PAST_END = 416

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\"code\": ?\"?(\w{1,64})")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_NEVER_SENT = re.compile(r"kind: (Connect|Builder)|dns error")
_TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
_SEARCHED_CHARACTERS = 4000
_ONCE: RetryConfig = {"max_retries": 0}
_PATIENT: RetryConfig = {"max_retries": STREAM_RETRIES, "retry_timeout": timedelta(minutes=3)}


def open_bucket(scheme: str, url: str) -> CloudStore:
    """The store at `s3://`, `gs://` or `az://`, without a request to it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # Not the error itself, which may quote a part of the URL.
        raise no_store(scheme, f"looks like {scheme}://bucket/prefix?setting=value") from None
    if "@" in parts.netloc or not parts.netloc or parts.fragment:
        raise no_store(scheme, f"looks like {scheme}://bucket/prefix?setting=value")
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


class CloudStore(ObjectStore):
    """An object store in a bucket, or below a prefix of one."""

    def __init__(self, client: Client, patient: Client, *, place: str, supports_tags: bool) -> None:
        """`client` makes each request once, `patient` retries; `place` names the store without secrets."""
        import obstore  # An optional dependency: whoever built the clients has it.

        self.place = place
        self.supports_tags = supports_tags
        """Whether `tag` does anything here."""
        self._obstore = obstore
        self._client = client
        self._patient = patient
        self._closed = False

    def __repr__(self) -> str:
        return f"CloudStore({self.place!r})"

    def _write(self, key: str, chunks: Iterable[bytes], metadata: dict[str, str], *, if_absent: bool) -> bool:
        attributes = _attributes(metadata)
        if isinstance(chunks, list):
            # One request, not parts: only a single request can be conditional, and the wrapper retries it.
            with self._translating(key, writing=True):
                try:
                    mode = "create" if if_absent else "overwrite"
                    self._put(self._client, key, b"".join(chunks), attributes=attributes, mode=mode)
                    return True
                except self._obstore.exceptions.AlreadyExistsError:
                    return False
        failure: list[Exception] = []
        source = _noting(chunks, failure)
        first = bytearray()
        while len(first) < PART_BYTES and (chunk := next(source, None)) is not None:
            first += chunk
        with self._translating(key, writing=True, failure=failure):
            if len(first) < PART_BYTES:
                self._put(self._patient, key, bytes(first), attributes=attributes)
            else:
                self._obstore.put(
                    self._patient,
                    key,
                    itertools.chain([bytes(first)], source),
                    attributes=attributes,
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
        return True

    def _put(self, client: Client, key: str, data: bytes, **options: Any) -> None:
        self._obstore.put(client, key, data, use_multipart=False, **options)

    def _replace(self, key: str, data: bytes, expected: bytes) -> bytes | None:
        try:
            with self._translating(key):
                found = self._obstore.get(self._client, key)
                held, meta, attributes = bytes(found.bytes()), found.meta, found.attributes
        except NotFound:
            return None
        if held != expected:
            return held
        with self._translating(key, writing=True):
            try:
                self._put(self._client, key, data, attributes=attributes, mode=_version(meta))
                return held
            except (self._obstore.exceptions.PreconditionError, FileNotFoundError):
                pass
        # Of two requests that meet, some stores refuse both; what is there now says whether ours was one too many.
        now = self.get(key)
        return now if now == data else None

    def _read(self, key: str, ranges: Ranges | None) -> Pieces:
        if ranges is None:
            with self._translating(key):
                return [bytes(self._obstore.get(self._client, key).bytes())]
        # An empty range is an error to obstore, but it still must not hide that the object is missing.
        asked = [(offset, length) for offset, length in ranges if length]
        if not asked and self.head(key) is None:
            raise missing(key)
        with self._translating(key, ranges=asked):
            if len(asked) == 1:
                [(offset, length)] = asked
                read = [self._obstore.get_range(self._client, key, start=offset, length=length)]
            else:
                read = self._obstore.get_ranges(
                    self._client,
                    key,
                    starts=[offset for offset, _ in asked],
                    lengths=[length for _, length in asked],
                    coalesce=0,
                )
        answers = map(bytes, read)
        return [next(answers) if length else b"" for _, length in ranges]

    def _stream(self, key: str) -> Iterator[bytes]:
        # By ranges of one version: each piece has its own timeout and retry, and no overwrite can splice two objects.
        with self._translating(key):
            meta = self._obstore.head(self._patient, key)
        for offset in range(0, meta["size"], READ_CHUNK_BYTES):
            end = min(offset + READ_CHUNK_BYTES, meta["size"])
            with self._translating(key, ranges=[(offset, end - offset)]):
                options = {"range": (offset, end), "if_match": meta["e_tag"]}
                piece = bytes(self._obstore.get(self._patient, key, options=options).bytes())  # type: ignore[arg-type]
            if len(piece) != end - offset:
                raise short_read(key, offset, end - offset, len(piece))
            yield piece

    def _head(self, key: str) -> ObjectInfo | None:
        try:
            result = self._describe(key)
        except KeyError:
            return None
        metadata = {name: unquote(value) for name, value in result.attributes.items() if name.islower()}
        return _info(key, result.meta, metadata)

    def _remove(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETE_BATCH):
            batch = [*keys[start : start + _DELETE_BATCH]]
            with self._translating(None):
                try:
                    self._obstore.delete(self._client, batch)
                    continue
                except FileNotFoundError:
                    pass
            # Google and Azure stop at the first key that is already gone; the rest must still go.
            for key in batch:
                with self._translating(key), contextlib.suppress(FileNotFoundError):
                    self._obstore.delete(self._client, key)

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        if folder:
            yield from in_key_order(self._pages(folder), folder + "/")
            return
        # Top level by top level: ordering holds one name's objects in memory, and here that could be nearly everything.
        with self._translating(None):
            top = self._obstore.list_with_delimiter(self._patient)
        entries: list[tuple[str, ObjectInfo | None]] = [
            (name.rstrip("/") + "/", None) for name in top["common_prefixes"]
        ]
        entries += [(meta["path"], _info(meta["path"], meta)) for meta in top["objects"] if _is_ours(meta["path"])]
        for name, info in sorted(entries, key=lambda entry: entry[0]):
            if info is not None:
                yield info
            elif _is_ours(name[:-1]):
                yield from in_key_order(self._pages(name[:-1]), name)

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        """Rewrite the object with the tags, on condition that it has not changed: obstore sets tags only on writing,
        and an object deleted meanwhile must stay deleted."""
        if not self.supports_tags:
            return
        found = self._describe(check_key(key))
        if found.meta["size"] > LARGEST_TO_TAG_BYTES:
            return
        data = self.get(key)
        refused = (self._obstore.exceptions.PreconditionError, self._obstore.exceptions.NotSupportedError)
        with self._translating(key, writing=True), contextlib.suppress(*refused):
            options = {"attributes": found.attributes, "tags": dict(tags), "mode": _version(found.meta)}
            self._put(self._client, key, data, **options)

    def health(self) -> None:
        # Asking for an object that is not there tells a missing bucket and bad credentials apart, and needs no listing.
        with contextlib.suppress(NotFound), self._translating("health"):
            self._obstore.get(self._client, "health")

    def close(self) -> None:
        self._closed = True

    def _describe(self, key: str) -> GetResult:
        with self._translating(key):
            return self._obstore.get(self._client, key, options={"head": True})

    def _pages(self, folder: str) -> Iterator[ObjectInfo]:
        with self._translating(None):
            pages = self._obstore.list(self._patient, folder, chunk_size=_LIST_PAGE)
        while True:
            with self._translating(None):
                page = next(pages, None)
            if page is None:
                return
            for meta in page:
                if _is_ours(meta["path"]):
                    yield _info(meta["path"], meta)

    @contextlib.contextmanager
    def _translating(
        self,
        key: str | None,
        *,
        writing: bool = False,
        ranges: Sequence[tuple[int, int]] = (),
        failure: Sequence[Exception] = (),
    ) -> Iterator[None]:
        if self._closed:
            raise Unavailable(f"{self.place} is closed")
        try:
            yield
        except (AnalemmaError, KeyboardInterrupt):
            raise
        except Exception as exc:
            if failure:
                raise failure[0] from None
            if ranges and key and (isinstance(exc, ValueError) or f"status code: {_RANGE_PAST_END}" in str(exc)):
                raise short_read(key, *ranges[-1], 0) from exc
            if isinstance(exc, self._obstore.exceptions.PreconditionError) and not writing:
                raise Corrupt(f"object {key} changed while it was read", hint="objects are never overwritten") from exc
            raise translate(exc, place=self.place, key=key, writing=writing) from exc


def _noting(chunks: Iterable[bytes], failure: list[Exception]) -> Iterator[bytes]:
    """The caller's chunks; their failure is noted, so that it is not mistaken for the store's."""
    try:
        yield from chunks
    except Exception as exc:
        failure.append(exc)
        raise


def _attributes(metadata: Mapping[str, str]) -> dict[str, str]:
    quoted = {name: quote_metadata(value) for name, value in metadata.items()}
    return {"Content-Type": "application/octet-stream", **quoted}


def _version(meta: ObjectMeta) -> UpdateVersion:
    """The condition that an object is still the one that was looked at."""
    return cast("UpdateVersion", {name: meta[name] for name in ("e_tag", "version") if meta[name]})


def _is_ours(key: str) -> bool:
    """Whether we could have written this key; a bucket may hold others, which are left alone."""
    with contextlib.suppress(Invalid):
        return bool(check_key(key))
    return False


def _info(key: str, meta: ObjectMeta, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
    modified: datetime = meta["last_modified"]
    return ObjectInfo(key, meta["size"], int(modified.timestamp() * 1_000_000), metadata or {})


def translate(exc: BaseException, *, place: str, key: str | None, writing: bool = False) -> AnalemmaError:
    """Our error for one of obstore's, whose texts are searched and not repeated: they may hold signed URLs. `place` is
    the store's URL without its secrets."""
    text = str(exc)[:_SEARCHED_CHARACTERS]
    kind = type(exc).__name__
    found_status = _STATUS.search(text)
    status = int(found_status[1]) if found_status else None
    # Only behind the status, where the server's answer begins: in front of it stands the key, which may say anything.
    found_code = _CODE.search(text, found_status.end()) if found_status else None
    code = (found_code[1] or found_code[2]) if found_code else None
    reason = code or (f"status {status}" if status else "no answer")
    about = f"{place}: object {key}" if key else place

    if code in _NO_BUCKET:
        return Unavailable(f"{place}: no such bucket", hint="create the bucket, or correct the URL")
    if isinstance(exc, FileNotFoundError) and key is not None:
        return missing(key)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
        return Denied(f"{about}: access refused ({reason})", hint="check the credentials and what they may do")
    if kind in ("UnknownConfigurationKeyError", "InvalidPathError"):
        return Invalid(f"{about}: obstore does not accept this name or setting", hint="check the object store URL")
    if status in (301, 307, 308, 400):
        return Unavailable(f"{about}: request refused ({reason})", hint="check the region and endpoint in the URL")
    if status is not None and status not in _TRANSIENT_STATUSES:
        return Unavailable(f"{about}: request refused ({reason})", hint="check the object store")
    if status is None and kind not in ("GenericError", "JoinError"):
        return Unavailable(f"{about}: {kind}", hint="check the object store URL")
    # A write that was sent may have happened although its answer never came.
    error = OutcomeUnknown if writing and not _NEVER_SENT.search(text) else Unavailable
    return error(f"{about}: {reason}", hint="check the network and the endpoint", transient=True)


def in_key_order(found: Iterable[ObjectInfo], start: str) -> Iterator[ObjectInfo]:
    """A listing in the order of whole keys.

    AWS lists by the bytes of the whole key, so `a-b/x` comes before `a/x`; others walk a tree and give `a/x` first. A
    merge of a listing with a catalog would take the difference for missing objects.

    `start` is what all keys begin with. The two orders differ only between a name and longer names that continue it
    with a character below the slash, and these stand together; so one such group is held in memory at a time.
    """
    group: list[ObjectInfo] = []
    group_name = ""
    last_key = ""
    for info in found:
        name = info.key[len(start) :].partition("/")[0]
        if group and not (name == group_name or (name.startswith(group_name) and name[len(group_name)] < "/")):
            yield from _sorted_group(group, last_key)
            last_key = group[-1].key
            group = []
        if not group:
            group_name = name
        group.append(info)
    yield from _sorted_group(group, last_key)


def _sorted_group(group: list[ObjectInfo], last_key: str) -> Iterator[ObjectInfo]:
    group.sort(key=lambda info: info.key)
    if group and group[0].key <= last_key:
        raise Unavailable(
            "the object store lists its keys in no usable order", hint="use a bucket type that lists in key order"
        )
    yield from group
