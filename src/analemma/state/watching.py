"""Following a branch: every new version, once, in order."""

from __future__ import annotations

from collections.abc import Iterator

from analemma.catalog.port import BranchKey
from analemma.errors import Invalid
from analemma.state.arguments import branch_key
from analemma.state.kernel_base import MAIN, KernelBase
from analemma.state.versions import Version, version_of

PAGE = 100
LONGEST_SLEEP_S = 3600.0
"""Whoever looks more seldom looks in vain now and then: no machine can be told to sleep for ever."""


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
        if not _is_time(poll_s) or poll_s == 0 or not (timeout_s is None or _is_time(timeout_s)):
            raise Invalid(f"cannot wait {timeout_s!r} s, looking every {poll_s!r} s", hint="times are positive")
        if since is not None and (type(since) is not int or abs(since) >= 2**62):
            raise Invalid(f"not a version: {since!r}", hint="pass the last version seen, or 0")
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
            self._clock.sleep(min(wait, LONGEST_SLEEP_S))


def _is_time(seconds: object) -> bool:
    """Whether one can wait so long: infinity is a time, NaN is none."""
    return isinstance(seconds, int | float) and type(seconds) is not bool and seconds >= 0
