"""Reads YAML files of contracts and other documents, remembering lines: plain data only.

Built on the parser's events, so that what a document would become is never built before it is judged. Aliases, merge
keys and tags are refused: they make a small file a large one, or a value something else than it looks. Plain scalars
mean what YAML 1.2's core schema says, so `no` is a word and `1.10` a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from analemma.contracts.located import Located

MAXIMUM_DEPTH: Final = 32
MAXIMUM_NODES: Final = 20_000
_MERGE_KEY: Final = "<<"

_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LONGEST_NUMBER: Final = 40
_LONGEST_REASON: Final = 200

Report = Callable[[int, str, str | None], None]
"""Takes a line, what is wrong there, and a hint."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What kind of documents a file has, and how large they may be."""

    subject: str
    values: int
    depth: int


CONTRACTS: Final = Bounds("contracts", MAXIMUM_NODES, MAXIMUM_DEPTH)


class _GiveUp(Exception):
    """Reading on would only report what follows from what was reported."""


def read_yaml(text: str, report: Report, bounds: Bounds = CONTRACTS) -> list[Located]:
    """Every document of a file that could be read to its end; what is wrong is reported."""
    # Not every program that uses the library has contracts in YAML, and this import is slow.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    reader = _Reader(report, bounds)
    try:
        for event in YAML(pure=True).parse(text):
            reader.take(event)
    except _GiveUp:
        pass
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        what = " ".join(filter(None, (exc.context, exc.problem)))
        report(1 if mark is None else mark.line + 1, f"not YAML: {what}", None)
    except (YAMLError, ValueError, OverflowError) as exc:
        # Characters that YAML does not allow, and escapes of characters that do not exist.
        first = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        report(reader.line, f"not YAML: {first}", None)
    return reader.documents


class _Reader:
    """Makes documents of events."""

    def __init__(self, report: Report, bounds: Bounds) -> None:
        self._bounds = bounds
        self.documents: list[Located] = []
        self.line = 1
        self._report = report
        self._current: Located | None = None
        """The document that is being read; one that breaks off is never handed out."""
        self._open: list[Located] = []
        self._keys: list[tuple[str | None, int] | None] = []
        """For each open object: the key that waits for its value; a key None is one that was refused."""
        self._nodes = 0

    def take(self, event: Any) -> None:
        """One event of the parser."""
        kind = type(event).__name__
        self.line = event.start_mark.line + 1 if event.start_mark is not None else self.line
        if kind == "AliasEvent":
            self._give_up(f"the alias *{event.anchor}", "write the value out")
        if getattr(event, "tag", None) is not None:
            self._give_up(f"the tag {event.tag}", f"{self._bounds.subject} are plain data: leave it out")
        if kind == "ScalarEvent":
            self._scalar(event)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._start({} if kind == "MappingStartEvent" else [])
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._open.pop()
            self._keys.pop()
        elif kind == "DocumentEndEvent" and self._current is not None:
            self.documents.append(self._current)
            self._current = None

    def _start(self, value: Any) -> None:
        node = Located(value, self.line)
        self._add(node)
        if len(self._open) == self._bounds.depth:
            self._give_up(
                f"nesting deeper than {self._bounds.depth}", f"{self._bounds.subject} need no more than ten levels"
            )
        self._open.append(node)
        self._keys.append(None)

    def _scalar(self, event: Any) -> None:
        plain = bool(event.implicit[0])
        if self._expects_key():
            self._key(event.value, plain)
            return
        self._add(Located(self._resolve(event.value) if plain else self._text(event.value), self.line))

    def _key(self, text: str, plain: bool) -> None:
        owner = self._open[-1]
        key: str | None = text
        if plain and text == _MERGE_KEY:
            self._report(self.line, "a merge key (<<)", "write the keys out")
            key = None
        elif not isinstance(self._resolve(text) if plain else self._text(text), str):
            self._report(self.line, f"the key {text} is not text", "put it in quotes")
            key = None
        elif text in owner.value:
            first = owner.key_lines[text]
            self._report(self.line, f"the key {text!r} stands here twice", f"the first is on line {first}")
            key = None
        self._keys[-1] = (key, self.line)

    def _expects_key(self) -> bool:
        return bool(self._open) and type(self._open[-1].value) is dict and self._keys[-1] is None

    def _add(self, node: Located) -> None:
        self._nodes += 1
        if self._nodes > self._bounds.values:
            self._give_up(f"more than {self._bounds.values} values", "split the file")
        if not self._open:
            self._current = node
            return
        owner = self._open[-1]
        if type(owner.value) is list:
            owner.parts[len(owner.value)] = node
            owner.value.append(node.value)
            return
        if self._expects_key():
            self._give_up("a key that is a list or an object", "keys are text")
        waiting = self._keys[-1]
        assert waiting is not None
        key, line = waiting
        self._keys[-1] = None
        if key is not None:
            owner.value[key] = node.value
            owner.parts[key] = node
            owner.key_lines[key] = line

    def _resolve(self, text: str) -> Any:
        if text in _NULL:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        is_integer = _INTEGER.fullmatch(text) is not None
        if is_integer or _FLOAT.fullmatch(text):
            if len(text) > _LONGEST_NUMBER:
                self._give_up(f"a number of {len(text)} characters", "put it in quotes")
            if is_integer:
                return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
            number = float(text)
            if number in (float("inf"), float("-inf")):
                self._give_up(f"the number {text}", "no double is that large")
            return number
        if _NOT_FINITE.fullmatch(text):
            self._give_up(f"the number {text}", "JSON has no form for it")
        return self._text(text)

    def _text(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            self._give_up("a lone surrogate", "write the character itself")
        return text

    def _give_up(self, what: str, hint: str) -> None:
        shown = what if len(what) <= _LONGEST_REASON else f"{what[:_LONGEST_REASON]}..."
        self._report(self.line, f"{self._bounds.subject} may not have {shown}", hint)
        raise _GiveUp
