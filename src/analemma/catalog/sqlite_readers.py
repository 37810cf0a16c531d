"""The reading connections of one SQLite database: lent to one thread at a time, kept for the next."""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from collections.abc import Callable

from analemma.catalog.sqlite_transaction import SqliteTransaction

MOST_IDLE = 16


class SqliteReaders:
    """A pool that knows what it has lent, because a fork has to wait for that."""

    def __init__(self, connect: Callable[[], SqliteTransaction]) -> None:
        self._connect = connect
        self._gate = threading.Lock()
        self._idle: list[SqliteTransaction] = []
        self._lent: dict[weakref.ref[SqliteTransaction | _Place], int] = {}
        """Connections, and stand-ins for those being made, with the threads that have them. Not kept by this: one that
        an interrupt took from its thread never comes back, and is closed when nothing knows it any more."""
        self._paused = False
        self._resumed = threading.Event()
        self._closed = False

    def take(self) -> SqliteTransaction:
        """A connection; every one must be given back."""
        thread = threading.get_ident()
        while True:
            with self._gate:
                # A thread that is reading already must go on: the fork waits for it to finish.
                if not self._paused or thread in self._holders():
                    if self._idle:
                        tx = self._idle.pop()
                        self._lent[weakref.ref(tx)] = thread
                        return tx
                    place = _Place()
                    self._lent[weakref.ref(place)] = thread
                    break
            self._resumed.wait()
        try:
            tx = self._connect()
            self._lent[weakref.ref(tx)] = thread
            return tx
        finally:
            self._lent.pop(weakref.ref(place), None)

    def give_back(self, tx: SqliteTransaction) -> None:
        """Ready for the next, whatever state it is in."""
        try:
            usable = True
            if tx.connection.in_transaction:
                try:
                    tx.connection.rollback()
                except sqlite3.Error:
                    usable = False
            with self._gate:
                if usable and not self._closed and len(self._idle) < MOST_IDLE:
                    self._idle.append(tx)
                    return
            tx.connection.close()
        finally:
            self._lent.pop(weakref.ref(tx), None)

    def pause(self, timeout_s: float) -> bool:
        """Lend nothing until `resume`, and wait for what was lent; False, and not paused, if that takes too long."""
        deadline = time.monotonic() + timeout_s
        with self._gate:
            if threading.get_ident() in self._holders():
                return False
            self._resumed.clear()
            self._paused = True
        while self._holders():
            if time.monotonic() >= deadline:
                self.resume()
                return False
            time.sleep(0.001)
        return True

    def resume(self) -> None:
        """Undo `pause`."""
        self._paused = False
        self._resumed.set()

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back."""
        with self._gate:
            self._closed = True
            idle, self._idle = self._idle, []
        for tx in idle:
            tx.connection.close()

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: touch nothing that the parent's threads may have been at; the connections, to be kept."""
        self._gate = threading.Lock()
        self._resumed = threading.Event()
        self._paused = False
        self._closed = True
        lent = [each() for each in self._lent]
        transactions = [*self._idle, *(each for each in lent if isinstance(each, SqliteTransaction))]
        self._idle, self._lent = [], {}
        return [tx.abandon() for tx in transactions]

    def _holders(self) -> list[int]:
        """The threads to which something is lent."""
        for each in list(self._lent):
            if each() is None:
                self._lent.pop(each, None)
        return list(self._lent.values())


class _Place:
    """Stands for a connection that is being made."""

    __slots__ = ("__weakref__",)
