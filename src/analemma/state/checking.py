"""The verbs that check state against its hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analemma.state.arguments import branch_key
from analemma.state.kernel_base import MAIN, KernelBase
from analemma.state.records import Receipt

# Loaded by who verifies: every program has the verbs.
if TYPE_CHECKING:
    from analemma.state.verify import Report, Verifier


class Checking(KernelBase):
    """Verifies; changes nothing."""

    def verify_manifest_integrity(self, manifest_id: str, *, owner_id: str | None = None) -> bool:
        """Whether one version is whole: its manifest, its columns, and every block of its state, each hashed again."""
        row = self._row(manifest_id, owner_id)
        return self._verifier().version(row.id).ok

    def verify(self, *, workflow_id: str, owner_id: str, branch: str = MAIN, expect: Receipt | None = None) -> Report:
        """Check a branch: its journal from the beginning, its head, and every version down to the last block.

        With `expect`, a receipt that was kept elsewhere, also that the store still shows what it is for.
        """
        key = branch_key(owner_id, workflow_id, branch)
        self._head(key)
        return self._verifier().branch(key, expect)

    def _verifier(self) -> Verifier:
        from analemma.state.verify import Verifier

        return Verifier(self._catalog, self._tenant, self._blocks)
