"""Whole stores for tests: a catalog and an object store, opened as users open them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import analemma


@dataclass(frozen=True)
class Store:
    """How to open one store, again and again."""

    url: str
    objects: str | None = None

    def open(self, **settings: Any) -> analemma.App:
        return analemma.open(self.url, objects=self.objects, settings=analemma.Settings(**settings), migrate=True)


def local(directory: Path) -> Store:
    return Store(str(directory / "store"))
