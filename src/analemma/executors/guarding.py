"""What wraps a call that runs in another process: errors come back as values, as they were raised."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analemma.errors import Internal


@dataclass(frozen=True, slots=True)
class Raised:
    """What a function raised. Frameworks wrap errors in classes of their own; a value they leave alone."""

    error: Exception


def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's answer, or what it raised, in a form that travels."""
    try:
        return function(*arguments)
    except Exception as exc:
        return Raised(portable(exc))


def portable(error: Exception) -> Exception:
    """An error in a form that travels."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Internal(f"{type(error).__name__}: {error}")
    return error
