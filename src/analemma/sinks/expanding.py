"""Environment variables in settings: `${NAME}`, `${NAME:-default}`, and `$${` for what should stay.

Values are taken as they are and not looked at again, so a password may have a `$` in it. Errors name the variable and
never show a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from analemma.errors import Invalid

# A default may have placeholders, {tenantId}, in it.
_REFERENCE: Final = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-((?:[^{}]|\{[^{}]*\})*))?\})?")
_HINT: Final = "write ${NAME} or ${NAME:-default}; for a plain ${ write $${"


def expand(value: Any, environment: Mapping[str, str], at: str = "") -> Any:
    """The value with every variable in its texts filled in, however deep they are.

    >>> expand({"path": "${OUT:-./out}/books.jsonl"}, {})
    {'path': './out/books.jsonl'}
    """
    if isinstance(value, str):
        return _expand_text(value, environment, at)
    if isinstance(value, Mapping):
        return {key: expand(inner, environment, f"{at}/{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [expand(inner, environment, f"{at}/{number}") for number, inner in enumerate(value)]
    return value


def _expand_text(text: str, environment: Mapping[str, str], at: str) -> str:
    def filled(reference: re.Match[str]) -> str:
        if reference[0] == "$${":
            return "${"
        name, default = reference[1], reference[2]
        if name is None:
            raise Invalid(f"{at or 'a setting'}: a ${{ that names no variable", hint=_HINT, pointer=at)
        found = environment.get(name)
        if default is not None:
            # As in a shell: an empty variable counts as unset where there is a default.
            return found or default
        if found is None:
            raise Invalid(
                f"{at or 'a setting'}: the environment variable {name} is not set",
                hint=f"set it, or write ${{{name}:-default}}",
                pointer=at,
                variable=name,
            )
        return found

    return _REFERENCE.sub(filled, text)
