"""Every error Analemma raises: one class per thing a caller would do about it, each with a stable `kind`."""

from __future__ import annotations

import re
from typing import Any, ClassVar

LONGEST_WORD = 500
LONGEST_LINE = 10_000
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


class AnalemmaError(Exception):
    """Root of all our errors. `kind` is stable; `facts` are what is known; `hint` says what to do next."""

    kind: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        message = shortened(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else shortened(hint)
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts")
        if facts is not None and name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (executors, test workers); keyword facts must survive that.
        return _rebuild, (type(self), self.message, self.hint, self.facts)


def _rebuild(cls: type[AnalemmaError], message: str, hint: str | None, facts: dict[str, Any]) -> AnalemmaError:
    error = cls.__new__(cls)
    AnalemmaError.__init__(error, message, hint=hint, **facts)
    return error


def shortened(text: str) -> str:
    """The text as a person can read it: of a word, or of a line, that goes on and on, the beginning and the end. What
    names the culprit in full is in an error's facts.

    >>> len(shortened("there is no key " + "k" * 7_000_000 + ": add it")) < 600
    True
    """
    if len(text) <= LONGEST_WORD:
        return text
    words = _LONG_WORD.sub(lambda found: _middle_cut(found[0], LONGEST_WORD), text)
    return "\n".join(_middle_cut(line, LONGEST_LINE) for line in words.split("\n"))


def _middle_cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    begin, end = text[: most * 2 // 3], text[-most // 6 :]
    return f"{begin}[... {len(text) - len(begin) - len(end)} more characters ...]{end}"


class Conflict(AnalemmaError):
    """Someone else was first, or the request contradicts what is stored: reload, then decide again."""

    kind = "conflict"


class HeadMoved(Conflict):
    """The head is no longer the manifest the caller built on; nothing was changed."""

    kind = "head_moved"


class NotFound(AnalemmaError, KeyError):
    """No such thing in this tenant."""

    kind = "not_found"
    __str__ = AnalemmaError.__str__


class Expired(AnalemmaError):
    """It existed and was removed by retention or collection; it will not come back."""

    kind = "expired"


class Invalid(AnalemmaError, ValueError):
    """The caller's input is wrong. `pointer` is the JSON pointer to the culprit, where there is one."""

    kind = "invalid"


class Corrupt(AnalemmaError, RuntimeError):
    """Stored bytes do not match their hash or their format. `block` names what is damaged."""

    kind = "corrupt"


class Unavailable(AnalemmaError, RuntimeError):
    """A database, an object store or a file system did not answer or refused; nothing was changed."""

    kind = "unavailable"


class OutcomeUnknown(Unavailable):
    """The connection broke while committing: read back before trying again."""

    kind = "outcome_unknown"


class Denied(AnalemmaError):
    """The caller may not do this."""

    kind = "denied"


SecurityError = Denied


class Limit(AnalemmaError):
    """A configured limit would be exceeded."""

    kind = "limit"


class Timeout(AnalemmaError, TimeoutError):
    """It took longer than allowed."""

    kind = "timeout"


class ConsistencyError(AnalemmaError):
    """The state that a ticket promised does not exist: its checkpoint failed; `reason` says with what kind of error."""

    kind = "consistency"


class DataLost(AnalemmaError):
    """An archive, or a part of one, is gone or damaged."""

    kind = "data_lost"


class Internal(AnalemmaError):
    """A defect in Analemma itself."""

    kind = "internal"
