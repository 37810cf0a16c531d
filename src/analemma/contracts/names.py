"""Which text may name what in a contract, and in an entity's key."""

from __future__ import annotations

from typing import Final

TYPE_NAME: Final = r"[A-Za-z][A-Za-z0-9_]{0,63}"
"""Entity types, slice types, index types; without `#`, which separates the parts of a key."""
CONTRACT_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
JOIN_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
TENANT_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
CHECKSUM: Final = r"sha256:[0-9a-f]{64}"
