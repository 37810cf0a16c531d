"""Signals that come at the worst moment, without waiting for one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupt(run: Callable[[], object], stop: Callable[[], None], place: int) -> None:
    """Call `stop` in the midst of `run`, at the so manieth line of what locks and events are made of."""
    left = place

    def trace(frame: FrameType, what: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != threading.__file__:
            return trace
        if what == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                stop()
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
