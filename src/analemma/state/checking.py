"""The verbs that check state against its hashes."""

from __future__ import annotations

from analemma.catalog.port import BranchKey
from analemma.state.kernel_base import MAIN, KernelBase
from analemma.state.verifying import Report, verify_branch, verify_manifest


class Checking(KernelBase):
    """Verifies; changes nothing."""

    def verify_manifest_integrity(self, manifest_id: str, *, owner_id: str | None = None) -> bool:
        """Whether one version is whole: its manifest, its columns, and every block of its state, each hashed again."""
        row = self._row(manifest_id, owner_id)
        return verify_manifest(self._catalog, self._tenant, self._blocks, row.id, deep=True).ok

    def verify(self, *, workflow_id: str, owner_id: str, branch: str = MAIN) -> Report:
        """Check a branch: its journal from the beginning, its head, and every block of its newest state."""
        key = BranchKey(owner_id, workflow_id, branch)
        self._head(key)
        return verify_branch(self._catalog, self._tenant, self._blocks, key)
