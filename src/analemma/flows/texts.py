"""Texts in a document that are filled in when a node runs: `{{path}}` from the state, `${NAME}` from the environment.

A document holds no secrets, so what looks like one is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json
from analemma.errors import Invalid, NotFound
from analemma.flows.naming import ENVIRONMENT_NAME, path_tokens

_PLACEHOLDER: Final = re.compile(r"\\\{\{|\{\{\s*([^{}]*?)\s*\}\}|\{\{")
_ENVIRONMENT: Final = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_ENVIRONMENT_NAME: Final = re.compile(ENVIRONMENT_NAME)

_SECRET_KEY: Final = re.compile(
    r"(?i)(?:^|[_-])(?:api[_-]?key|apikey|authorization|password|passwd|secret|cookie|credentials?"
    r"|access[_-]?key|private[_-]?key|(?:access|auth|bearer|refresh|session)[_-]?token|token)$"
)
_KNOWN_SECRET: Final = re.compile(
    r"\bsk-[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bgh[opsu]_[A-Za-z0-9]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"
)
_SCHEME: Final = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9._-]{0,15}\s+)?\s*")

MISSING: Final = object()


def placeholders(text: str) -> tuple[str, ...]:
    """The paths that a text takes from the state; Invalid for braces that are not closed.

    >>> placeholders("Dear {{name}}: {{ /ticket/title }}")
    ('name', '/ticket/title')
    """
    found: list[str] = []
    for match in _PLACEHOLDER.finditer(text):
        if match[0] == r"\{{":
            continue
        if not match[1]:
            raise Invalid("a placeholder names no path", hint=r"write {{field}}; two braces themselves are \{{")
        path_tokens(match[1])
        found.append(match[1])
    return tuple(found)


def environment_names(text: str) -> tuple[str, ...]:
    """The variables that a text refers to; Invalid for what is no name.

    >>> environment_names("Bearer ${TOKEN}, costs $${5}")
    ('TOKEN',)
    """
    found: list[str] = []
    for match in _ENVIRONMENT.finditer(text):
        if match[0] == "$${":
            continue
        if not _ENVIRONMENT_NAME.fullmatch(match[1] or ""):
            raise Invalid(
                f"{match[0]} is no reference to the environment",
                hint="names are of capitals, digits and _; `$${` is the text `${`",
            )
        found.append(match[1])
    return tuple(found)


def fill(text: str, state: Mapping[str, Any], encode: Callable[[str], str] = str) -> str:
    """A text with its placeholders filled in: texts as they are, anything else as JSON, all through `encode`.

    >>> fill(r"{{n}} of \\{{n}}: {{/t/0}}", {"n": 2, "t": ["a"]})
    '2 of {{n}}: a'
    """

    def one(match: re.Match[str]) -> str:
        if match[0] == r"\{{":
            return "{{"
        value = value_at(state, match[1])
        if value is MISSING:
            raise NotFound(f"the state has nothing at {match[1]}", hint="the text of the node needs it")
        return encode(value if isinstance(value, str) else canonical_json(plain_data(value)).decode())

    return _PLACEHOLDER.sub(one, text)


def fill_value(value: Any, state: Mapping[str, Any]) -> Any:
    """Data with the texts in it filled in; a text that is one placeholder and nothing else becomes what is there,
    whatever its type."""
    if isinstance(value, str):
        whole = _PLACEHOLDER.fullmatch(value)
        if whole is None or not whole[1]:
            return fill(value, state)
        found = value_at(state, whole[1])
        return fill(value, state) if found is MISSING else plain_data(found)
    if isinstance(value, dict):
        return {key: fill_value(each, state) for key, each in value.items()}
    return [fill_value(each, state) for each in value] if isinstance(value, list) else value


def fill_environment(text: str, environment: Mapping[str, str]) -> str:
    """A text with its variables filled in; NotFound names the first that is not set."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match[1] not in environment:
            raise NotFound(f"the variable {match[1]} is not set", hint="set it where the flow runs", name=match[1])
        return environment[match[1]]

    return _ENVIRONMENT.sub(one, text)


def plain_data(value: Any) -> Any:
    """What a state holds, without its keeping track of changes."""
    if isinstance(value, Mapping):
        return {name: plain_data(each) for name, each in value.items()}
    return [plain_data(each) for each in value] if isinstance(value, list | tuple) else value


def value_at(state: Mapping[str, Any], path: str) -> Any:
    """What a state has at a path, or MISSING."""
    value: Any = state
    for token in path_tokens(path):
        if isinstance(value, Mapping) and token in value:
            value = value[token]
        elif isinstance(value, list | tuple) and token.isascii() and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            return MISSING
    return value


def texts_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text inside data, with the key that it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from texts_in(each, name)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each, key)


def secret_problem(key: str, text: str) -> str | None:
    """Why a text may not stand under a key of a document: it is, or looks like, a secret."""
    if _KNOWN_SECRET.search(text):
        return f"{key or 'a text'} looks like a secret"
    if not _SECRET_KEY.search(key) or not text:
        return None
    rest = _PLACEHOLDER.sub("", _ENVIRONMENT.sub("", text))
    is_reference = rest != text and _SCHEME.fullmatch(rest) is not None
    return None if is_reference else f"{key} is a secret written out"
