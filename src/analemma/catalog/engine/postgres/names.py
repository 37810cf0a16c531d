"""Where a store is on PostgreSQL: at a URL, of which a password is never repeated, and there in a schema, which every
statement names.

No session has a search path of ours, nor is one looked at: a pooler lends its connections to everybody.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from analemma.catalog.engine.postgres.errors import not_a_url
from analemma.catalog.engine.schema import migrations
from analemma.catalog.engine.sql import POSTGRES, Lazy
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
        # As psycopg takes them; always the same objects, so that it finds them in its own caches.
        self.queries = Lazy(lambda name: self.qualified(POSTGRES.statements[name].sql))
        """Statements, by their names."""
        self.sent = Lazy(self.qualified)
        """Calls of functions, by their text."""

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


def choose_schema(found: Sequence[str]) -> str:
    """The schema that is meant where none is named, in a database with stores in these."""
    usual = [schema for schema in found if schema in (USUAL, FIRST)]
    if len(usual) > 1 or (found and not usual):
        raise Invalid(
            f"it is not clear which store is meant: the database has one in the schema {', and one in '.join(found)}",
            hint="add schema=NAME to the URL's options; a new store may have a new name",
        )
    return usual[0] if usual else USUAL


def split_schema(url: str) -> tuple[str, str | None]:
    """The URL as PostgreSQL knows it, and the schema that it names."""
    base, asked, options = url.partition("?")
    kept: list[str] = []
    schemas: list[str] = []
    for option in options.split("&"):
        name, _, value = option.partition("=")
        (schemas if name == "schema" else kept).append(value if name == "schema" else option)
    if not schemas:
        return url, None
    if len(set(schemas)) > 1:
        raise Invalid("the URL names two schemas", hint="say schema= once")
    schema = unquote(schemas[0])
    # Nothing that would have to be quoted.
    if _SCHEMA.fullmatch(schema) is None:
        raise Invalid(
            f"not the name of a schema: {schema[:60]!r}",
            hint="use up to 47 small letters, digits and _, not beginning with a digit or pg_",
        )
    return base + (asked + "&".join(kept) if kept else ""), schema


def parse_url(url: str) -> dict[str, Any]:
    """What the URL says. A special character that was not escaped puts a piece of the password where we print it."""
    try:
        parts = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeEncodeError):
        raise not_a_url() from None
    ports = str(parts.get("port") or "").split(",")
    if (
        "\0" in url
        or any("@" in str(parts.get(key) or "") for key in ("host", "hostaddr", "port", "dbname"))
        or not all(port == "" or (port.isascii() and port.isdigit()) for port in ports)
    ):
        raise not_a_url()
    return parts


def server_name(parts: Mapping[str, Any]) -> str:
    """Where it is, without the password."""
    host = parts.get("host") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{host}{port}/{parts.get('dbname') or ''}"


@cache
def _ours() -> re.Pattern[str]:
    """What stands before a name that is ours."""
    created = (re.findall(r"^CREATE (?:TABLE|VIEW) (\w+)", each.text, re.MULTILINE) for each in migrations())
    tables = "|".join(sorted({"migration", *(name for names in created for name in names)}))
    places = r"FROM|JOIN|INTO|UPDATE|USING|REFERENCES|TABLE|TABLE IF NOT EXISTS|VIEW|INDEX \w+ ON"
    return re.compile(
        rf"""(?P<other>'(?:[^']|'')*'|"[^"]*"|--[^\n]*)"""
        rf"|\b(?:{places})\s+(?=(?:{tables})\b(?!\.))|\bDROP INDEX\s+|\b(?=analemma_)"
    )
