"""A rerun in a process that a failpoint may kill:
`python -m tests.crash.rerun_worker URL OBJECTS EXECUTION SEGMENT`."""

from __future__ import annotations

import sys

from analemma import Flow
from tests.stores import Store


def make_flow() -> Flow:
    """A run that asks, and then waits for one that waits for one that asks."""
    asks = Flow("asks")
    asks.human("ask", choices=["yes"])
    hands_on = Flow("hands-on")
    hands_on.subflow("hand", asks, outputs={"said": "/ask/choice"})
    flow = Flow("parent", limits={"timeout_s": 60})
    flow.human("go", choices=["on"])
    flow.subflow("wait", hands_on, outputs={"said": "/said"})
    return flow


def main() -> None:
    url, objects, execution, segment = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        app.flows.register(make_flow())
        app.flows.rerun(execution, from_segment=segment, wait=False)


if __name__ == "__main__":
    main()
