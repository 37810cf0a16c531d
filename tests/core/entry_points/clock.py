"""Names what goes by time."""

from __future__ import annotations

from analemma.clock import Ticker as Ticker
