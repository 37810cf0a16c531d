"""The reference page of sinks says what the code has."""

from __future__ import annotations

from analemma.sinks.port import Outcome
from analemma.sinks.reference import with_tables
from analemma.sinks.registry import BUILT_IN, sink_class
from tests.docs.pages import DOCS, table_rows

PAGE = DOCS / "reference" / "sinks.md"


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- settings: {sink_type} -->" in text for sink_type in BUILT_IN)
    assert with_tables(text) == text


def test_every_type_is_there_with_what_it_guards() -> None:
    listed = {row[0].strip("[").partition("]")[0]: row[3] for row in table_rows(PAGE, first_heading="type")}
    assert listed.keys() == BUILT_IN.keys()
    for sink_type, guards in listed.items():
        # Where a setting decides, the page says which.
        always = getattr(sink_class(sink_type), "guards", False)
        assert guards == ("yes" if always else "no") or guards.startswith("with "), sink_type


def test_every_outcome_is_explained() -> None:
    assert [row[0] for row in table_rows(PAGE, first_heading="outcome")] == [each.value for each in Outcome]
