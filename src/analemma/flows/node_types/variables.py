"""Which variables of the environment documents may use, where their values may go, and how they stay out of what is
told and stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

from analemma.errors import Denied, Invalid
from analemma.flows.naming import ENVIRONMENT_NAME
from analemma.flows.node_types.places import NONE, host_of
from analemma.flows.texts import environment_names, fill, fill_environment, fill_value

FREE_PREFIX: Final = "ANALEMMA_FLOW_"
"""Documents may use variables that begin so, without anybody listing them."""
KNOWN_PLACES: Final = {"OPENAI_BASE_URL": "https://api.openai.com/v1"}
"""What a variable is where it is not set."""
SHORTEST_MASKED: Final = 6
"""A shorter value is too likely to be a part of something else."""
MASK: Final = "***"
LONGEST_TOLD: Final = 300
"""So much of what a host says stands in an error."""

_RULE: Final = re.compile(rf"({ENVIRONMENT_NAME})(?:@(\$\{{{ENVIRONMENT_NAME}\}}|[A-Za-z0-9.:_\[\]-]+))?")
_LEADING_PLACEHOLDER: Final = re.compile(r"\{\{[^{}]*\}\}")
_AUTHORITY: Final = re.compile(r"[^:/?#]*://[^/?#]*")
_FILLED: Final = "\x00"
"""Stands around each value while a URL is filled in: no value has it, for they are escaped."""


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables that documents may use, and for each, if it is bound, the host that its value may be sent to."""

    bound: Mapping[str, str | None]
    environment: Callable[[], Mapping[str, str]]

    def of(self, state: Mapping[str, Any]) -> Filling:
        """Fills the texts of one node."""
        return Filling(self, {**KNOWN_PLACES, **self.environment()}, state)


def read_variables(text: str, environment: Callable[[], Mapping[str, str]]) -> Variables:
    """From a setting: names separated by commas, each perhaps with `@` and a host, or `@${NAME}` for the host of the
    address that another variable has."""
    bound: dict[str, str | None] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        if part == NONE:
            continue
        match = _RULE.fullmatch(part)
        if match is None:
            raise Invalid(
                f"node_variables: {part!r} names no variable",
                hint="write NAME, NAME@host or NAME@${OTHER}, separated by commas",
            )
        bound[match[1]] = None if match[2] is None else match[2].lower() if match[2][0] != "$" else match[2]
    return Variables(bound, environment)


