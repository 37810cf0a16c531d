"""Writes the tables of the sinks' reference page from the settings themselves:
`python -m analemma.sinks.reference docs/reference/sinks.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from analemma.sinks.registry import BUILT_IN, sink_class

_TABLE = re.compile(r"(<!-- settings: (\w+) -->\n\n).*?(?=\n\n|\n?\Z)", re.DOTALL)


def settings_table(sink_type: str) -> str:
    """The settings of a type, as a table in Markdown."""
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in sink_class(sink_type).settings_class.model_fields.items():
        key = field.alias or name
        rows.append(f"| `{key}` | {_expected(field)} | {_default(field)} | {field.description} |")
    return "\n".join(rows)


def with_tables(page: str) -> str:
    """The page with each table below a comment `settings: TYPE` as the code has it now."""
    return _TABLE.sub(lambda found: found[1] + settings_table(found[2]), page)


def _expected(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        [annotation] = [each for each in get_args(annotation) if each is not type(None)]
    while hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) is dict:
        return "names and secret values"
    names = {bool: "`true` or `false`", int: "an integer", float: "a number", SecretStr: "text, secret", str: "text"}
    return names[annotation] + _limits(field)


def _limits(field: FieldInfo) -> str:
    found = {name: getattr(part, name) for part in field.metadata for name in ("ge", "le") if hasattr(part, name)}
    most = next((part.le for part in field.metadata if hasattr(part, "le")), None)
    if "ge" in found:
        return f" from {found['ge']} to {found['le']}"
    return f" up to {most}" if most is not None else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "unset"
    if field.default == {}:
        return "none"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def main(path: str) -> None:
    """Write the tables into the page."""
    page = Path(path)
    text = page.read_text(encoding="utf-8")
    missing = [sink_type for sink_type in BUILT_IN if f"<!-- settings: {sink_type} -->" not in text]
    if missing:
        raise SystemExit(f"{path} has no place for {', '.join(missing)}")
    page.write_text(with_tables(text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
