"""A list being changed: runs of old items, by their positions, and runs of new ones, found quickly however many there
are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Run = range | list[Any]

PAGE = 128
"""Runs are kept in pages of about this many, so that finding a position looks at pages first."""


class Runs:
    """The items of a list after any number of changes to it."""

    def __init__(self, *runs: Run) -> None:
        self._pages: list[list[Run]] = [list(runs)]
        self._lengths = [sum([len(run) for run in runs])]
        self.length = self._lengths[0]

    def __iter__(self) -> Iterator[Run]:
        for page in self._pages:
            yield from page

    def get(self, index: int) -> tuple[Run, int]:
        """The run that holds a position, and where in it."""
        page, number, offset = self._find(index)
        return self._pages[page][number], offset

    def insert(self, index: int, item: Any) -> None:
        """Put a new item before the one at this position; the length is the place after the last."""
        page, number, offset = self._find(index)
        runs = self._pages[page]
        run = runs[number] if number < len(runs) else None
        before = runs[number - 1] if offset == 0 and number > 0 else None
        if isinstance(run, list):
            run.insert(offset, item)
        elif isinstance(before, list):
            before.append(item)
        elif run is not None and offset:
            runs[number : number + 1] = [run[:offset], [item], run[offset:]]
        else:
            runs.insert(number, [item])
        self._grown(page, +1)

    def remove(self, index: int) -> None:
        """Take the item at this position out."""
        page, number, offset = self._find(index)
        runs = self._pages[page]
        run = runs[number]
        if isinstance(run, list):
            del run[offset]
            if not run:
                del runs[number]
        else:
            runs[number : number + 1] = [part for part in (run[:offset], run[offset + 1 :]) if part]
        self._grown(page, -1)

    def replace(self, index: int, item: Any) -> None:
        """Put a new item in the place of the one at this position."""
        run, offset = self.get(index)
        if isinstance(run, list):
            run[offset] = item
        else:
            self.remove(index)
            self.insert(index, item)

    def _find(self, index: int) -> tuple[int, int, int]:
        page = 0
        last = len(self._pages) - 1
        while page < last and index >= self._lengths[page]:
            index -= self._lengths[page]
            page += 1
        runs = self._pages[page]
        for number, run in enumerate(runs):
            if index < len(run):
                return page, number, index
            index -= len(run)
        return page, len(runs), 0

    def _grown(self, page: int, by: int) -> None:
        self.length += by
        self._lengths[page] += by
        runs = self._pages[page]
        if len(runs) > 2 * PAGE:
            self._pages[page : page + 1] = halves = [runs[:PAGE], runs[PAGE:]]
            self._lengths[page : page + 1] = [sum([len(run) for run in half]) for half in halves]
