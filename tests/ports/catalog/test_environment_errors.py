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
from typing import Any

import pytest

import analemma
from analemma import App, Settings
from analemma.errors import AnalemmaError, Corrupt, Invalid, Unavailable
from tests.raw_rows import connect
from tests.servers import PostgresServer

FILE_NAME = "catalog.db"
AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}


def save(app: App, value: object) -> int:
    return app.kernel.save_state_delta({"value": value}, **AT).version


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
    with refusal(Invalid, "a file is in the way", "choose another"):
        analemma.open(tmp_path / "file" / "store")


def test_what_is_not_to_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    with refusal(Unavailable, "there is no database", "analemma migrate"):
        analemma.open(tmp_path / "new", migrate=False)
    with refusal(Unavailable, "there is no database", "analemma migrate"):
        analemma.open(tmp_path / "new", objects=str(tmp_path / "objects"), migrate=False)
    assert list(tmp_path.iterdir()) == []


def test_database_path_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with refusal(Unavailable, "cannot open", "check that the directory exists"):
        analemma.open(tmp_path)


def test_directory_that_may_not_be_written(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with refusal(Unavailable, "Read-only file system", "give this user access to the directory"):
        analemma.open(small_disk)


def test_store_on_a_file_system_that_became_read_only(small_disk: Path) -> None:
    analemma.open(small_disk).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with refusal(Unavailable, "cannot open the lock file", "this user may write in it"):
        analemma.open(small_disk)


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("these are not the tables you are looking for" * 100)
    with refusal(Corrupt, "is not a SQLite database", "name another path"):
        analemma.open(tmp_path)


def test_damaged_database(tmp_path: Path) -> None:
    with analemma.open(tmp_path) as app:
        for number in range(50):
            save(app, os.urandom(1500).hex() + str(number))
    with open(tmp_path / FILE_NAME, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with refusal(Corrupt, "is damaged", "restore it from a backup"), analemma.open(tmp_path) as app:
        app.stats()


def fill(app: App) -> None:
    """Save until there is no room; each save is small enough to go into the database."""
    for _ in range(400):
        save(app, os.urandom(8000).hex())


def test_disk_full(small_disk: Path) -> None:
    with analemma.open(small_disk) as app:
        with refusal(Unavailable, "no space left", "free disk space"):
            fill(app)
        kept = app.kernel.verify(**AT)
        assert kept.ok
        assert app.kernel.load_latest_state(**AT)


def test_file_size_limit_of_the_process(migrated_directory: Path) -> None:
    with analemma.open(migrated_directory) as app:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        try:
            with refusal(Unavailable, "reading or writing", "check the disk"):
                fill(app)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        version = next(iter(app.kernel.history(**AT))).version
        assert app.kernel.verify(**AT).ok
        assert save(app, "there is room again") == version + 1


def test_schema_from_the_future(tmp_path: Path) -> None:
    analemma.open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("INSERT INTO migration VALUES (9999, 'future', 'x', 1)")
    connection.commit()
    connection.close()
    with refusal(Unavailable, "the database has schema 9999", "upgrade analemma"):
        analemma.open(tmp_path)


def test_url_of_no_known_kind() -> None:
    for url in ("mysql://host/database", "sqlite://", "sqlite://host/path", "sqlite:///"):
        with pytest.raises(Invalid) as caught:
            analemma.open(url)
        assert "use" in str(caught.value) and "\n" not in str(caught.value)


def test_malformed_postgres_url() -> None:
    with refusal(Invalid, "not a PostgreSQL URL", "use postgresql://"):
        analemma.open("postgresql://host/database?nonsense=1")


UNREADABLE = [
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
]


def test_a_url_that_cannot_be_read_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in UNREADABLE:
        with pytest.raises((Invalid, Unavailable)) as caught:
            analemma.open(url)
        shown = "".join(line for line in traceback.format_exception(caught.value) if "analemma.open(" not in line)
        assert "s3cret" not in shown + caplog.text, url
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_may_be_called_like_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    analemma.open("./user=ann").close()
    analemma.open("date=2024").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["date=2024", "user=ann"]


def test_a_path_that_no_file_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a\0b", "x" * 300, "sqlite:///a%00b", "a\ud800b"):
        with pytest.raises(Invalid, match="path") as caught:
            analemma.open(path)
        assert "\n" not in str(caught.value)


def test_a_path_that_cannot_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with refusal(Unavailable, "cannot look at", "check the path"):
        analemma.open(tmp_path / "loop")


@pytest.mark.parametrize("kind", ["file", "memory", "server"])
def test_a_schema_is_only_made_when_that_is_wanted(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = {"file": str(tmp_path / "new"), "memory": "sqlite:///:memory:"}.get(kind)
    url = url or request.getfixturevalue("postgres_url")
    with pytest.raises(Unavailable, match="run `analemma migrate`"):
        analemma.open(url, migrate=False)
    assert list(tmp_path.rglob("*.db")) == []
    if kind != "memory":
        analemma.open(url, migrate=True).close()
        analemma.open(url, migrate=False).close()


def test_an_outdated_sqlite_schema_is_refused_when_asked(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / FILE_NAME).close()
    (tmp_path / FILE_NAME).touch()
    with refusal(Unavailable, "the database schema lacks", "run `analemma migrate`"):
        analemma.open(tmp_path, migrate=False)


def test_every_open_makes_the_name_of_the_database_durable(
    migrated_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    fsync = os.fsync

    def record(fd: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    analemma.open(migrated_directory).close()
    assert str(migrated_directory.resolve()) in flushed


def test_postgres_driver_missing(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no such driver')")
    script = (
        "import analemma\n"
        "from analemma.errors import Unavailable\n"
        "try:\n    analemma.open('postgresql://localhost/x')\n"
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
            analemma.open(f"postgresql://ann:secret@127.0.0.1:{port}/x")


def test_server_that_does_not_answer() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with refusal(Unavailable, "cannot reach PostgreSQL", "check that it runs"):
            analemma.open(f"postgresql://ann@127.0.0.1:{port}/x", settings=Settings(connect_timeout_s=2))


def test_unknown_host() -> None:
    with refusal(Unavailable, "the PostgreSQL host name is unknown", "correct the host"):
        analemma.open("postgresql://nowhere.invalid/x")


def test_unknown_database(postgres_server: PostgresServer) -> None:
    with refusal(Unavailable, "there is no such PostgreSQL database", "createdb"):
        analemma.open(postgres_server.url.replace("/postgres?", "/nothing?"))


def test_unknown_user(postgres_server: PostgresServer) -> None:
    with refusal(Unavailable, "there is no such PostgreSQL user", "correct the user"):
        analemma.open(postgres_server.url.replace("//postgres:", "//nobody:"))


def test_wrong_password_which_is_never_shown(postgres_server: PostgresServer) -> None:
    url = postgres_server.require_password("ann", "right")
    with pytest.raises(Unavailable) as caught:
        analemma.open(url.replace(":right@", ":hunter2@"))
    text = str(caught.value)
    assert "PostgreSQL refused the password" in text and "correct the user or the password" in text
    assert "\n" not in text and "hunter2" not in text


def test_postgres_that_only_reads(migrated_url: str) -> None:
    with (
        analemma.open(f"{migrated_url}&options=-c%20default_transaction_read_only%3Don") as app,
        refusal(Unavailable, "is read-only", "connect to the primary"),
    ):
        save(app, 1)


def test_postgres_without_rights(postgres_url: str) -> None:
    with connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS stranger")
        connection.execute("CREATE ROLE stranger LOGIN")
    with refusal(Unavailable, "PostgreSQL denies access", "grant this user the rights"):
        analemma.open(postgres_url.replace("//postgres:", "//stranger:"), migrate=True)
