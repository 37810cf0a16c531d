"""Which text may name what in a workflow document, and where in a state a path leads."""

from __future__ import annotations

import re
from typing import Final

from analemma.canon.pointer import parse_pointer
from analemma.errors import Invalid

NODE_ID: Final = r"[A-Za-z][A-Za-z0-9_-]{0,63}"
"""Without a dot: ids with one are made by partitioning."""
WORKFLOW_NAME: Final = r"[A-Za-z][A-Za-z0-9._-]{0,127}"
FUNCTION_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*(?::[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)?"
"""`triage.classify`, as something registered it, or `package.module:function`."""
FIELD_NAME: Final = r"[^\x00-\x1f\x7f]{1,256}"
ENVIRONMENT_NAME: Final = r"[A-Z][A-Z0-9_]{0,127}"
HASH: Final = r"[0-9a-f]{64}"

MERGE_SUFFIX: Final = ".merge"
"""Of the aggregator that partitioning adds behind a group."""
JOIN_SUFFIX: Final = ".join"
"""Of the aggregator that it adds before a node that several ways lead to."""

_FIELD = re.compile(FIELD_NAME)


def path_tokens(path: str) -> tuple[str, ...]:
    """The tokens of a field name, or of a JSON pointer to something below a field.

    >>> path_tokens("ticket"), path_tokens("/ticket/from~1to")
    (('ticket',), ('ticket', 'from/to'))
    """
    tokens = tuple(parse_pointer(path)) if path.startswith("/") else (path,)
    if not _FIELD.fullmatch(tokens[0]):
        raise Invalid(f"{path!r} names no field", hint="write a field's name, or a JSON pointer into one")
    return tokens


def field_of(path: str) -> str:
    """The top-level field that a path is in."""
    return path_tokens(path)[0]
