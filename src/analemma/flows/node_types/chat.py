"""The protocol of OpenAI-compatible endpoints: what is sent to one, and what its answer says, streamed or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from analemma.errors import Invalid, Unavailable

DONE: Final = b"[DONE]"
LONGEST_LINE: Final = 8 << 20
"""Of a stream."""
COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model answered."""

    message: dict[str, Any]
    """`role` and `content`, and where it has them `tool_calls` and `refusal`."""
    finish_reason: str | None
    model: str | None
    usage: dict[str, int]

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """What it wants called."""
        return list(self.message.get("tool_calls", ()))


class Broken(Unavailable):
    """An answer that is none; asked again, there may be one."""


class ModelError(Unavailable):
    """The endpoint answered, in the middle of a stream, that it failed."""


def read_completion(body: bytes) -> Completion:
    """An answer that came as a whole."""
    found = _loaded(body)
    if isinstance(found.get("error"), Mapping) or "choices" not in found:
        raise _told(found)
    choice = _choice(found)
    if choice is None or not isinstance(choice.get("message"), Mapping):
        raise Broken("the answer has no message in it")
    collected = _Collected()
    collected.add(choice["message"])
    collected.finish_reason = _text(choice.get("finish_reason"))
    collected.note(found)
    return collected.completion()


def read_stream(pieces: Iterable[bytes]) -> Completion:
    """An answer that comes as server-sent events; Broken if it ends before it is over."""
    collected, over = _Collected(), False
    for data in events(pieces):
        if data == DONE:
            over = True
            break
        found = _loaded(data)
        if found.get("error"):
            raise _told(found)
        collected.note(found)
        choice = _choice(found)
        if choice is None:
            continue
        if isinstance(choice.get("delta"), Mapping):
            collected.add(choice["delta"])
        collected.finish_reason = _text(choice.get("finish_reason")) or collected.finish_reason
    if not over and collected.finish_reason is None:
        raise Broken("the answer broke off")
    return collected.completion()


def events(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each server-sent event.

    >>> list(events([b"data: a\\r\\ndata", b": b\\n\\n: ping\\n\\ndata:c\\n\\n"]))
    [b'a\\nb', b'c']
    """
    data: list[bytes] = []
    for line in _lines(pieces):
        if not line:
            if data:
                yield b"\n".join(data)
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    # An event that no empty line ended is not one; but many a server forgets the last.
    if data:
        yield b"\n".join(data)


def add_usage(before: Any, usage: Mapping[str, int]) -> dict[str, int]:
    """What was used before, and now."""
    known = before if isinstance(before, Mapping) else {}
    return {name: _count(known.get(name)) + usage.get(name, 0) for name in ("calls", *COUNTS)}


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Ended by LF, CR LF or CR, wherever the pieces are cut."""
    # What came of a line stays in its pieces until the line is over: joined with each, long ones would take forever.
    begun: list[bytes] = []
    length, after_cr = 0, False
    for piece in filter(None, pieces):
        # A CR at the very end of the piece before may have been the first half of a line's end.
        text = piece[1:] if after_cr and piece.startswith(b"\n") else piece
        after_cr = piece.endswith(b"\r")
        first, *others = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        begun.append(first)
        length += len(first)
        if length > LONGEST_LINE:
            raise Broken("the answer has a line that is too long", limit=LONGEST_LINE)
        for line in others:
            yield b"".join(begun)
            begun, length = [line], len(line)
    if length:
        yield b"".join(begun)


@dataclass(slots=True)
class _Call:
    """A call of a tool, as far as it came."""

    id: str = ""
    name: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def made(self) -> dict[str, Any]:
        function = {"name": "".join(self.name), "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class _Collected:
    """An answer, as far as it came."""

    content: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    has_content: bool = False
    finish_reason: str | None = None
    model: str | None = None
    usage: dict[str, int] = field(default_factory=dict)

    def note(self, found: Mapping[str, Any]) -> None:
        self.model = _text(found.get("model")) or self.model
        usage = found.get("usage")
        if isinstance(usage, Mapping):
            self.usage = {name: _count(usage.get(name)) for name in COUNTS}

    def add(self, part: Mapping[str, Any]) -> None:
        if isinstance(part.get("content"), str):
            self.content.append(part["content"])
            self.has_content = True
        if isinstance(part.get("refusal"), str):
            self.refusal.append(part["refusal"])
        calls = part.get("tool_calls") or ()
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            self._call(place, call)

    def completion(self) -> Completion:
        content = "".join(self.content)
        message: dict[str, Any] = {"role": "assistant", "content": content if self.has_content else None}
        if self.refusal:
            message["refusal"] = "".join(self.refusal)
        if self.calls:
            message["tool_calls"] = [self.calls[place].made() for place in sorted(self.calls)]
        elif not self.has_content and not self.refusal:
            raise Broken("the answer is empty")
        return Completion(message, self.finish_reason, self.model, self.usage)

    def _call(self, place: int, call: Any) -> None:
        if not isinstance(call, Mapping):
            raise Broken("a call of a tool is none")
        index = call.get("index", place)
        if type(index) is not int or not 0 <= index < 1000:
            raise Broken("a call of a tool has no place")
        known = self.calls.setdefault(index, _Call())
        if isinstance(call.get("id"), str) and call["id"]:
            known.id = call["id"]
        function = call.get("function")
        if isinstance(function, Mapping):
            for parts, part in ((known.name, function.get("name")), (known.arguments, function.get("arguments"))):
                if isinstance(part, str):
                    parts.append(part)


def _choice(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first; others were not asked for."""
    choices = found.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping) and choice.get("index", 0) == 0:
            return choice
    return None


def _loaded(data: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Broken("the answer is no JSON") from None
    if not isinstance(found, dict):
        raise Broken("the answer is no JSON object")
    return found


def _told(found: Mapping[str, Any]) -> Exception:
    error = found.get("error")
    text = error.get("message") if isinstance(error, Mapping) else error
    code = error.get("code") if isinstance(error, Mapping) else None
    # Not cut here: whoever knows what is to be masked in it cuts it.
    message = f"the model failed: {text or 'it did not say why'}"
    # Some say with a status whether it is the request's fault.
    if code in range(400, 500) and code not in (408, 409, 425, 429):
        return Invalid(message)
    return ModelError(message)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0
