"""Contracts in the store: loaded all or none, kept as they were published, seen by every process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import ContractProblems, load_contracts
from analemma.errors import Corrupt, NotFound
from tests.api.pipeline.tables import query
from tests.core.contracts.bookshop import EXAMPLE, TEXT, changed, line_of
from tests.raw_rows import change
from tests.stores import Store

NOTE: dict[str, Any] = {
    "kind": "ENTITY_SCHEMA",
    "id": "entity.note",
    "version": "1.0.0",
    "status": "ACTIVE",
    "entityType": "NOTE",
    "fields": [{"name": "text", "type": "string"}],
}


def test_a_file_a_directory_a_dict_and_a_list_can_be_loaded(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "bookshop.yaml").write_text(TEXT)
    with store.open() as app:
        assert app.contracts.load(folder).entity_types == ("AUTHOR", "BOOK")
        assert app.contracts.load(NOTE).entity_types == ("AUTHOR", "BOOK", "NOTE")
        second = {**NOTE, "id": "entity.memo", "entityType": "MEMO"}
        assert app.contracts.load([second, {**NOTE, "version": "1.1.0"}]).entity_types[-2:] == ("MEMO", "NOTE")
        assert str(app.contracts.current.schema("NOTE").version) == "1.1.0"


def test_what_was_loaded_is_there_when_the_store_is_opened_again(store: Store) -> None:
    with store.open() as app:
        loaded = app.contracts.load(EXAMPLE)
    with store.open() as app:
        found = app.contracts.current
        assert {each.ref: each.checksum for each in found.contracts} == {
            each.ref: each.checksum for each in loaded.contracts
        }
        assert found.ruleset("BOOK").fingerprint == loaded.ruleset("BOOK").fingerprint
        assert [each.id for each in app.contracts.list()] == sorted(each.id for each in loaded.contracts)


def test_without_contracts_the_hint_says_how_to_load_them(store: Store) -> None:
    with store.open() as app:
        assert app.contracts.list() == ()
        with pytest.raises(NotFound, match="contracts load"):
            _ = app.contracts.current


def test_all_problems_are_told_at_once_and_nothing_is_loaded(store: Store, tmp_path: Path) -> None:
    text = changed("requiredSlices: [CORE, PRICE]", "requiredSlices: [CORE, COST]")
    text = changed("{name: price, type: long, required: true}", "{name: price, type: longer}", text=text)
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with store.open() as app:
        with pytest.raises(ContractProblems) as caught:
            app.contracts.load(file)
        assert [each.line for each in caught.value.problems] == [
            line_of(text, "type: longer"),
            line_of(text, "requiredSlices"),
        ]
        assert app.contracts.list() == ()


def test_loading_the_same_again_changes_nothing(store: Store) -> None:
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        before = app.contracts.list()
        app.contracts.load(EXAMPLE)
        assert app.contracts.list() == before


def test_what_was_published_keeps_its_content(store: Store, tmp_path: Path) -> None:
    text = changed("{type: PassThrough, fields: [isbn, title, tags]}", "{type: PassThrough, fields: [isbn, title]}")
    file = tmp_path / "edited.yaml"
    file.write_text(text)
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        with pytest.raises(ContractProblems, match=r"ruleset\.book\.v1@1\.0\.0 is in use with other content"):
            app.contracts.load(file)
        assert list(map(str, app.contracts.current.ruleset("BOOK").slices_by_type["CORE"].reads)) == [
            "/isbn",
            "/title",
            "/tags",
        ]


def test_a_draft_may_change_and_then_be_published(store: Store) -> None:
    with store.open() as app:
        app.contracts.load({**NOTE, "status": "DRAFT"})
        wider = {**NOTE, "fields": [{"name": "body", "type": "string"}]}
        app.contracts.load({**wider, "status": "DRAFT"})
        app.contracts.load(wider)
        assert [field.name for field in app.contracts.current.schema("NOTE").fields] == ["body"]


def test_a_status_moves_on_and_never_back(store: Store) -> None:
    with store.open() as app:
        app.contracts.load(NOTE)
        app.contracts.load({**NOTE, "status": "DEPRECATED"})
        assert app.contracts.get("entity.note").status == "DEPRECATED"
        with pytest.raises(ContractProblems, match="cannot become ACTIVE again"):
            app.contracts.load(NOTE)
        app.contracts.load({**NOTE, "status": "ARCHIVED"})
        assert app.contracts.get("entity.note", "1.0.0").status == "ARCHIVED"
        with pytest.raises(NotFound):
            app.contracts.get("entity.note")


def test_a_contract_can_refer_to_what_was_loaded_before(store: Store) -> None:
    view = {
        "kind": "VIEW_DEFINITION",
        "id": "view.book.short",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "BOOK",
        "requiredSlices": ["CORE"],
    }
    with store.open() as app:
        with pytest.raises(ContractProblems, match="there is no ENTITY_SCHEMA for BOOK"):
            app.contracts.load(view)
        app.contracts.load(EXAMPLE)
        assert app.contracts.load(view).view("view.book.short").required_slices == ("CORE",)
        with pytest.raises(ContractProblems, match=r"has no slice NOPE"):
            app.contracts.load({**view, "id": "view.book.odd", "requiredSlices": ["NOPE"]})


def test_what_would_break_a_loaded_contract_is_refused(store: Store, tmp_path: Path) -> None:
    """The book's ruleset joins AUTHOR's SUMMARY; an author's ruleset without it breaks that."""
    documents = TEXT.split("\n---\n")
    schema = documents[0].replace("version: 1.0.0", "version: 2.0.0")
    ruleset = documents[1].replace("version: 1.0.0", "version: 2.0.0").replace("SUMMARY", "SHORT")
    file = tmp_path / "author.yaml"
    file.write_text(schema + "\n---\n" + ruleset)
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        with pytest.raises(ContractProblems, match=r"the store, ruleset\.book\.v1@1\.0\.0.*has no slice SUMMARY"):
            app.contracts.load(file)
        # Together with a book that joins the new one, and a view of that, it is fine: the old ruleset of books applies
        # no more.
        books = documents[2].replace("version: 1.0.0", "version: 2.0.0")
        rules = documents[3].replace("version: 1.0.0", "version: 2.0.0").replace("SUMMARY", "SHORT")
        view = documents[4].replace("version: 1.0.0", "version: 2.0.0")
        file.write_text("\n---\n".join([schema, ruleset, books, rules]))
        with pytest.raises(ContractProblems, match=r"the store, ruleset\.book\.v1@1\.0\.0.*has no slice SUMMARY"):
            app.contracts.load(file)
        file.write_text("\n---\n".join([schema, ruleset, books, rules, view]))
        assert str(app.contracts.load(file).ruleset("BOOK").version) == "2.0.0"


