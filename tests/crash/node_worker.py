"""A flow of nodes that reach out of their run, in a process that a failpoint may kill:
`python -m tests.crash.node_worker URL OBJECTS`. The host that it asks is ANALEMMA_FLOW_API."""

from __future__ import annotations

import sys
from typing import Any

from tests.api.pipeline.shop import VIEW
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "t-1", "owner_id": "me"}
KEY = "the-run"
BOOK = {"isbn": "1", "title": "Book 1", "price": 1200}
DOCUMENT: dict[str, Any] = {
    "workflow": "reaching",
    "nodes": [
        {"id": "look", "type": "view", "view": VIEW, "entity_id": "0"},
        {"id": "put", "type": "ingest", "entity_type": "BOOK", "entity_id": "1", "payload": "book"},
        {
            "id": "call",
            "type": "http_request",
            "url": "${ANALEMMA_FLOW_API}/pay",
            "method": "POST",
            "body": {"version": "{{put}}", "seen": "{{look}}"},
        },
        {"id": "gone", "type": "ingest", "entity_type": "BOOK", "entity_id": "2", "delete": True},
        {
            "id": "ask",
            "type": "llm_chat",
            "model": "m",
            "base_url": "${ANALEMMA_FLOW_API}",
            "api_key": None,
            "messages": [{"role": "user", "content": "{{put}}"}],
        },
        {"id": "away", "type": "archive", "workspace": "ws1"},
    ],
}


def main() -> None:
    url, objects = sys.argv[1:]
    with Store(url, objects or None).open(archive_lease_s=0.2) as app:
        flows = app.tenant("shop").flows
        run = flows.run(DOCUMENT, {"book": BOOK}, **PLACE, idempotency_key=KEY)
        while run.status != "COMPLETED":
            assert run.status != "FAILED", run.error
            run = flows.resume(run.execution_id)
        print(run.status, flush=True)


if __name__ == "__main__":
    main()
