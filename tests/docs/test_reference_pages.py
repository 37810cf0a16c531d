"""The reference pages list exactly what the code has."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import re
import runpy
import shutil
import uuid
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import errors
from tests.cli.command_line import CODES, at
from tests.declared_failpoints import declared_failpoints
from tests.docs import aio_faces
from tests.docs.pages import DOCS, ROOT, markdown_files, shown, table_rows
from tests.stores import local

_WRITTEN_BY = re.compile(r"written by `python -m ([\w.]+) ([\w./-]+)`")
VALUES: dict[str, Any] = {
    "datetime": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC),
    "date": dt.date(2024, 2, 29),
    "time": dt.time(12),
    "timedelta": dt.timedelta(days=1),
    "decimal": Decimal("1.10"),
    "uuid": uuid.UUID(int=7),
    "tuple": (1, 2),
    "set": {1, 2},
    "frozenset": frozenset({1}),
}
"""One of each standard type, by the name that it is stored under."""


def test_pages_that_a_program_writes_are_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each names the program that writes it, or its tables."""
    old = []
    for page in markdown_files():
        if (writer := _WRITTEN_BY.search(page.read_text(encoding="utf-8"))) is None:
            continue
        assert ROOT / writer[2] == page
        copy = Path(shutil.copy(page, tmp_path))
        monkeypatch.setattr("sys.argv", [writer[1], str(copy)])
        with warnings.catch_warnings():
            # Others may have imported it before.
            warnings.simplefilter("ignore", RuntimeWarning)
            runpy.run_module(writer[1], run_name="__main__", alter_sys=True)
        if copy.read_text(encoding="utf-8") != page.read_text(encoding="utf-8"):
            old.append(f"run: python -m {writer[1]} {shown(page)}")
    assert old == []
    assert len(list(tmp_path.iterdir())) >= 5


def test_type_checkers_are_told_of_every_verb_that_can_be_awaited() -> None:
    told = Path(analemma.aio.__file__).with_name("aio_faces.pyi")
    command = f"python -m {aio_faces.__name__} {shown(told)}"
    assert told.read_text(encoding="utf-8") == aio_faces.stub(), f"run: {command}"


def test_every_error_is_on_its_page() -> None:
    listed = {row[0]: row[1] for row in table_rows(DOCS / "reference" / "errors.md", first_heading="class")}
    classes = [found for _, found in inspect.getmembers(errors, inspect.isclass) if found.__module__ == errors.__name__]
    assert all(issubclass(found, errors.AnalemmaError) for found in classes)
    assert listed == {found.__name__: found.kind for found in classes if issubclass(found, errors.AnalemmaError)}


def test_the_errors_page_names_what_else_an_error_is() -> None:
    for name, _, base, *_ in table_rows(DOCS / "reference" / "errors.md", first_heading="class"):
        bases = {found.__name__ for found in getattr(errors, name).__mro__[1:]}
        expected = bases - {"AnalemmaError", "Exception", "BaseException", "LookupError", "OSError", "object"}
        assert base in expected if base and name != "AnalemmaError" else not expected, name


def test_every_kind_is_on_the_page_of_exit_codes() -> None:
    rows = table_rows(DOCS / "reference" / "exit-codes.md", first_heading="code")
    assert {kind: int(code) for code, kinds, _ in rows for kind in kinds.split(", ") if kind} == CODES
    assert all(meaning for _, _, meaning in rows)


def test_every_failpoint_is_on_its_page() -> None:
    listed = {row[0]: row[1] for row in table_rows(DOCS / "reference" / "failpoints.md", first_heading="name")}
    assert listed == declared_failpoints()


def test_every_standard_type_is_on_its_page(tmp_path: Path) -> None:
    page = DOCS / "reference" / "value-types.md"
    types = {name: python_type for name, python_type, _ in table_rows(page, first_heading="name")}
    assert {name: python_type.rpartition(".")[2] for name, python_type in types.items()} == {
        name: type(value).__name__ for name, value in VALUES.items()
    }
    store = local(tmp_path)
    with store.open() as app:
        app.kernel.save_state_delta(VALUES, workflow_id="w", owner_id="ann")
        loaded = app.kernel.load_latest_state(workflow_id="w", owner_id="ann")
        assert loaded == VALUES and {name: type(loaded[name]) for name in loaded} == {
            name: type(VALUES[name]) for name in VALUES
        }
        reserved = re.findall(r"The names (.*?) belong to the encoding", page.read_text(encoding="utf-8"))[0]
        for name in re.findall(r"`(\w+)`", reserved):
            with pytest.raises(errors.Invalid):
                app.types.add(Path, name=name, encode=str, decode=Path)
    stored = json.loads(at(store, tmp_path).text("load", "-w", "w"))
    assert {name: value["$type"] for name, value in stored.items()} == {name: name for name in VALUES}


def test_every_outcome_of_a_sink_is_explained() -> None:
    rows = table_rows(DOCS / "reference" / "sinks.md", first_heading="outcome")
    known = [type(analemma.SHIPPED.outcome)(row[0]) for row in rows]
    assert known == list(type(analemma.SHIPPED.outcome))


TARGETS: dict[str, dict[str, Any]] = {
    "JSONL": {"path": "books.jsonl"},
    "TABLE": {"url": "sqlite:///books.db", "table": "books", "create": True},
    "OPENSEARCH": {"url": "http://127.0.0.1:9", "index": "books"},
    "PERSONALIZE": {"dataset": "items", "datasetArn": "arn:aws:x", "region": "eu-west-1"},
    "WEBHOOK": {"url": "http://127.0.0.1:9", "secret": "s" * 32},
    "OBJECTS": {"url": "objects"},
    "NATS": {"url": "nats://127.0.0.1:9", "stream": "books", "subject": "books"},
}


def test_every_type_of_sinks_is_there_with_what_it_guards(tmp_path: Path) -> None:
    page = DOCS / "reference" / "sinks.md"
    listed = {row[0].strip("[").partition("]")[0]: row[3] for row in table_rows(page, first_heading="type")}
    with pytest.raises(errors.Invalid) as unknown:
        analemma.open_sink({"type": "NOPE"})
    types = re.findall(r"\b[A-Z]{4,}\b", (unknown.value.hint or "").partition(";")[0])
    assert sorted(listed) == sorted(types) == sorted(TARGETS)
    for sink_type, guards in listed.items():
        sink = analemma.open_sink({"type": sink_type, **TARGETS[sink_type]}, base=tmp_path)
        # Where a setting decides, the page says which.
        assert guards == ("yes" if sink.guards else "no") or guards.startswith("with "), sink_type
        sink.close()
