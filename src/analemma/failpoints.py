"""Named places where a test can stop the process, dead or for a while.

`ANALEMMA_FAILPOINT=commit.before_transaction:3` kills the process (as `kill -9` would) the third time it passes there;
`commit.before_transaction:3:stop` stops it (as SIGSTOP would) until somebody continues it.
A failpoint that is not the armed one costs a look into a dict.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from analemma.errors import Invalid

VARIABLE = "ANALEMMA_FAILPOINT"

NAMES: dict[str, str] = {}
STEPS: dict[str, str] = {}
"""Those before the steps of procedures (see `catalog/engine/procedures.py`), called after them; and what follows."""

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
"""What can happen to a process at a failpoint."""


def declare(name: str, meaning: str) -> str:
    """Register a failpoint, so that tests can stop at each one there is."""
    NAMES[name] = meaning
    return name


def _parse(text: str | None) -> tuple[str | None, int, signal.Signals]:
    if not text:
        return None, 0, signal.SIGKILL
    name, _, rest = text.partition(":")
    count, _, then = rest.partition(":")
    if (count and not count.isdigit()) or (then or "kill") not in SIGNALS:
        raise Invalid(
            f"{VARIABLE}={text} is no failpoint", hint="write name, name:3 for the third time, or name:3:stop"
        )
    return name, int(count or 1), SIGNALS[then or "kill"]


_armed: str | None
_left: int
_action: Callable[[], object]


def arm(text: str | None, action: Callable[[], object] | None = None) -> None:
    """Stop at another place than the one the process was started with, or at none; call `action` there, if given,
    instead of stopping."""
    global _armed, _left, _action
    # Unarmed while it changes: another thread may be passing.
    _armed = None
    armed, _left, number = _parse(text)
    # To the very thread that passes: if another took the signal, it would run on for a while.
    _action = action or (lambda: signal.pthread_kill(threading.get_ident(), number))
    _armed = armed
    # In this order: whoever passes it for the first time looks again once it is in there.
    _unarmed.pop(armed or "", None)


class _Unarmed(dict[str, None]):
    """Those that are passed as if they were not there. The armed one is none of them."""

    def __missing__(self, name: str) -> None:
        global _left
        if name != _armed:
            self[name] = None
            if name != _armed:
                return
            self.pop(name, None)  # It was armed meanwhile.
        _left -= 1
        if _left == 0:
            _action()


_unarmed = _Unarmed()
hit: Callable[[str], None] = _unarmed.__getitem__
"""Pass a failpoint; does not return if it is the armed one, its turn has come and it is to die there."""


arm(os.environ.get(VARIABLE))
