"""How often each field changes, as seen by this process: hot, warm or cold. Decides where a field goes when a payload
is too large, and nothing else: forgetting it all costs a few bytes of writing."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

Temperature = Literal["hot", "warm", "cold"]

HOT_RATE = 0.5
COLD_RATE = 0.1
START_RATE = 0.3
"""What is not known yet is warm."""
MEMORY = 0.75
"""How much of the rate an observation leaves: four quiet ones make a warm field cold, two changes make it hot."""
WEIGHTS: dict[Temperature, float] = {"hot": 0.25, "warm": 1.0, "cold": 4.0}
"""A byte of a cold field counts as four when the largest leave first, of a hot one as a quarter: what changes each time
would be written to the store each time, what never changes is written there once."""

MOST_WORKFLOWS = 256
MOST_FIELDS = 1000

WorkflowKey = tuple[str, str]


class Temperatures:
    """Rates of change per field of the workflows seen last. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workflows: OrderedDict[WorkflowKey, dict[str, tuple[int, float]]] = OrderedDict()

    def observe(self, workflow: WorkflowKey, fingerprints: Mapping[str, int]) -> None:
        """Take note of what the fields are now; a field whose fingerprint is another than last time has changed."""
        with self._lock:
            fields = self._workflows.setdefault(workflow, {})
            self._workflows.move_to_end(workflow)
            while len(self._workflows) > MOST_WORKFLOWS:
                self._workflows.popitem(last=False)
            for name, fingerprint in fingerprints.items():
                known = fields.get(name)
                if known is not None:
                    changed = 0.0 if known[0] == fingerprint else 1.0
                    fields[name] = (fingerprint, known[1] * MEMORY + changed * (1 - MEMORY))
                elif len(fields) < MOST_FIELDS:
                    fields[name] = (fingerprint, START_RATE)

    def of(self, workflow: WorkflowKey, field: str) -> Temperature:
        """What is known of a field."""
        with self._lock:
            known = self._workflows.get(workflow, {}).get(field)
        if known is None or COLD_RATE < known[1] < HOT_RATE:
            return "warm"
        return "hot" if known[1] >= HOT_RATE else "cold"

    def weight(self, workflow: WorkflowKey, field: str) -> float:
        """How much a byte of the field counts when the largest leave first."""
        return WEIGHTS[self.of(workflow, field)]
