"""What may name a workspace and an archive, and where an archive lies. Names come from outside and become parts of
keys: hostile until checked here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from analemma.clock import Entropy
from analemma.errors import Invalid

LONGEST_WORKSPACE = 128
META = "home.meta"
INDEX = "home.index"
FOREIGN_DATA = "home.tar.gz"
"""What other programs that use the same layout write."""

_WORKSPACE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_WORKSPACE - 1}}}")
_OPERATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_OBJECT = re.compile(r"home\.(?:meta|index|tar\.gz|tar\.gz\.meta)|home-[0-9a-f]{16}\.tar\.zst")


@dataclass(frozen=True, slots=True)
class UnitKey:
    """Which unit an object belongs to, and its name there."""

    workspace: str
    op_id: str
    name: str


def check_workspace(workspace: str) -> str:
    """A workspace's id, or Invalid."""
    if not isinstance(workspace, str) or _WORKSPACE.fullmatch(workspace) is None:
        raise Invalid(
            f"not a workspace id: {ascii(workspace)[:80]}",
            hint=f"use up to {LONGEST_WORKSPACE} letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return workspace


def check_operation(op_id: str) -> str:
    """The id of an operation, or Invalid."""
    if not isinstance(op_id, str) or _OPERATION.fullmatch(op_id) is None:
        raise Invalid(f"not an op_id: {ascii(op_id)[:80]}", hint="use up to 64 letters, digits, '_' and '-'")
    return op_id


def new_operation(entropy: Entropy) -> str:
    """An op_id that no other operation has or will have."""
    return entropy.random_bytes(16).hex()


def new_attempt(entropy: Entropy) -> str:
    """A name for the data of one attempt: a zombie and its retry never write the same object."""
    return f"home-{entropy.random_bytes(8).hex()}.tar.zst"


def archives_prefix(tenant: str) -> str:
    """The folder of a tenant's archives; its name was checked when the tenant was made."""
    return f"tenants/{tenant}/archives"


def workspace_prefix(tenant: str, workspace: str) -> str:
    """The folder of one workspace's archives."""
    return f"{archives_prefix(tenant)}/{check_workspace(workspace)}"


def unit_prefix(tenant: str, workspace: str, op_id: str) -> str:
    """The folder of one unit: everything that is protected, kept and deleted together."""
    return f"{workspace_prefix(tenant, workspace)}/{check_operation(op_id)}"


def parse_key(tenant: str, key: str) -> UnitKey | None:
    """Whose object this is; None for a key that we would not have written, which is never ours to touch.

    >>> parse_key("shop", "tenants/shop/archives/ws1/ab12/home.meta")
    UnitKey(workspace='ws1', op_id='ab12', name='home.meta')
    >>> parse_key("shop", "tenants/shop/archives/ws1/notes.txt") is None
    True
    """
    prefix = archives_prefix(tenant) + "/"
    parts = key.removeprefix(prefix).split("/") if key.startswith(prefix) else []
    if len(parts) != 3:
        return None
    workspace, op_id, name = parts
    if _WORKSPACE.fullmatch(workspace) and _OPERATION.fullmatch(op_id) and _OBJECT.fullmatch(name):
        return UnitKey(workspace, op_id, name)
    return None
