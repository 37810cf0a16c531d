"""`ingest` and `view`: a flow's way into the view pipeline, and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.raws import Fate, Written
from analemma.errors import NotFound
from analemma.flows.context import NodeContext, Settle
from analemma.flows.nodes import IngestNode, ViewNode
from analemma.flows.texts import MISSING, fill, fill_value, plain_data, value_at
from analemma.pipeline.ingest import IngestWorkflow
from analemma.pipeline.querying import EntityView, QueryViewWorkflow
from analemma.pipeline.view_answers import ViewPage
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.tsid import Version, format_version

FATES = (Fate.CREATED, Fate.UNCHANGED)


class Ingest:
    """The handler of `ingest` nodes. The document's version and the record that says so are one transaction, which is
    refused if the run is somebody else's by then."""

    def __init__(self, workflow: IngestWorkflow, tenant: str) -> None:
        self._workflow = workflow
        self._tenant = tenant

    def __call__(self, state: Mapping[str, Any], ctx: NodeContext) -> dict[str, Any]:
        node = ctx.node
        assert isinstance(node, IngestNode)
        key = EntityKey(node.entity_type, self._tenant, fill(node.entity_id, state))
        return {node.target: ctx.once_here("ingest", lambda settle: self._write(node, key, state, settle))}

    def _write(self, node: IngestNode, key: EntityKey, state: Mapping[str, Any], settle: Settle) -> str:
        def told(tx: Transaction, written: Written) -> None:
            # What is refused raises behind the transaction; it is not to be found as done.
            if written.fate in FATES:
                settle(tx, format_version(Version(written.version)))

        if node.payload is None:
            return self._workflow.delete(key.type, key.id, told=told).version
        payload = value_at(state, node.payload)
        if payload is MISSING:
            raise NotFound(f"the state has nothing at {node.payload}", hint="it is to be ingested", node=node.id)
        prepared = self._workflow.prepare(key, plain_data(payload))
        return self._workflow.store(key, prepared, event=prepared.raw.event, told=told).version


class View:
    """The handler of `view` nodes."""

    def __init__(self, views: QueryViewWorkflow) -> None:
        self._views = views

    def __call__(self, state: Mapping[str, Any], ctx: NodeContext) -> dict[str, Any]:
        node = ctx.node
        assert isinstance(node, ViewNode)
        search, views = node.search, self._views
        if search is None:
            entity_id = fill(node.entity_id or "", state)
            # A view that is not there is no missing answer.
            # guard: view.here
            answer = ctx.reading("view", lambda: _answer(node, views.view(node.view), entity_id), here=True)
            return {node.target: answer}
        index, value, limit = search.index, fill_value(search.value, state), search.limit
        # guard: view.found_here
        found = ctx.reading(
            "view", lambda: _found(node, views.view(node.view).search(index, value, limit=limit)), here=True
        )
        return {node.target: found}


def _answer(node: ViewNode, view: EntityView, entity_id: str) -> Any:
    try:
        return dict(view.get(entity_id).data)
    except NotFound:
        if node.missing == "null":
            return None
        raise


def _found(node: ViewNode, page: ViewPage) -> list[dict[str, Any]]:
    """The answers for what a search found, each with its entity; NotFound for an entity that the view has none for,
    unless the node leaves such out."""
    if page.unanswered and node.missing == "fail":
        first = page.unanswered[0]
        raise NotFound(
            f"{node.view} has no answer for {first.entity_id}: {first.reason}",
            hint="let missing be null to leave out what has none",
            node=node.id,
        )
    return [{"entity_id": each.entity_id, "data": dict(each.data)} for each in page.items]
