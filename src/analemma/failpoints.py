"""Named places where a test can stop the process dead.

`ANALEMMA_FAILPOINT=commit.before_transaction:3` kills the process (as `kill -9` would) the third time it passes there.
With the variable unset a failpoint costs one comparison.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from analemma.errors import Invalid

VARIABLE = "ANALEMMA_FAILPOINT"

NAMES: dict[str, str] = {}


def declare(name: str, meaning: str) -> str:
    """Register a failpoint, so that tests can stop at each one there is."""
    NAMES[name] = meaning
    return name


def _parse(text: str | None) -> tuple[str | None, int]:
    if not text:
        return None, 0
    name, _, count = text.partition(":")
    if count and not count.isdigit():
        raise Invalid(f"{VARIABLE}={text} is no failpoint", hint="write name, or name:3 for the third time")
    return name, int(count or 1)


_armed, _left = _parse(os.environ.get(VARIABLE))
_action: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731


def arm(text: str | None) -> None:
    """Stop at another place than the one the process was started with, or at none."""
    global _armed, _left
    _armed, _left = _parse(text)


def hit(name: str) -> None:
    """Pass a failpoint; does not return if it is the armed one and its turn has come."""
    global _left
    if _armed is None or name != _armed:
        return
    _left -= 1
    if _left == 0:
        _action()
