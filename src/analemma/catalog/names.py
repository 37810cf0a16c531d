"""Which text may become a key or a column, the same in every database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from analemma.catalog.port import BranchKey
from analemma.errors import Invalid

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

KEY_BYTES = 512
"""Three of these fit one PostgreSQL index entry (2,704 bytes)."""

AGGREGATE_BYTES = 1024


def check_tenant(name: str) -> None:
    """Raise Invalid unless it can name a tenant."""
    if TENANT.fullmatch(name) is None:
        raise Invalid(
            f"not a tenant name: {name!r}",
            hint="use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )


@lru_cache(maxsize=1024, typed=True)
def check_key(key: BranchKey) -> None:
    """Raise Invalid unless every part can be part of an index entry."""
    check_part(key.owner, "owner")
    check_part(key.workflow, "workflow")
    check_part(key.branch, "branch")


def check_part(text: str, what: str, limit: int = KEY_BYTES) -> None:
    """Raise Invalid unless it is short text: part of an index entry, an execution id, a message."""
    # The quick path: in ASCII a character is a byte, and none is a surrogate.
    if isinstance(text, str) and text.isascii() and 0 < len(text) <= limit and "\0" not in text:
        return
    _check_type(text, what)
    if not text:
        raise Invalid(f"the {what} is empty", hint="give it a name")
    size = len(_encode(text, what))
    if size > limit:
        raise Invalid(f"the {what} is {size} bytes long", hint=f"the limit is {limit} bytes of UTF-8")


def check_texts(texts: Iterable[str | None]) -> None:
    """Raise Invalid if a text holds what not every catalog can store."""
    for text in texts:
        if text is not None:
            _check_type(text, "text")
            if not text.isascii() or "\0" in text:
                _encode(text, "text")


def _check_type(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise Invalid(f"the {what} is of type {type(text).__name__}", hint="give it as text")


def _encode(text: str, what: str) -> bytes:
    if "\0" in text:
        # PostgreSQL cannot store it, so no catalog does.
        raise Invalid(f"the {what} holds a NUL character", hint="remove it, or store the value as bytes")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise Invalid(f"the {what} is not valid Unicode", hint="remove the lone surrogate") from exc
