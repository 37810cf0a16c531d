"""Names the pure parts of archives that are tested where they are."""

from __future__ import annotations

from analemma.archives.bloom import CountingBloomFilter as CountingBloomFilter