class Filling:
    """Fills the texts of one execution of a node, and remembers which secrets went into them.

    Variables are filled in before the state is: what the state says is never looked up in the environment."""

    def __init__(self, variables: Variables, environment: Mapping[str, str], state: Mapping[str, Any]) -> None:
        self._variables = variables
        self._environment = environment
        self._state = state
        self._used: dict[str, str] = {}

    def text(self, text: str, *, encode: Callable[[str], str] = str) -> str:
        """A text, filled in."""
        return fill(self._from_environment(text), self._state, encode=encode)

    def value(self, value: Any) -> Any:
        """Data whose texts are filled in."""
        return fill_value(self._walk(value, escaped=True), self._state)

    def variables_in(self, value: Any) -> Any:
        """Data in whose texts variables are filled in, and nothing of the state."""
        return self._walk(value, escaped=False)

    def address(self, text: str) -> Address:
        """A URL, filled in. Values are escaped, so that they stay within their part of it, except one that the URL
        begins with: that is an address itself. Invalid where one would leave it all the same, as `..` or as
        nothing."""
        if _FILLED in text:
            raise Invalid("the URL has a control character", hint="escape it")
        place = self._place(text)
        leading = _LEADING_PLACEHOLDER.match(text)
        if leading is not None:
            return Address(_kept(self.text(leading[0]), self.text(text[leading.end() :], encode=_escaped)), None)
        return Address(_kept("", self.text(text, encode=_escaped)), place)

    def check_host(self, host: str, *, is_safe: bool) -> None:
        """Denied if a variable that was used is bound to another host; or if others could read it on its way, which is
        not `is_safe`."""
        for name in self._used:
            bound = self._variables.bound.get(name)
            if bound is not None and bound.startswith("${"):
                bound = host_of(self._environment.get(bound[2:-1], ""))
            if bound is not None and host != bound:
                raise Denied(
                    f"the variable {name} may not be sent to {host}",
                    hint="the setting node_variables says where to",
                    variable=name,
                )
            if not is_safe and self.is_secret(name):
                raise Denied(
                    f"the variable {name} would be sent to {host} unencrypted",
                    hint="use https, or list the host in node_hosts",
                    variable=name,
                )

    def is_secret(self, name: str) -> bool:
        """Whether a value is more than an address."""
        return bool(self._used.get(name)) and not host_of(self._used[name])

    def mask(self, text: str) -> str:
        """A text without the values that were filled in."""
        for value in self._secrets():
            text = text.replace(value, MASK)
        return text

    def told(self, said: str | bytes, longest: int = LONGEST_TOLD) -> str:
        """What a host said, for errors and logs: without those values, on one line, and not too long. Cut last, for
        nobody recognizes half a value."""
        masked = self.masked(said)
        text = masked if isinstance(masked, str) else masked.decode("utf-8", "replace")
        return one_line(text[: 20 * longest])[:longest]

    def masked(self, value: Any) -> Any:
        """Data without them: what a host sends back to us is stored, and they are not to be."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, bytes):
            for each in self._secrets():
                value = value.replace(each.encode(), MASK.encode())
            return value
        if isinstance(value, dict):
            return {self.mask(key): self.masked(each) for key, each in value.items()}
        return [self.masked(each) for each in value] if isinstance(value, list) else value

    def _secrets(self) -> list[str]:
        values = {self._used[name].strip() for name in self._used if self.is_secret(name)}
        # As they are, and as they stand in a URL, a form and JSON; the longest first, for one may be a part of another.
        forms = values | {write(value) for value in values for write in _WRITTEN}
        return sorted((each for each in forms if len(each) >= SHORTEST_MASKED), key=len, reverse=True)

    def _place(self, text: str) -> str | None:
        """The host that a variable at the beginning of a URL names: who runs the program chose it."""
        match = re.match(rf"\$\{{({ENVIRONMENT_NAME})\}}", text)
        return None if match is None else host_of(self._environment.get(match[1], "")) or None

    def _walk(self, value: Any, *, escaped: bool) -> Any:
        if isinstance(value, str):
            return self._from_environment(value, escaped=escaped)
        if isinstance(value, dict):
            return {key: self._walk(each, escaped=escaped) for key, each in value.items()}
        return [self._walk(each, escaped=escaped) for each in value] if isinstance(value, list) else value

    def _from_environment(self, text: str, *, escaped: bool = True) -> str:
        names = environment_names(text)
        for name in names:
            if name not in self._variables.bound and not name.startswith(FREE_PREFIX):
                raise Denied(
                    f"the document uses the variable {name}, which it may not",
                    hint=f"list it in the setting node_variables, or name it {FREE_PREFIX}...",
                    variable=name,
                )
            if name in self._environment:
                self._used[name] = self._environment[name]
        known = {name: self._environment[name] for name in names if name in self._environment}
        if escaped:
            # What a variable holds is no text of the document: two braces in it are two braces.
            known = {name: value.replace("{{", r"\{{") for name, value in known.items()}
        return fill_environment(text, known)


@dataclass(frozen=True, slots=True)
class Address:
    """A URL that was filled in."""

    url: str
    place: str | None
    """The host and port that a variable at its beginning names."""


def one_line(text: str) -> str:
    """A text without line ends and anything else that does not print.

    >>> one_line(" a\\r\\nb\\x1b[2J ")
    'a b [2J'
    """
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _escaped(text: str) -> str:
    return _FILLED + quote(text, safe="") + _FILLED


def _kept(address: str, rest: str) -> str:
    """A URL that was filled in, if what was filled in stayed in its place."""
    path = _AUTHORITY.sub("", re.split(r"[?#]", address + rest)[0], count=1)
    for segment in path.split("/"):
        bare = segment.replace(_FILLED, "")
        if unquote(bare) in (".", ".."):
            raise Invalid("a part of the URL's path is . or .., and would lead elsewhere", hint="look at the state")
        if not bare and segment:
            raise Invalid("a value leaves a part of the URL's path empty", hint="look at the state")
    return (address + rest).replace(_FILLED, "")


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _in_plain_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


_WRITTEN: Final[tuple[Callable[[str], str], ...]] = (_quoted, quote, quote_plus, _in_json, _in_plain_json)
