"""SQLite's errors in our words: one line each, saying what to do. A row that holds something of another type than its
column should is told as damage by `transaction.ColumnTypes`."""

from __future__ import annotations

import os
import sqlite3

from analemma.errors import AnalemmaError, Conflict, Corrupt, Internal, Invalid, OutcomeUnknown, Unavailable

_PRIMARY = 0xFF
_UNIQUE = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID)


FAILURES = (sqlite3.Error, OverflowError, UnicodeEncodeError)
"""What a statement may fail with."""


def translate(exc: Exception, database: str) -> AnalemmaError:
    """The error to raise `from exc`, which is one of the failures."""
    if not isinstance(exc, sqlite3.Error):
        return Invalid("a value does not fit the database", hint="integers are 64 bits and text is valid Unicode")
    code = getattr(exc, "sqlite_errorcode", None)
    if code is None:
        if isinstance(exc, sqlite3.ProgrammingError) and "closed" in str(exc):
            return Unavailable(f"the catalog {database} is closed", hint="open it again")
        if isinstance(exc, sqlite3.OperationalError) and "decode to UTF-8" in str(exc):
            # The text itself is not repeated: it may be of any length, and is no text.
            return Corrupt(
                f"a row of {database} holds text that is no Unicode", hint="restore the catalog from a backup"
            )
        return Internal(f"the database driver refused a call: {_one_line(exc)}")
    return _by_code(exc, code, database)


def translate_commit(exc: sqlite3.Error, database: str) -> AnalemmaError:
    """The error to raise `from exc`, for a COMMIT that failed."""
    code = getattr(exc, "sqlite_errorcode", None) or 0
    # The commit record is the last thing written, so a failed write means that it is not there. After a failed fsync it
    # is: this process takes it back, but if the machine or every process died now, recovery would find and apply it.
    if code & _PRIMARY == sqlite3.SQLITE_IOERR and code != sqlite3.SQLITE_IOERR_WRITE:
        return OutcomeUnknown(f"the disk failed while committing to {database}", hint="read back before trying again")
    return translate(exc, database)


def _by_code(exc: sqlite3.Error, code: int, database: str) -> AnalemmaError:
    match code & _PRIMARY:
        case sqlite3.SQLITE_CONSTRAINT if code in _UNIQUE:
            return Conflict(f"a row with this key exists already: {_one_line(exc)}", hint="reload, then decide again")
        case sqlite3.SQLITE_CONSTRAINT:
            return Internal(f"a row breaks a rule of the schema: {_one_line(exc)}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            who = _lockers(database)
            return Unavailable(
                f"{database} is locked by another program{who}",
                hint="close the tool that holds it open in a transaction, then try again; sqlite_lock_timeout_s says"
                " how long to wait for it",
            )
        case sqlite3.SQLITE_FULL:
            return Unavailable(
                f"no space left for {database}", hint="free disk space, then try again; nothing was changed"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return Unavailable(
                f"{database} cannot be written", hint="give this user write permission on the file and its directory"
            )
        case sqlite3.SQLITE_CANTOPEN:
            return Unavailable(
                f"cannot open {database}", hint="check that the directory exists and that this user may write in it"
            )
        case sqlite3.SQLITE_NOTADB:
            return Corrupt(
                f"{database} is not a SQLite database", hint="name another path, or restore it from a backup"
            )
        case sqlite3.SQLITE_CORRUPT:
            return Corrupt(f"{database} is damaged", hint="restore it from a backup")
        case sqlite3.SQLITE_IOERR:
            return Unavailable(
                f"reading or writing {database} failed: {_one_line(exc)}",
                hint="check the disk and its free space, then try again",
            )
        case sqlite3.SQLITE_TOOBIG:
            return Invalid("a value is larger than SQLite can store", hint="split it; the limit is 1 GB")
        case _:
            return Internal(f"SQLite refused a statement: {_one_line(exc)}")


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())


def _lockers(database: str) -> str:
    """The processes that hold locks for writing, as far as the system tells: Linux lists them."""
    try:
        files = {str(os.stat(path).st_ino) for path in (database, f"{database}-shm") if os.path.exists(path)}
        with open("/proc/locks") as lines:
            # "1: POSIX  ADVISORY  WRITE 4711 00:2a:815 120 120"
            found = [line.split() for line in lines if " WRITE " in line]
    except OSError:
        return ""
    pids = {int(line[4]) for line in found if len(line) > 5 and line[5].rpartition(":")[2] in files}
    others = sorted(pid for pid in pids if pid > 0 and pid != os.getpid())
    return f" (process {', '.join(map(str, others))})" if others else ""
