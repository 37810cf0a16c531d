"""Threads of LangGraph's own savers come over whole, and coming over twice is coming over once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from analemma import App
from analemma.errors import Invalid, NotFound
from analemma.langgraph import AnalemmaSaver, migrate_threads
from tests.cli.command_line import CommandLine
from tests.langgraph.graphs import agent, history, logging, nested, put, question, thread
from tests.langgraph.test_saver_states import Swapping
from tests.servers import PostgresServer
from tests.stores import Store


@dataclass
class Custom:
    x: int


@dataclass(frozen=True)
class Source:
    url: str
    saver: BaseCheckpointSaver[str]


def fill(saver: BaseCheckpointSaver[str]) -> None:
    graph = agent(saver)
    graph.invoke(question(1), thread())
    graph.invoke(Command(resume=True), thread())
    graph.invoke(question(2), thread())
    nested(saver).invoke({"total": 0}, thread("nested"))
    for turn in range(6):
        logging(saver).invoke({"turn": turn, "lines": [f"in {turn}"]}, thread("delta"))
    put(saver, {"custom": [Custom(n) for n in range(900)], "bytes": b"x" * 9000, "none": None}, name="custom")


@pytest.fixture(params=["SqliteSaver", "PostgresSaver"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    serde = JsonPlusSerializer(allowed_msgpack_modules=True)
    if request.param == "SqliteSaver":
        path = tmp_path / "their file.sqlite"
        connection = sqlite3.connect(path, check_same_thread=False)
        saver = SqliteSaver(connection, serde=serde)
        saver.setup()
        fill(saver)
        yield Source(str(path), saver)
        connection.close()
        return
    server = request.getfixturevalue("postgres_server")
    assert isinstance(server, PostgresServer)
    url = server.create_database()
    with PostgresSaver.from_conn_string(url) as found:
        found.serde = serde
        found.setup()
        fill(found)
        yield Source(url, found)
    server.drop_database(url)


def test_every_thread_comes_over_whole(source: Source, embedded_store: Store) -> None:
    with embedded_store.open(tenant=f"from-{type(source.saver).__name__}") as app:
        seen: list[tuple[int, int]] = []
        report = migrate_threads(source.url, app, progress=lambda done, total: seen.append((done, total)))
        theirs = list(source.saver.list(None))
        assert (report.threads, report.checkpoints, report.skipped) == (4, len(theirs), 0)
        assert seen[-1] == (len(theirs), len(theirs))
        saver = AnalemmaSaver(app, allowed_types=[Custom])
        for tuple_ in theirs:
            found = saver.get_tuple(tuple_.config)
            assert found is not None
            assert found.checkpoint == tuple_.checkpoint
            assert found.metadata == tuple_.metadata
            assert found.parent_config == tuple_.parent_config
            assert found.pending_writes == tuple_.pending_writes
        assert report.writes == sum(len(tuple_.pending_writes or ()) for tuple_ in theirs)
        for build, name in ((agent, "t"), (nested, "nested"), (logging, "delta")):
            assert history(build(saver), thread(name)) == history(build(source.saver), thread(name))
        # A graph goes on here.
        assert agent(saver).invoke(Command(resume=False), thread())["messages"][-1].content == "It is not known."
        again = migrate_threads(source.url, app)
        assert (again.checkpoints, again.skipped) == (0, len(theirs))
        for row in app.kernel.list_workflows(owner_id="langgraph").items:
            assert app.kernel.verify(workflow_id=row.workflow_id, owner_id="langgraph").problems == []


def test_what_came_since_is_copied_the_next_time(source: Source, app: App) -> None:
    migrate_threads(source.url, app, threads=["t"])
    agent(source.saver).invoke(Command(resume=True), thread())
    report = migrate_threads(source.url, app, threads=["t"])
    assert report.threads == 1 and report.checkpoints > 0 and report.skipped > 0
    assert history(agent(AnalemmaSaver(app)), thread()) == history(agent(source.saver), thread())
    with pytest.raises(Invalid, match="nobody"):
        migrate_threads(source.url, app, threads=["nobody"])


def test_the_command(source: Source, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    user = CommandLine(tmp_path, {"ANALEMMA_URL": store})
    assert user.run("init", store).returncode == 0
    arguments = ["langgraph", "migrate", source.url, "--thread", "t", "--owner", "us"]
    told: dict[str, Any] = json.loads(user.run(*arguments, "--json").stdout)["migrated"]
    assert told["threads"] == 1 and told["checkpoints"] == len(list(source.saver.list(thread())))
    assert f"0 copied, {told['checkpoints']} there already" in user.run(*arguments).stdout
    for verb in ("log", "verify"):
        assert user.run(verb, "--owner", "us", "--workflow", "t").returncode == 0
    assert user.run("langgraph", "migrate", str(tmp_path / "nothing")).returncode != 0


def test_the_source_is_not_changed(tmp_path: Path, app: App) -> None:
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    config = put(saver, {"a": 1})
    saver.put_writes(config, [("a", 2)], "task")
    # A database from before writes had paths.
    connection.execute("ALTER TABLE writes DROP COLUMN task_path")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = path.read_bytes()
    assert migrate_threads(str(path), app).writes == 1
    assert path.read_bytes() == before
    found = AnalemmaSaver(app).get_tuple(config)
    assert found is not None and found.pending_writes == [("task", "a", 2)]


def test_an_encrypted_source_needs_its_serializer(tmp_path: Path, app: App) -> None:
    path = tmp_path / "encrypted.sqlite"
    connection = sqlite3.connect(path, check_same_thread=False)
    serde = EncryptedSerializer(Swapping())
    saver = SqliteSaver(connection, serde=serde)
    saver.setup()
    put(saver, {"a": "secret"})
    with pytest.raises(Invalid, match="cannot be read"):
        migrate_threads(str(path), app)
    assert migrate_threads(str(path), app, serde=serde).checkpoints == 1
    found = AnalemmaSaver(app, serde=serde).get_tuple(thread())
    assert found is not None and found.checkpoint["channel_values"] == {"a": "secret"}
    connection.close()


def test_other_files_are_refused(tmp_path: Path, app: App, postgres_url: str) -> None:
    with pytest.raises(NotFound):
        migrate_threads(str(tmp_path / "nothing.sqlite"), app)
    (tmp_path / "text").write_text("not a database, " * 1000)
    with pytest.raises(Invalid, match="no SQLite database"):
        migrate_threads(str(tmp_path / "text"), app)
    sqlite3.connect(tmp_path / "empty.sqlite").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(Invalid, match="no threads"):
        migrate_threads(str(tmp_path / "empty.sqlite"), app)
    with pytest.raises(Invalid, match="no threads"):
        migrate_threads(postgres_url, app)
