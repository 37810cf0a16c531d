"""Documents in the making: values are put at paths, later ones over earlier ones, and lists keep their positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analemma.contracts.paths import Token


class Draft:
    """An object or a list that is being filled."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[Token, Any] = {}
        """By name, or by position in what becomes a list; a Draft is not finished, anything else is."""

    def put(self, path: Sequence[Token], value: Any) -> None:
        """Let a value be at a path, whatever was there or above."""
        draft = self
        for token in path[:-1]:
            draft = draft._enter(token)
        draft._members[path[-1]] = value

    def finish(self) -> Any:
        """The document: a list if only positions were filled, with null where none was; otherwise an object."""
        members = {
            token: value.finish() if isinstance(value, Draft) else value for token, value in self._members.items()
        }
        if members and all(type(token) is int for token in members):
            return [members.get(position) for position in range(max(map(int, members)) + 1)]
        return {str(token): value for token, value in members.items()}

    def _enter(self, token: Token) -> Draft:
        found = self._members.get(token)
        if isinstance(found, Draft):
            return found
        made = Draft()
        # What was copied whole belongs to the raw document: it is taken apart here, and never changed.
        if type(found) is dict:
            made._members.update(found)
        elif type(found) is list:
            made._members.update(enumerate(found))
        self._members[token] = made
        return made
