"""The state kernel: the verbs with which programs save, read, compare and roll back state."""

from __future__ import annotations

from analemma.state.checking import Checking
from analemma.state.checkpoints import Checkpointing
from analemma.state.governance import Governance
from analemma.state.marking import Marking
from analemma.state.merge import Merging
from analemma.state.retention import Retention
from analemma.state.segments import Segments
from analemma.state.time_machine import TimeMachine
from analemma.state.watching import Watching
from analemma.state.workflows import Workflows


class Kernel(
    Checkpointing, Governance, TimeMachine, Merging, Segments, Checking, Workflows, Marking, Retention, Watching
):
    """State of one tenant's workflows. A workflow is (owner, workflow id); it has branches, and a branch has versions.

    >>> import analemma
    >>> app = analemma.open("sqlite:///:memory:")
    >>> first = app.kernel.save_state_delta({"n": 1, "plan": ["a"]}, workflow_id="trip", owner_id="ann")
    >>> second = app.kernel.save_state_delta({"/plan/0": "b"}, workflow_id="trip", owner_id="ann")
    >>> app.kernel.diff(first.manifest_id, second.manifest_id)
    [{'op': 'replace', 'path': '/plan/0', 'value': 'b'}]
    >>> app.kernel.rollback_to_version(workflow_id="trip", owner_id="ann", version=1).version
    3
    >>> app.close()
    """
