"""Settings of sinks: checked all at once, with hints, and without ever showing a secret.

A sink's settings are a subclass of `SinkSettings`. Texts that may hold a password or a key are `SecretStr`."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.alias_generators import to_camel

from analemma.clock import Clock, SystemClock
from analemma.contracts.templates import Template, parse_template
from analemma.errors import Invalid
from analemma.sinks.port import SinkDocument

PLACEHOLDERS: Final = ("tenantId", "entityType")

# Begins with a letter or digit, so that no value makes a hidden file, `..`, or an option of it.
_SAFE_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink gets besides its settings."""

    base: Path
    """Where relative paths begin."""
    clock: Clock = field(default_factory=SystemClock)


class SinkSettings(BaseModel):
    """What every sink's settings are like: camelCase keys, no others, immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=False, hide_input_in_errors=True
    )


Settings = TypeVar("Settings", bound=SinkSettings)


def _checked_template(text: str) -> str:
    parse_template(text, PLACEHOLDERS)
    return text


def _checked_url(url: str) -> str:
    if not re.match(r"https?://[^/?#\s]+", url):
        raise ValueError("is no http:// or https:// URL")
    if "@" in url.split("://", 1)[1].split("/", 1)[0] or re.search(r"[\s#]", url):
        raise ValueError("has a user, a fragment or a space in it: there are settings for passwords")
    return url


Text = Annotated[str, Field(min_length=1, max_length=4096)]
TemplateText = Annotated[Text, AfterValidator(_checked_template)]
"""May have the placeholders {tenantId} and {entityType}."""
HttpUrl = Annotated[Text, AfterValidator(_checked_url)]
Secret = Annotated[SecretStr, Field(min_length=1, max_length=4096)]
TimeoutS = Annotated[float, Field(gt=0, le=3600)]


Place = tuple[str | int, ...]
"""Where in the settings of a sink."""


class SettingProblem(NamedTuple):
    """One thing that is wrong with the settings of a sink; no value is ever part of it."""

    place: Place
    reason: str
    hint: str | None = None


def read_settings(settings_class: type[Settings], sink_type: str, given: Mapping[str, Any]) -> Settings:
    """The settings as their class, or Invalid with everything that is wrong with them."""
    try:
        return settings_class.model_validate(dict(given))
    except ValidationError as exc:
        found = _explained(exc, settings_class)
    raise Invalid(
        f"the settings of the {sink_type} sink are wrong: {'; '.join(each.reason for each in found)}",
        hint=next((each.hint for each in found if each.hint is not None), None),
        pointer="/" + "/".join(map(str, found[0].place)),
    )


def find_problems(
    settings_class: type[SinkSettings], given: Mapping[str, Any], *, unknown: Callable[[Place], bool]
) -> list[SettingProblem]:
    """Everything that is wrong with settings; a value that is `unknown` yet is not judged."""
    try:
        settings_class.model_validate(dict(given))
    except ValidationError as exc:
        return _explained(exc, settings_class, unknown)
    return []


class Route:
    """A template of places: which of them a document goes to."""

    def __init__(self, text: str, *, lower_case_type: bool = False) -> None:
        self.template: Template = parse_template(text, PLACEHOLDERS)
        self._lower_case_type = lower_case_type
        self.is_one_place = not self.template.placeholders
        self._needs_type = "entityType" in self.template.placeholders
        # Batches are large, and of few tenants and types.
        self._told = lru_cache(1024)(self._tell)

    def why_not(self, document: SinkDocument) -> str | None:
        """Why the document's place cannot be told; None if it can."""
        if self.is_one_place:
            return None
        return self._told(document.tenant, document.entity_type if self._needs_type else "")[1]

    def place(self, document: SinkDocument) -> str:
        """Where it goes, if `why_not` had no objection."""
        if self.is_one_place:
            return self.template.text
        return self._told(document.tenant, document.entity_type if self._needs_type else "")[0]

    def identity(self, document: SinkDocument) -> Hashable:
        """What tells the document from others that go by this route."""
        return document.doc_id if self.is_one_place else (document.doc_id, self.place(document))

    def _tell(self, tenant: str, entity_type: str) -> tuple[str, str | None]:
        values = {"tenantId": tenant, "entityType": entity_type.lower() if self._lower_case_type else entity_type}
        wrong = [name for name in self.template.placeholders if not _SAFE_VALUE.fullmatch(values[name])]
        reason = None
        if wrong:
            reason = f"{{{wrong[0]}}} is {values[wrong[0]][:80]!a}, which cannot be part of a name"
        return self.template.render(values), reason


def _explained(
    error: ValidationError, settings_class: type[SinkSettings], unknown: Callable[[Place], bool] = lambda place: False
) -> list[SettingProblem]:
    known = [each.alias or name for name, each in settings_class.model_fields.items()]
    found: list[SettingProblem] = []
    # The values are left out, and so is what validators of others say about them: a secret may be anywhere.
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        where = "/".join(str(part) for part in detail["loc"])
        hint = None
        if detail["type"] == "extra_forbidden":
            reason = f"{where}: there is no such setting"
            close = get_close_matches(where, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"settings are {', '.join(known) or 'none'}"
        elif detail["type"] == "missing":
            reason = f"{where} is missing"
        elif unknown(detail["loc"]):
            continue
        else:
            message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
            reason = f"{where}: {message[:1].lower()}{message[1:]}"
        found.append(SettingProblem(detail["loc"], reason, hint))
    return found
