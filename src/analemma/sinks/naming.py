"""Names of documents in places that allow few characters: any id becomes one that is safe, and different ids different
ones."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

LONGEST = 200
HASHED = "~"
"""What the name of an id begins with that would be too long; no other name does."""


def safe_name(doc_id: str) -> str:
    """The id if it is letters, digits, `-` and `_`; other characters as `%XX`, and long ones as a hash.

    >>> safe_name("shop__978")
    'shop__978'
    >>> safe_name("../x y")
    '%2E%2E%2Fx%20y'
    """
    name = quote(doc_id, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(name) > LONGEST:
        return HASHED + hashlib.sha256(doc_id.encode()).hexdigest()
    return name