def test_nothing_new_binds_what_is_deprecated(store: Store) -> None:
    deprecated = TEXT.replace(
        "id: ruleset.book.v1\nversion: 1.0.0\nstatus: ACTIVE", "id: ruleset.book.v1\nversion: 1.0.0\nstatus: DEPRECATED"
    )
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        path = Path(store.objects or store.url).parent / "deprecated.yaml"
        path.write_text(deprecated)
        assert app.contracts.load(path).ruleset("BOOK").status == "DEPRECATED"
        view = app.contracts.get("view.book.detail.v1").document
        with pytest.raises(ContractProblems, match="is new and binds"):
            app.contracts.load({**view, "id": "view.book.other"})


def test_another_process_sees_what_was_loaded(store: Store) -> None:
    with store.open() as app, store.open() as other:
        app.contracts.load({**NOTE, "status": "DRAFT"})
        assert other.contracts.current.schema("NOTE").status == "DRAFT"
        app.contracts.load(NOTE)
        assert app.contracts.current.schema("NOTE").status == "ACTIVE"
        end = time.monotonic() + 30
        while other.contracts.current.schema("NOTE").status != "ACTIVE":
            assert time.monotonic() < end
            time.sleep(0.02)


def test_contracts_that_are_loaded_at_the_same_time_are_checked_against_each_other(store: Store) -> None:
    """Two that publish the same version with different content: one of them is refused, whoever comes second."""
    outcomes: list[str] = []

    def load(field: str) -> None:
        with store.open() as app:
            start.wait()
            try:
                app.contracts.load({**NOTE, "fields": [{"name": field, "type": "string"}]})
                outcomes.append(field)
            except ContractProblems:
                outcomes.append("refused")

    with store.open() as app:
        start = threading.Barrier(4)
        threads = [threading.Thread(target=load, args=(name,)) for name in ("a", "b", "c", "d")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count("refused") == 3
        (winner,) = [each for each in outcomes if each != "refused"]
        assert [each.name for each in app.contracts.current.schema("NOTE").fields] == [winner]


Row = tuple[str, str, bytes]
"""Status, checksum and content, as they are stored."""

ODD_ROWS: dict[str, Callable[[str, str, bytes], Row]] = {
    "another field": lambda status, checksum, body: (status, checksum, body.replace(b"text", b"tixt")),
    "no JSON": lambda status, checksum, body: (status, checksum, b"{"),
    "a list": lambda status, checksum, body: (status, checksum, b"[]"),
    "a number": lambda status, checksum, body: (status, checksum, b"5"),
    "no text": lambda status, checksum, body: (status, checksum, b"\xff"),
    "another kind": lambda status, checksum, body: (status, checksum, b'{"kind":"X"}'),
    "not all of it": lambda status, checksum, body: (status, checksum, body.replace(b'"entityType":"NOTE",', b"")),
    "another id": lambda status, checksum, body: (status, checksum, body.replace(b"entity.note", b"entity.nota")),
    "another status": lambda status, checksum, body: (status, checksum, body.replace(b"ACTIVE", b"DRAFT")),
    "a status that is none": lambda status, checksum, body: ("LOST", checksum, body),
    "another checksum": lambda status, checksum, body: (status, "sha256:0", body),
}


def test_a_damaged_row_is_named_and_not_used(store: Store) -> None:
    with store.open() as app:
        app.contracts.load({**NOTE, "id": "entity.memo", "entityType": "MEMO"})
        app.contracts.load(NOTE)
    ((status, checksum, body),) = query(store, "SELECT status, checksum, body FROM contract WHERE id = 'entity.note'")
    wrong = []
    for case, damage in ODD_ROWS.items():
        odd = damage(status, checksum, bytes(body))
        assert odd != (status, checksum, bytes(body))
        change(store, "UPDATE contract SET status = ?, checksum = ?, body = ? WHERE id = 'entity.note'", odd)
        for ask in ("current", "list"):
            with store.open() as app:
                try:
                    _ = app.contracts.current if ask == "current" else app.contracts.list()
                except Corrupt as exc:
                    named = "the contract entity.note@1.0.0 in the store" in str(exc)
                    if named and exc.contract == "entity.note@1.0.0":
                        continue
                wrong.append((case, ask))
    assert wrong == []


def test_a_store_without_contracts_takes_what_validate_takes(store: Store, tmp_path: Path) -> None:
    """Something ACTIVE that binds what is DEPRECATED is odd, and nothing new in a store where all is new."""
    file = tmp_path / "deprecated.yaml"
    name = "id: ruleset.book.v1\nversion: 1.0.0\nstatus: "
    file.write_text(changed(f"{name}ACTIVE", f"{name}DEPRECATED"))
    checked = load_contracts(file)
    assert checked.warnings
    with store.open() as app:
        assert app.contracts.load(file).warnings == checked.warnings


def test_what_a_schema_names_must_stay_whole(store: Store) -> None:
    """The schema of books names version 1 of their ruleset; a version 2 beside it, which nothing uses, does not make
    it idle."""
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        books = app.contracts.get("ruleset.book.v1").document
        app.contracts.load({**books, "version": "2.0.0"})
        assert str(app.contracts.current.ruleset("BOOK").version) == "1.0.0"
        rules = app.contracts.get("ruleset.author.v1").document
        rules |= {"version": "2.0.0", "slices": [each for each in rules["slices"] if each["type"] != "SUMMARY"]}
        schema = app.contracts.get("entity.author.v1").document
        schema |= {"version": "2.0.0", "ruleSetRef": {"id": rules["id"], "version": "2.0.0"}}
        with pytest.raises(ContractProblems, match=r"the store, ruleset\.book\.v1@1\.0\.0.*has no slice SUMMARY"):
            app.contracts.load([rules, schema])


def test_what_was_replaced_can_be_loaded_again_and_retired(store: Store) -> None:
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        rule = app.contracts.get("sinkrule.file.book").document
        view = app.contracts.get("view.book.detail.v1").document
        books = app.contracts.get("ruleset.book.v1").document
        schema = app.contracts.get("entity.book.v1").document
        # Books that join nobody any more; the sink rule shipped what they got from there.
        less = {
            "version": "2.0.0",
            "slices": [each for each in books["slices"] if each["type"] != "ENRICHED"],
            "impactMap": {name: paths for name, paths in books["impactMap"].items() if name != "ENRICHED"},
            "ignore": ["/audit/*", "/authorId"],
            "indexes": [each for each in books["indexes"] if each["type"] == "tag"],
        }
        bound = {"version": "2.0.0", "ruleSetRef": {"id": books["id"], "version": "2.0.0"}}
        shipped = {"type": "SLICE", "entityTypes": ["BOOK"], "sliceTypes": ["CORE"]}
        later = [
            {**books, **less},
            {**schema, **bound},
            {**view, **bound, "optionalSlices": ["INVENTORY"]},
            {**rule, "version": "2.0.0", "input": shipped},
        ]
        app.contracts.load(later)
        for again in ((EXAMPLE,), (EXAMPLE, later)):
            (warning,) = app.contracts.load(*again).warnings
            assert warning.reason == "ruleset.book.v1@2.0.0 has no slice ENRICHED"
        for status in ("DEPRECATED", "ARCHIVED"):
            app.contracts.load([{**each, "status": status} for each in (books, schema, view, rule)])
        found = {f"{each.id}@{each.version}": each.status for each in app.contracts.list()}
        assert found["view.book.detail.v1@1.0.0"] == "ARCHIVED"
        assert found["view.book.detail.v1@2.0.0"] == "ACTIVE"
