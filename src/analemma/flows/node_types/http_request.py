"""`http_request`: sends one request, and makes a field of what comes back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

import orjson

from analemma.canon.canonical_json import canonical_json, parse_json
from analemma.errors import AnalemmaError, Denied, Invalid, Unavailable
from analemma.flows.context import NodeContext
from analemma.flows.node_types.mocking import ANSWER, mocked
from analemma.flows.node_types.places import Places
from analemma.flows.node_types.variables import Filling, Variables
from analemma.flows.node_types.web import Bounds, Web, WebAnswer, WebRequest
from analemma.flows.nodes import HttpRequestNode

IDEMPOTENCY_KEY: Final = "idempotency-key"
OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"})
"""Headers that say how a request is sent, and not what."""
UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
NOT_KEPT: Final = frozenset({"set-cookie"})

_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_CHARSET: Final = re.compile(r"charset=\"?([A-Za-z0-9_.:-]+)", re.IGNORECASE)
_CHARSETS: Final = frozenset(
    {
        "utf-8",
        "utf8",
        "us-ascii",
        "ascii",
        "utf-16",
        "utf-16le",
        "utf-16be",
        "utf-32",
        "latin1",
        "latin-1",
        "iso-8859-1",
        "iso-8859-2",
        "iso-8859-5",
        "iso-8859-7",
        "iso-8859-9",
        "iso-8859-15",
        "windows-1250",
        "windows-1251",
        "windows-1252",
        "windows-1253",
        "windows-1254",
        "windows-1257",
        "koi8-r",
        "koi8-u",
        "shift-jis",
        "euc-jp",
        "iso-2022-jp",
        "euc-kr",
        "big5",
        "gb2312",
        "gbk",
        "gb18030",
    }
)
"""What hosts write texts in. Python knows more, and some of it takes the square of a text's length in time."""


class HttpRequest:
    """The handler of `http_request` nodes. Threads may share it."""

    def __init__(self, *, web: Web, places: Places, variables: Variables, read_s: float = 120.0) -> None:
        self._web = web
        self._places = places
        self._variables = variables
        self._read_s = read_s

    def __call__(self, state: Mapping[str, Any], ctx: NodeContext) -> dict[str, Any]:
        node = ctx.node
        assert isinstance(node, HttpRequestNode)
        answered = mocked(ctx)
        if answered is None:
            answered = ctx.once(ANSWER, lambda key: {ANSWER: self._exchange(node, state, ctx, key)})
        return {node.target: answered[ANSWER]}

    def _exchange(self, node: HttpRequestNode, state: Mapping[str, Any], ctx: NodeContext, key: str) -> Any:
        filling = self._variables.of(state)
        request = self._request(node, filling, key)
        bounds = Bounds(node.maximum_bytes, self._read_s, ctx.deadline, ctx.check_cancelled)
        try:
            with self._web.send(request, bounds) as answer:
                self._check_status(node, answer, request.destination.host, filling)
                return filling.masked(_read(node, answer))
        except AnalemmaError as exc:
            exc.message = filling.mask(exc.message)
            exc.args = (exc.message,)
            raise

    def _request(self, node: HttpRequestNode, filling: Filling, key: str) -> WebRequest:
        address = filling.address(node.url)
        parts = urlsplit(address.url)
        query = urlencode([(name, filling.text(text)) for name, text in node.query.items()])
        url = urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, query))), fragment=""))
        headers = {name.lower(): _header(name, filling.text(text)) for name, text in node.headers.items()}
        content = b""
        if node.body is not None:
            body = filling.value(node.body)
            content = body.encode() if isinstance(body, str) else canonical_json(body)
            headers.setdefault(
                "content-type", "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
            )
        if node.method in UNSAFE:
            headers.setdefault(IDEMPOTENCY_KEY, key)
        headers.setdefault("user-agent", "analemma")
        destination = self._places.check(url, address.place)
        filling.check_host(destination.host, is_safe=destination.url.scheme == "https" or destination.is_listed)
        return WebRequest(node.method, destination, headers, content)

    def _check_status(self, node: HttpRequestNode, answer: WebAnswer, host: str, filling: Filling) -> None:
        status = answer.status
        if status in node.accepts if node.accepts is not None else 200 <= status < 300:
            return
        if 300 <= status < 400:
            raise Invalid(
                f"{host} answered with status {status}: what is asked for is elsewhere",
                hint="redirects are not followed: name the place itself, or accept the status",
                status=status,
            )
        text = filling.told(answer.body())
        message = f"{host} answered with status {status}" + (f": {text}" if text else "")
        if status in (408, 425, 429) or status >= 500:
            waits = self._web.asked_to_wait_s(answer.headers)
            facts = {} if waits is None else {"retry_after_s": waits}
            raise Unavailable(message, hint="retries of the node ask again", status=status, **facts)
        kind = Denied if status in (401, 403) else Invalid
        raise kind(message, hint="look at the request, or accept the status", status=status)


def _read(node: HttpRequestNode, answer: WebAnswer) -> Any:
    """An answer in the form that the node asks for."""
    body = answer.body()
    match node.response:
        case "bytes":
            return body
        case "text":
            return _text(answer, body)
        case "json":
            return _json(answer, body)
    is_json = "json" in answer.headers.get("content-type", "")
    headers = {name: value for name, value in answer.headers.items() if name not in NOT_KEPT}
    return {"status": answer.status, "headers": headers, "body": (_json if is_json else _text)(answer, body)}


def _json(answer: WebAnswer, body: bytes) -> Any:
    if not body:
        return None
    try:
        return parse_json(body)
    except Invalid as exc:
        if _is_json(body):
            raise Invalid(f"the answer cannot be kept as it is: {exc.message}", hint="let response be text") from None
        raise Unavailable(f"the answer of status {answer.status} is no JSON", hint="let response be text") from None


def _is_json(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def _text(answer: WebAnswer, body: bytes) -> str:
    named = _CHARSET.search(answer.headers.get("content-type", ""))
    charset = named[1].lower().replace("_", "-") if named else "utf-8"
    return body.decode(charset if charset in _CHARSETS else "utf-8", "replace")


def _header(name: str, value: str) -> str:
    if name.lower() in OURS:
        raise Invalid(f"the header {name} is not the document's to set", hint="leave it out")
    if not _VALUE.fullmatch(value):
        raise Invalid(f"the header {name} has characters that no header can hold", hint="escape them")
    return value
