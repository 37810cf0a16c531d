"""When the surroundings are wrong, the error is one line and says what to do."""

from __future__ import annotations

import os
import resource
import socket
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from analemma.catalog.opening import FILE_NAME, open_catalog
from analemma.catalog.sqlite import SqliteEngine
from analemma.catalog.sqlite_catalog import SqliteCatalog
from analemma.errors import AnalemmaError, Corrupt, Invalid, Unavailable
from analemma.testing.commits import make_block, make_request
from tests.servers import PostgresServer


@contextmanager
def refusal(kind: type[AnalemmaError], message: str, advice: str) -> Iterator[None]:
    """The block must raise `kind`, in one line that says both."""
    with pytest.raises(kind) as caught:
        yield
    text = str(caught.value)
    assert message in text and advice in text
    assert "\n" not in text
    assert type(caught.value) is kind


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_directory_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refusal(Unavailable, "cannot create the directory", "name a directory that this user may write in"):
        open_catalog(tmp_path / "file" / "store")


def test_database_path_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with refusal(Unavailable, "cannot open", "check that the directory exists"):
        open_catalog(tmp_path)


def test_directory_that_may_not_be_written(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with refusal(Unavailable, "cannot open the lock file", "this user may write in it"):
        open_catalog(small_disk)


def test_store_on_a_file_system_that_became_read_only(small_disk: Path) -> None:
    open_catalog(small_disk).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with refusal(Unavailable, "cannot open the lock file", "this user may write in it"):
        open_catalog(small_disk)


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("these are not the tables you are looking for" * 100)
    with refusal(Corrupt, "is not a SQLite database", "name another path"):
        open_catalog(tmp_path)


def test_damaged_database(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    tenant = catalog.tenant("shop")
    catalog.commit(make_request(tenant, None, [make_block(os.urandom(3000)) for _ in range(50)]))
    catalog.close()
    with open(tmp_path / FILE_NAME, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with refusal(Corrupt, "is damaged", "restore it from a backup"):
        catalog = open_catalog(tmp_path)
        catalog.stats()


def test_disk_full(small_disk: Path) -> None:
    catalog = open_catalog(small_disk)
    tenant = catalog.tenant("shop")
    request = make_request(tenant, None, [make_block(os.urandom(200_000)) for _ in range(10)])
    with refusal(Unavailable, "no space left", "free disk space"):
        catalog.commit(request)
    assert catalog.head(tenant, request.head.key) is None
    smaller = make_request(tenant, None, [make_block()])
    catalog.commit(smaller)
    assert catalog.head(tenant, request.head.key) == smaller.head
    catalog.close()


def test_file_size_limit_of_the_process(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    tenant = catalog.tenant("shop")
    request = make_request(tenant, None, [make_block(os.urandom(200_000)) for _ in range(10)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with refusal(Unavailable, "reading or writing", "check the disk"):
            catalog.commit(request)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert catalog.head(tenant, request.head.key) is None
    catalog.commit(request)
    catalog.close()


def test_database_held_by_a_stranger(tmp_path: Path) -> None:
    open_catalog(tmp_path).close()
    stranger = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    catalog = SqliteCatalog(SqliteEngine(tmp_path / FILE_NAME, patience_s=0.1))
    with refusal(Unavailable, "is locked by another program", "close the tool"):
        catalog.tenant("shop")
    stranger.execute("COMMIT")
    stranger.close()
    assert catalog.tenant("shop") == 1
    catalog.close()


def test_schema_from_the_future(tmp_path: Path) -> None:
    open_catalog(tmp_path).close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("INSERT INTO migration VALUES (9999, 'future', 'x', 1)")
    connection.commit()
    connection.close()
    with refusal(Unavailable, "the database has schema 9999", "upgrade analemma"):
        open_catalog(tmp_path)


@pytest.mark.parametrize("url", ["mysql://host/database", "sqlite://", "sqlite://host/path", "sqlite:///"])
def test_url_of_no_known_kind(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_catalog(url)
    assert "use" in str(caught.value) and "\n" not in str(caught.value)


def test_malformed_postgres_url() -> None:
    with refusal(Invalid, "not a PostgreSQL URL", "use postgresql://"):
        open_catalog("postgresql://host/database?nonsense=1")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:pa%ss3cret@127.0.0.1:1/db",
        "postgresql://ann:s3cret%00@127.0.0.1:1/db",
        "postgresql://ann:s3c/s3cret@127.0.0.1:1/db",
        "postgresql://ann:12/s3cret@127.0.0.1:1/db",
        "postgresql://ann:p@s3cret@127.0.0.1:1/db",
        "postgresql://ann:s3cret]x@[::1/db",
        "postgresql://ann:s3cret?x@127.0.0.1:1/db",
        "postgresql://ann:s3cret@127.0.0.1:s3cret/db",
        "postgresql://ann:s3cret@127.0.0.1:1/db?passwrd=s3cret",
        "postgresql://ann@127.0.0.1:1/db?password=s3cret&x",
        "postgresql://ann:s3cret\ud800@127.0.0.1:1/db",
        "postgresql://ann:s3cret\0@127.0.0.1:1/db",
        "postgresql://ann@127.0.0.1:1/db?sslmode=s3cret",
        "postgresql+psycopg://ann:s3cret@127.0.0.1/db",
        "s3cret@nowhere://ann",
        "host=127.0.0.1 port=1 password=s3cret",
        " user = ann password = s3cret",
        "gssencmode=disable password='s3cret'",
        "sqlite://ann:s3cret@host/path",
        "sqlite://[s3cret/path",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((Invalid, Unavailable)) as caught:
        open_catalog(url)
    shown = "".join(line for line in traceback.format_exception(caught.value) if "open_catalog(" not in line)
    assert "s3cret" not in shown + caplog.text
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_may_be_called_like_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_catalog("./user=ann").close()
    open_catalog("date=2024").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["date=2024", "user=ann"]


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "sqlite:///a%00b", "a\ud800b"])
def test_a_path_that_no_file_can_have(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match="path") as caught:
        open_catalog(path)
    assert "\n" not in str(caught.value)


def test_a_path_that_cannot_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with refusal(Unavailable, "cannot look at", "check the path"):
        open_catalog(tmp_path / "loop")


@pytest.mark.parametrize("kind", ["sqlite", "memory", "postgres"])
def test_a_schema_is_only_made_when_that_is_wanted(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = {"sqlite": str(tmp_path / "new" / "store"), "memory": "sqlite:///:memory:"}.get(kind)
    url = url or request.getfixturevalue("postgres_url")
    with pytest.raises(Unavailable, match="run `analemma migrate`"):
        open_catalog(url, migrate=False)
    assert list(tmp_path.iterdir()) == []
    if kind != "memory":
        open_catalog(url).close()
        open_catalog(url, migrate=False).close()


def test_an_outdated_sqlite_schema_is_refused_when_asked(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / FILE_NAME).close()
    (tmp_path / FILE_NAME).touch()
    with refusal(Unavailable, "the database schema lacks", "run `analemma migrate`"):
        open_catalog(tmp_path, migrate=False)


def test_every_open_makes_the_name_of_the_database_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_catalog(tmp_path).close()
    flushed = []
    fsync = os.fsync

    def record(fd: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    open_catalog(tmp_path).close()
    assert flushed == [str(tmp_path.resolve())]


def test_postgres_driver_missing(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no such driver')")
    script = (
        "from analemma.catalog.opening import open_catalog\n"
        "from analemma.errors import Unavailable\n"
        "try:\n    open_catalog('postgresql://localhost/x')\n"
        "except Unavailable as exc:\n    print(exc)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "the PostgreSQL driver is not installed (pip install 'analemma[postgres]')\n"


def test_no_server_on_that_port() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with refusal(Unavailable, f"cannot reach PostgreSQL at 127.0.0.1:{port}/x", "check that it runs"):
            open_catalog(f"postgresql://ann:secret@127.0.0.1:{port}/x")


def test_server_that_does_not_answer() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with refusal(Unavailable, "cannot reach PostgreSQL", "check that it runs"):
            open_catalog(f"postgresql://ann@127.0.0.1:{port}/x", connect_timeout_s=2)


def test_unknown_host() -> None:
    with refusal(Unavailable, "the PostgreSQL host name is unknown", "correct the host"):
        open_catalog("postgresql://nowhere.invalid/x")


def test_unknown_database(postgres_server: PostgresServer) -> None:
    with refusal(Unavailable, "there is no such PostgreSQL database", "createdb"):
        open_catalog(postgres_server.url.replace("/postgres?", "/nothing?"))


def test_unknown_user(postgres_server: PostgresServer) -> None:
    with refusal(Unavailable, "there is no such PostgreSQL user", "correct the user"):
        open_catalog(postgres_server.url.replace("//postgres:", "//nobody:"))


def test_wrong_password(postgres_server: PostgresServer) -> None:
    url = postgres_server.require_password("ann", "right")
    with refusal(Unavailable, "PostgreSQL refused the password", "correct the user or the password"):
        open_catalog(url.replace(":right@", ":wrong@"))


def test_password_is_never_shown(postgres_server: PostgresServer) -> None:
    url = postgres_server.require_password("ann", "right").replace(":right@", ":hunter2@")
    with pytest.raises(Unavailable) as caught:
        open_catalog(url)
    assert "hunter2" not in str(caught.value)


def test_postgres_that_only_reads(postgres_url: str) -> None:
    catalog = open_catalog(postgres_url)
    request = make_request(catalog.tenant("shop"), None)
    catalog.close()
    catalog = open_catalog(f"{postgres_url}&options=-c%20default_transaction_read_only%3Don")
    with refusal(Unavailable, "is read-only", "connect to the primary"):
        catalog.commit(request)
    catalog.close()


def test_postgres_without_rights(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS stranger")
        connection.execute("CREATE ROLE stranger LOGIN")
    with refusal(Unavailable, "PostgreSQL denies access", "grant this user the rights"):
        open_catalog(postgres_url.replace("//postgres:", "//stranger:"))
