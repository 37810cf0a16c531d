"""Where a store is in a PostgreSQL database: in a schema, which every statement names.

No session has a search path of ours, nor is one looked at: a pooler lends its connections to everybody.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache, cached_property

from analemma.catalog.engine.functions import Function
from analemma.catalog.engine.schema import migrations
from analemma.catalog.engine.sql import load
from analemma.errors import Invalid

USUAL = "analemma"
FIRST = "public"
"""Where stores were before they had a schema of their own."""
_SCHEMA = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,46}")


class Names:
    """The names of one schema: what statements, functions and scripts are sent as.

    In their text, tables stand behind a word that tells them from columns, and all functions begin alike. `{schema}` is
    the schema, `{channel}` what its workers listen to, and `{number}` tells its advisory locks from those of others."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        number = int.from_bytes(hashlib.sha256(schema.encode()).digest()[:6])
        # Of the first they are what they always were: a program of an earlier release may be there, too.
        is_first = schema == FIRST
        self._tokens = {
            "{schema}": f'"{schema}"',
            "{channel}": "analemma_outbox" if is_first else f"analemma_outbox_{schema}",
            "{number}": "0" if is_first else str(number),
        }
        self._calls: dict[str, bytes] = {}

    @cached_property
    def queries(self) -> dict[str, bytes]:
        """The statements as psycopg takes them; always the same objects, so that it finds them in its own caches."""
        return {name: self.qualified(statement.sql) for name, statement in load("postgres").items()}

    def call(self, function: Function) -> bytes:
        """The call of a function; always the same object, too."""
        found = self._calls.get(function.name)
        return found or self._calls.setdefault(function.name, self.qualified(function.call))

    def qualified(self, sql: str) -> bytes:
        """The same with the schema before every name that is ours."""
        for token, stands_for in self._tokens.items():
            sql = sql.replace(token, stands_for)
        before = f'"{self.schema}".'
        return _ours().sub(lambda found: found[0] if found["other"] else found[0] + before, sql).encode()


@cache
def names(schema: str) -> Names:
    """The names of a schema."""
    return Names(schema)


def check_schema(schema: str) -> str:
    """Refuse what cannot be a schema's name, or would have to be quoted."""
    if _SCHEMA.fullmatch(schema) is None:
        raise Invalid(
            f"not the name of a schema: {schema[:60]!r}",
            hint="use up to 47 small letters, digits and _, not beginning with a digit or pg_",
        )
    return schema


def choose_schema(found: Sequence[str]) -> str:
    """The schema that is meant where none is named, in a database with stores in these."""
    usual = [schema for schema in found if schema in (USUAL, FIRST)]
    if len(usual) > 1 or (found and not usual):
        raise Invalid(
            f"it is not clear which store is meant: the database has one in the schema {', and one in '.join(found)}",
            hint="add schema=NAME to the URL's options; a new store may have a new name",
        )
    return usual[0] if usual else USUAL


@cache
def _ours() -> re.Pattern[str]:
    """What stands before a name that is ours."""
    created = (re.findall(r"^CREATE TABLE (\w+)", each.text, re.MULTILINE) for each in migrations())
    tables = "|".join(sorted({"migration", *(name for names in created for name in names)}))
    places = r"FROM|JOIN|INTO|UPDATE|USING|REFERENCES|TABLE|TABLE IF NOT EXISTS|INDEX \w+ ON"
    return re.compile(
        rf"""(?P<other>'(?:[^']|'')*'|"[^"]*"|--[^\n]*)"""
        rf"|\b(?:{places})\s+(?=(?:{tables})\b(?!\.))|\bDROP INDEX\s+|\b(?=analemma_)"
    )
