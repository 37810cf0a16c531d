"""`archive`: archives or restores a workspace of the run's owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analemma.archives.archives import Archives
from analemma.flows.context import NodeContext
from analemma.flows.nodes import ArchiveNode
from analemma.flows.texts import fill


class Archive:
    """The handler of `archive` nodes. What is archived or restored already is left as it is: run again, the node comes
    to the same."""

    def __init__(self, archives: Archives) -> None:
        self._archives = archives

    def __call__(self, state: Mapping[str, Any], ctx: NodeContext) -> dict[str, Any]:
        node = ctx.node
        assert isinstance(node, ArchiveNode)
        workspace = fill(node.workspace, state)
        do = self._archive if node.operation == "archive" else self._restore
        return {node.target: ctx.once(node.operation, lambda key: do(workspace, ctx))}

    def _archive(self, workspace: str, ctx: NodeContext) -> dict[str, Any]:
        self._finish(workspace, ctx)
        unit = self._archives.archive(workspace, owner_id=ctx.owner_id)
        return {"workspace": workspace, "status": "COLD", "op_id": unit.op_id, "bytes": unit.bytes}

    def _restore(self, workspace: str, ctx: NodeContext) -> dict[str, Any]:
        status = self._finish(workspace, ctx)
        if status not in ("WARM", "RUNNING"):
            status = self._archives.restore(workspace, owner_id=ctx.owner_id).status
        return {"workspace": workspace, "status": status}

    def _finish(self, workspace: str, ctx: NodeContext) -> str:
        """Where the workspace stands, when what a worker that died began on it is finished."""
        found = self._archives.get(workspace, owner_id=ctx.owner_id)
        if found.operation != "NONE":
            found = self._archives.recover(workspace, owner_id=ctx.owner_id)
        return found.status
