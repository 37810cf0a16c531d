"""The reference pages list exactly what the code has."""

from __future__ import annotations

import inspect

from analemma import errors
from analemma.canon.registry import RESERVED_NAMES
from analemma.canon.standard_types import standard_registry
from tests.declared_failpoints import declared_failpoints
from tests.docs.pages import DOCS, table_rows


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


def test_every_failpoint_is_on_its_page() -> None:
    listed = {row[0]: row[1] for row in table_rows(DOCS / "reference" / "failpoints.md", first_heading="name")}
    assert listed == declared_failpoints()


def test_every_standard_type_is_on_its_page() -> None:
    registry = standard_registry()
    page = DOCS / "reference" / "value-types.md"
    rows = table_rows(page, first_heading="name")
    assert {row[0] for row in rows} == set(registry._by_name)
    for name, python_type, _ in rows:
        codec = registry.for_name(name)
        assert codec is not None and codec.type.__qualname__ == python_type.rpartition(".")[2]
    assert all(f"`{name}`" in page.read_text(encoding="utf-8") for name in RESERVED_NAMES)
