"""Reads PostgreSQL URLs without ever repeating a password."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from analemma.catalog.engine.postgres.errors import not_a_url
from analemma.catalog.engine.postgres.names import check_schema
from analemma.errors import Invalid


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
    return base + (asked + "&".join(kept) if kept else ""), check_schema(unquote(schemas[0]))


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
