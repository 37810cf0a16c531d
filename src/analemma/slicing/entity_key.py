"""What an entity is called: its type, its tenant and its id; as text `TYPE#tenant#id`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from analemma.contracts.names import TENANT_NAME, TYPE_NAME
from analemma.errors import Invalid

MAXIMUM_ID_BYTES: Final = 512
"""What fits an index entry in every catalog."""
SEPARATOR: Final = "#"

_TYPE: Final = re.compile(TYPE_NAME)
_TENANT: Final = re.compile(TENANT_NAME)
_UNFIT: Final = re.compile(r"[#\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True, order=True)
class EntityKey:
    """An entity's name, in which each part is what it should be. Ids keep their case."""

    type: str
    tenant: str
    id: str

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or _TYPE.fullmatch(self.type) is None:
            raise Invalid(
                f"not an entity type: {self.type!r}", hint="use letters, digits and '_', beginning with a letter"
            )
        if not isinstance(self.tenant, str) or _TENANT.fullmatch(self.tenant) is None:
            raise Invalid(f"not a tenant name: {self.tenant!r}", hint="use letters, digits, '.', '_' and '-'")
        reason = why_no_id(self.id)
        if reason is not None:
            raise Invalid(f"not an entity id: {self.id!r}: {reason}", hint="ids are short text without '#'")

    def __str__(self) -> str:
        return SEPARATOR.join((self.type, self.tenant, self.id))


def parse_entity_key(text: str) -> EntityKey:
    """Read `TYPE#tenant#id`, strictly.

    >>> parse_entity_key("BOOK#shop#978").id
    '978'
    """
    parts = text.split(SEPARATOR) if isinstance(text, str) else []
    if len(parts) != 3:
        raise Invalid(f"not an entity key: {text!r}", hint="a key is TYPE#tenant#id")
    return EntityKey(*parts)


def why_no_id(text: object) -> str | None:
    """Why something cannot be an entity's id; None if it can."""
    if not isinstance(text, str):
        return f"it is {type(text).__name__}, not text"
    if not text or text != text.strip():
        return "it is empty" if not text else "it begins or ends with a space"
    if _UNFIT.search(text):
        return "it has '#' or a control character"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "it has a lone surrogate"
    return f"it is {size} bytes long" if size > MAXIMUM_ID_BYTES else None
