"""Following a branch: every new version, once, in order."""

from __future__ import annotations

from collections.abc import Iterator

from analemma.catalog.port import BranchKey
from analemma.errors import Invalid
from analemma.state.arguments import branch_key
from analemma.state.kernel_base import MAIN, KernelBase
from analemma.state.versions import Version, version_of

PAGE = 100


class Watching(KernelBase):
    """Waits for versions. Commits do nothing for watchers, so watching costs them nothing."""

    def watch(
        self,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = MAIN,
        since: int | None = None,
        timeout_s: float | None = None,
        poll_s: float = 0.2,
    ) -> Iterator[Version]:
        """Every version after `since`, in order and once each, then whatever is committed next; ends after `timeout_s`
        without any.

        Without `since`, it begins with the first version after this call. To go on after a break, pass the last version
        seen. The branch need not exist yet. Versions that expired are left out."""
        if poll_s <= 0 or (timeout_s is not None and timeout_s < 0):
            raise Invalid(f"cannot wait {timeout_s} s, looking every {poll_s} s", hint="times are positive")
        key = branch_key(owner_id, workflow_id, branch)
        if since is None:
            # Here, and not in the generator, which begins only when it is first asked for something.
            head = self._catalog.head(self._tenant, key)
            since = 0 if head is None else head.version
        return self._follow(key, since, timeout_s, poll_s)

    def _follow(self, key: BranchKey, seen: int, timeout_s: float | None, poll_s: float) -> Iterator[Version]:
        quiet_since = self._clock.monotonic()
        while True:
            # Versions of a branch appear in their order, since each is committed on the one before: so nothing can turn
            # up later below what was seen.
            rows = self._catalog.versions_after(self._tenant, key, after_version=seen, limit=PAGE)
            for row in rows:
                yield version_of(row)
                seen = row.version
            now = self._clock.monotonic()
            if rows:
                quiet_since = now
                continue
            wait = poll_s if timeout_s is None else min(poll_s, quiet_since + timeout_s - now)
            if wait <= 0:
                return
            self._clock.sleep(wait)
