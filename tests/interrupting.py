"""Signals that come at the worst moment, without waiting for one."""

from __future__ import annotations

import gc
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


def raise_at(run: Callable[[], object], place: int, folders: tuple[str, ...]) -> bool:
    """Raise KeyboardInterrupt the so manieth time that `run` begins a function in one of the folders, or comes back
    from one of C: the moments at which the interpreter looks for signals. False if it ended before that."""
    left = place

    def profile(frame: FrameType, what: str, argument: object) -> None:
        nonlocal left
        if what in ("call", "c_return") and frame.f_code.co_filename.startswith(folders):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    # Python drops an interrupt that hits a finalizer, and garbage of other tests has some.
    gc.disable()
    sys.setprofile(profile)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False
