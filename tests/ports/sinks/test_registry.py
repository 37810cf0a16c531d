"""How sinks are opened: types, settings, plug-ins; what is shown when that fails."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import load_contracts, open_sink, read_snapshot
from analemma.errors import AnalemmaError, Invalid
from analemma.testing.sinks import Outcome, make_document

ROOT = Path(__file__).parents[3]

PLUGIN = """
from pydantic import Field, SecretStr
from analemma import SHIPPED, BatchingSink, Health, SinkSettings

class Settings(SinkSettings):
    place_name: str = Field(description="Anything.")
    api_key: SecretStr = Field(description="A secret.")

class Memory(BatchingSink):
    settings_class = Settings
    held = {}

    @classmethod
    def open(cls, settings, context):
        sink = cls()
        sink.name = settings.place_name
        sink.base = context.base
        return sink

    def send(self, parcels):
        self.held.update({parcel.document.doc_id: parcel.body for parcel in parcels})
        return [SHIPPED] * len(parcels)

    def check_health(self):
        return Health(True, self.name)

not_a_sink = 7
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on the path, like one with installed packages."""
    (tmp_path / "shelf_of_sinks.py").write_text(PLUGIN)
    _install(
        tmp_path, "shelf", "SHELF = shelf_of_sinks:Memory\nODD = shelf_of_sinks:not_a_sink\nJSONL = nothing:at_all"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("shelf_of_sinks", None)


def _install(folder: Path, name: str, lines: str) -> None:
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[analemma.sinks]\n{lines}\n")


def test_the_bookshop_ships_to_a_file_of_its_own(tmp_path: Path) -> None:
    [rule] = load_contracts(ROOT / "examples" / "bookshop" / "contracts.yaml").sink_rules("BOOK")
    target = {"type": rule.target_type, **rule.target}
    for environment, folder in (({}, tmp_path / "out"), ({"BOOKSHOP_OUT": str(tmp_path / "else")}, tmp_path / "else")):
        sink = open_sink(target, environment=environment, base=tmp_path)
        assert sink.ship(make_document()).outcome is Outcome.SHIPPED
        sink.close()
        assert [line.doc_id for line in read_snapshot(folder / "books-shop.jsonl")] == ["shop__978"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "has no type", "JSONL, TABLE"),
    ({"type": 7}, "has no type", "JSONL"),
    ({"type": "jsonl"}, "no sink of type 'jsonl'", "did you mean JSONL?"),
    ({"type": "OPENSERCH"}, "no sink of type", "did you mean OPENSEARCH?"),
    ({"type": "FAX"}, "no sink of type 'FAX'", "types are JSONL"),
    ({"type": "JSONL"}, "path is missing", ""),
    ({"type": "JSONL", "path": "x", "pth": "y"}, "pth: there is no such setting", "did you mean path?"),
    ({"type": "JSONL", "path": "x", "lock_timeout_s": 1}, "lock_timeout_s: there is no such setting", ""),
    ({"type": "JSONL", "path": "x", "zzz": 1}, "zzz: there is no such setting", "settings are path, lockTimeoutS"),
    ({"type": "JSONL", "path": "x", "lockTimeoutS": "soon"}, "lockTimeoutS: should be a valid number", ""),
    ({"type": "JSONL", "path": "{docId}.jsonl"}, "unknown placeholder", ""),
    ({"type": "JSONL", "path": "{tenantId.jsonl"}, "stray brace", ""),
    ({"type": "JSONL", "path": ""}, "path: string should have at least 1 character", ""),
    ({"type": "TABLE", "url": "mysql://x", "table": "t"}, "not the URL of a database", "postgresql://"),
    ({"type": "TABLE", "url": "sqlite:///x", "table": "t; DROP TABLE x"}, "not the name of a table", ""),
    ({"type": "TABLE", "url": "sqlite:///x", "table": 'a"b'}, "not the name of a table", ""),
    ({"type": "TABLE", "url": "sqlite:///x", "table": "a.b"}, "has no schema", ""),
    ({"type": "OPENSEARCH", "url": "ftp://x", "index": "i"}, "no http", ""),
    ({"type": "OPENSEARCH", "url": "https://u:p@x", "index": "i"}, "has a user", ""),
    ({"type": "OPENSEARCH", "url": "http://example.com", "index": "i"}, "would not be encrypted", "allowHttp"),
    ({"type": "OPENSEARCH", "url": "https://x", "index": "i", "username": "u"}, "both username and password", ""),
    ({"type": "WEBHOOK", "url": "https://x"}, "secret is missing", ""),
    ({"type": "WEBHOOK", "url": "https://x", "secret": ""}, "secret: ", ""),
    ({"type": "WEBHOOK", "url": "https://x", "secret": "s", "headers": {"Host": "y"}}, "is the sink's own", ""),
    ({"type": "WEBHOOK", "url": "https://x", "secret": "s", "headers": {"a": "b\nc: d"}}, "not ASCII", ""),
    ({"type": "OBJECTS", "url": "ftp://x"}, "object store URL", ""),
    ({"type": "NATS", "url": "nats://x", "stream": "a b"}, "not the name of a stream", ""),
    ({"type": "NATS", "url": "nats://x", "stream": "s", "subject": "a.>.{docId}"}, "no subject", ""),
    ({"type": "NATS", "url": "nats://x", "stream": "s", "subject": "a..{docId}"}, "no subject", ""),
    ({"type": "PERSONALIZE", "dataset": "items", "region": "eu-west-1"}, "needs datasetArn", ""),
    ({"type": "PERSONALIZE", "dataset": "interactions", "region": "eu-west-1"}, "needs trackingId", ""),
    ({"type": "PERSONALIZE", "dataset": "books", "region": "x"}, "dataset: should be 'items'", ""),
]


def test_a_wrong_target_is_explained(tmp_path: Path) -> None:
    unexplained = []
    for target, message, hint in WRONG:
        with pytest.raises(Invalid) as caught:
            open_sink(target, environment={}, base=tmp_path)
        if message not in caught.value.message or hint not in (caught.value.hint or ""):
            unexplained.append((target, str(caught.value)))
    assert unexplained == []


WRONG_WITH_A_SECRET: list[dict[str, Any]] = [
    {"type": "TABLE", "url": "mysql://user:${PASSWORD}@x/y", "table": "t"},
    {"type": "TABLE", "url": "postgresql://user:${PASSWORD}@x:port/y", "table": "t"},
    {"type": "OPENSEARCH", "url": "https://u:${PASSWORD}@x", "index": "i"},
    {"type": "OPENSEARCH", "url": "https://x", "index": "i", "password": "${PASSWORD}"},
    {"type": "WEBHOOK", "url": "https://x", "secret": ["${PASSWORD}"]},
    {"type": "WEBHOOK", "url": "https://x", "secret": "${PASSWORD}", "headers": {"host": "${PASSWORD}"}},
    {"type": "OBJECTS", "url": "s3://?secret_access_key=${PASSWORD}"},
    {"type": "OBJECTS", "url": "s3://b/p?secret_access_key=${PASSWORD}&endpoint=http://x"},
    {"type": "JSONL", "path": "out", "password": "${PASSWORD}"},
]


def test_a_secret_in_a_wrong_target_is_not_shown(tmp_path: Path) -> None:
    for target in WRONG_WITH_A_SECRET:
        with pytest.raises(AnalemmaError) as caught:
            open_sink(target, environment={"PASSWORD": "hunter2"}, base=tmp_path)
        error: BaseException | None = caught.value
        while error is not None:
            assert "hunter2" not in f"{error} {error!r} {vars(error)}", target
            error = error.__cause__


def test_numbers_and_switches_may_come_from_the_environment(tmp_path: Path) -> None:
    target = {"type": "TABLE", "url": "sqlite:///x.db", "table": "t", "create": "${MAKE}", "timeoutS": "${WAIT:-2.5}"}
    sink = open_sink(target, environment={"MAKE": "true"}, base=tmp_path)
    assert sink.ship(make_document()).outcome is Outcome.SHIPPED
    sink.close()


def test_a_timeout_is_for_targets_that_name_none(tmp_path: Path) -> None:
    """Here a file that another program keeps to itself is given up on at once, or not before long."""
    target = {"type": "TABLE", "url": "sqlite:///x.db", "table": "t", "create": True}
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for named, given in ((target, 0.05), ({**target, "timeoutS": 0.05}, 60)):
            sink = open_sink(named, environment={}, base=tmp_path, timeout_s=given)
            # The other would take a minute.
            began = time.monotonic()
            assert sink.ship(make_document()).outcome is Outcome.RETRY
            assert time.monotonic() - began < 45
            sink.close()
    assert open_sink({"type": "JSONL", "path": "x"}, environment={}, timeout_s=1).guards is False


def test_a_sqlite_file_is_made_only_when_asked_for(tmp_path: Path) -> None:
    sink = open_sink({"type": "TABLE", "url": "sqlite:///x.db", "table": "t"}, environment={}, base=tmp_path)
    assert sink.ship(make_document()).outcome is Outcome.RETRY and not sink.health().is_healthy
    assert list(tmp_path.iterdir()) == []


def test_others_offer_sinks_by_entry_points(plugins: Path, tmp_path: Path) -> None:
    target = {"type": "SHELF", "placeName": "${NAME:-top}", "apiKey": "hunter2"}
    sink = open_sink(target, environment={}, base=tmp_path)
    assert sink.health().detail == "top" and not sink.guards
    assert sink.ship(make_document("a", 1, n=1)).outcome is Outcome.SHIPPED
    assert vars(type(sink))["held"] == {"a": b'{"n":1}'}
    with pytest.raises(Invalid, match="no sink of type") as unknown:
        open_sink({"type": "FAX"}, environment={})
    assert "SHELF" in (unknown.value.hint or "")
    with pytest.raises(Invalid, match="placeName is missing; apKey: there is no such") as caught:
        open_sink({"type": "SHELF", "apKey": "hunter2", "apiKey": "x"}, environment={})
    assert "did you mean apiKey?" in str(caught.value) and "hunter2" not in str(caught.value)


def test_a_plug_in_does_not_replace_what_is_built_in(plugins: Path, tmp_path: Path) -> None:
    with contextlib.closing(open_sink({"type": "JSONL", "path": "x.jsonl"}, environment={}, base=tmp_path)) as sink:
        assert sink.ship(make_document()).outcome is Outcome.SHIPPED
    assert len(list(read_snapshot(tmp_path / "x.jsonl"))) == 1
    with pytest.raises(Invalid) as unknown:
        open_sink({"type": "FAX"}, environment={})
    assert (unknown.value.hint or "").count("JSONL") == 1


def test_a_plug_in_that_is_no_sink_is_refused(plugins: Path) -> None:
    with pytest.raises(Invalid, match="not_a_sink is no sink"):
        open_sink({"type": "ODD"}, environment={})


def test_two_plug_ins_of_one_type_are_not_chosen_from(plugins: Path) -> None:
    _install(plugins, "other", "SHELF = elsewhere:Sink")
    with pytest.raises(Invalid, match="more than one package"):
        open_sink({"type": "SHELF"}, environment={})


def test_clients_are_imported_when_their_sinks_are_opened(tmp_path: Path) -> None:
    program = (
        "import sys, analemma\n"
        "analemma.open_sink({'type': 'JSONL', 'path': sys.argv[1]}, environment={}).close()\n"
        "assert not {'httpx', 'nats', 'botocore', 'obstore', 'psycopg'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "x.jsonl")], check=True, timeout=60)


MISSING = """
import sys
import analemma
from analemma.errors import Unavailable

for package, target, extra in {cases!r}:
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        del sys.modules[name]
    sys.modules[package] = None
    try:
        analemma.open_sink(target, environment={{}})
    except Unavailable as exc:
        assert f"analemma[{{extra}}]" in exc.hint, exc
    else:
        raise SystemExit(f"{{target}} opened without {{package}}")
"""


def test_a_missing_package_is_named_with_its_extra() -> None:
    cases = [
        ("httpx", {"type": "WEBHOOK", "url": "https://x", "secret": "s"}, "sinks"),
        ("httpx", {"type": "OPENSEARCH", "url": "https://x", "index": "i"}, "sinks"),
        ("nats", {"type": "NATS", "url": "nats://x", "stream": "s"}, "nats"),
        ("botocore", {"type": "PERSONALIZE", "dataset": "items", "region": "x", "datasetArn": "arn:x"}, "aws"),
        ("psycopg", {"type": "TABLE", "url": "postgresql:///x", "table": "t"}, "postgres"),
    ]
    subprocess.run([sys.executable, "-c", MISSING.format(cases=cases)], check=True, timeout=60)
