"""Reads JSON contract files, remembering lines. Whether it is JSON at all, `canon` decides first."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import Any, Final

from analemma.canon.canonical_json import parse_json
from analemma.contracts.located import Located

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_OTHER: Final = re.compile(r"[^\s,:\]}]+")


def read_json(data: bytes) -> Located:
    """One JSON document; Invalid, with its line where that is known, if it is none."""
    value = parse_json(data)
    return _Lines(data.decode()).locate(value)


class _Lines:
    """Walks over the text of a document that is known to be JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._breaks = [found.start() for found in re.finditer("\n", text)]

    def locate(self, value: Any) -> Located:
        """Give lines to the value that begins here."""
        self._skip_space()
        node = Located(value, self._line())
        if type(value) is dict:
            self._position += 1
            for _ in value:
                self._skip_space()
                line, key = self._line(), json.loads(self._take(_STRING))
                self._skip_space()
                self._position += 1
                node.key_lines[key] = line
                node.parts[key] = self.locate(value[key])
                self._skip_comma()
            self._close()
        elif type(value) is list:
            self._position += 1
            for number, item in enumerate(value):
                node.parts[number] = self.locate(item)
                self._skip_comma()
            self._close()
        else:
            self._take(_STRING if type(value) is str else _OTHER)
        return node

    def _line(self) -> int:
        return bisect_right(self._breaks, self._position - 1) + 1

    def _skip_space(self) -> None:
        self._take(_SPACE)

    def _skip_comma(self) -> None:
        self._skip_space()
        if self._text[self._position] == ",":
            self._position += 1

    def _close(self) -> None:
        self._skip_space()
        self._position += 1

    def _take(self, kind: re.Pattern[str]) -> str:
        found = kind.match(self._text, self._position)
        assert found is not None, "canon read this text as JSON"
        self._position = found.end()
        return found[0]
