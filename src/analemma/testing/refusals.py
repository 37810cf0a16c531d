"""Loops over what must be refused: `assert [each for each in hostile if not refuses(take, each)] == []` names what was
taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analemma.errors import Invalid


def refuses(
    operation: Callable[..., object], *arguments: Any, error: type[BaseException] = Invalid, **options: Any
) -> bool:
    """Whether this call raises this error; any other is raised.

    >>> refuses(int, "x", error=ValueError), refuses(int, "1", error=ValueError)
    (True, False)
    """
    try:
        operation(*arguments, **options)
    except error:
        return True
    return False
