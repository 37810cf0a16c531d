"""Which sinks there are, and how one is opened: by the `type` of a rule's target.

Others add theirs by an entry point in the group `analemma.sinks`, whose name is the type and whose value a class like
`batching.BatchingSink`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from analemma.clock import Clock, SystemClock
from analemma.errors import Invalid
from analemma.sinks.expanding import expand
from analemma.sinks.port import Sink
from analemma.sinks.settings import SettingProblem, SinkContext, SinkSettings, find_problems, read_settings

ENTRY_POINTS: Final = "analemma.sinks"

BUILT_IN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "JSONL": "analemma.sinks.jsonl:JsonlSink",
        "TABLE": "analemma.sinks.table:TableSink",
        "OPENSEARCH": "analemma.sinks.opensearch:OpenSearchSink",
        "PERSONALIZE": "analemma.sinks.personalize:PersonalizeSink",
        "WEBHOOK": "analemma.sinks.webhook:WebhookSink",
        "OBJECTS": "analemma.sinks.objects:ObjectsSink",
        "NATS": "analemma.sinks.nats_stream:NatsSink",
    }
)
"""Loaded when they are asked for: some need packages that not everyone has."""


class SinkClass(Protocol):
    """What a type of sinks is."""

    settings_class: type[SinkSettings]

    def open(self, settings: Any, context: SinkContext) -> Sink:
        """Make a sink of settings that were checked. A class method."""


def sink_types() -> tuple[str, ...]:
    """Every type that can be opened."""
    return (*BUILT_IN, *sorted({each.name for each in entry_points(group=ENTRY_POINTS)} - BUILT_IN.keys()))


def sink_class(sink_type: str) -> SinkClass:
    """The class for a type."""
    if sink_type in BUILT_IN:
        module, _, name = BUILT_IN[sink_type].partition(":")
        built_in: SinkClass = getattr(import_module(module), name)
        return built_in
    found = [each for each in entry_points(group=ENTRY_POINTS) if each.name == sink_type]
    if not found:
        close = get_close_matches(sink_type.upper(), sink_types(), n=1)
        raise Invalid(
            f"there is no sink of type {sink_type!r}",
            hint=(f"did you mean {close[0]}? " if close else "")
            + f"types are {', '.join(sink_types())}; others come with a package that has an entry point in the group "
            f"{ENTRY_POINTS}: install it with pip, here and where workers run",
        )
    offered = sorted({each.value for each in found})
    if len(offered) > 1:
        raise Invalid(
            f"more than one package offers sinks of type {sink_type}: {', '.join(offered)}",
            hint="uninstall all but one",
        )
    loaded: SinkClass = found[0].load()
    settings = getattr(loaded, "settings_class", None)
    if not hasattr(loaded, "open") or not (isinstance(settings, type) and issubclass(settings, SinkSettings)):
        raise Invalid(
            f"the entry point {found[0].value} is no sink", hint="name a class with settings_class and open()"
        )
    return loaded


def check_target(target: Mapping[str, Any]) -> list[SettingProblem]:
    """What is wrong with a target on whatever machine it is opened. Nothing is opened, and what comes out of
    environment variables is not judged: those of the workers count.

    >>> [each.reason for each in check_target({"type": "JSONL", "file": "out.jsonl"})]
    ['path is missing', 'file: there is no such setting']
    """
    sink_type = str(target.get("type"))
    settings = {key: value for key, value in target.items() if key != "type"}
    try:
        settings_class = sink_class(sink_type).settings_class
        expanded = expand(settings, _AnyVariable())
    except Invalid as exc:
        place = tuple(exc.facts.get("pointer", "/type").split("/")[1:])
        return [SettingProblem(place, exc.message, exc.hint)]
    except Exception as exc:
        reason = f"the package that offers sinks of type {sink_type} cannot be loaded ({type(exc).__name__})"
        return [SettingProblem(("type",), reason, "install what it needs")]
    return find_problems(settings_class, expanded, unknown=lambda place: _has_variables(settings, place))


def open_sink(
    target: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    base: str | os.PathLike[str] = ".",
    timeout_s: float | None = None,
    clock: Clock | None = None,
) -> Sink:
    """The sink that a target names: its `type`, and that type's settings, in which `${NAME}` stands for environment
    variables. Relative paths begin at `base`; `timeout_s` is for targets that name none. It is not asked whether it
    answers: `health()` does that.

    >>> open_sink({"type": "JSONL", "path": "out/books.jsonl"}).guards
    False
    """
    sink_type = target.get("type")
    if not isinstance(sink_type, str):
        raise Invalid("a sink's target has no type", hint=f"types are {', '.join(sink_types())}", pointer="/type")
    found = sink_class(sink_type)
    settings = {key: value for key, value in target.items() if key != "type"}
    if timeout_s is not None and "timeout_s" in found.settings_class.model_fields:
        settings = {"timeoutS": timeout_s, **settings}
    expanded = expand(settings, os.environ if environment is None else environment)
    checked = read_settings(found.settings_class, sink_type, expanded)
    return found.open(checked, SinkContext(Path(base).absolute(), clock or SystemClock()))


class _AnyVariable(Mapping[str, str]):
    """An environment in which every variable is set."""

    def __getitem__(self, name: str) -> str:
        return "set"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _has_variables(settings: Any, place: tuple[str | int, ...]) -> bool:
    """Whether what is at this place has variables in it; nothing has none."""
    for token in place:
        is_index = isinstance(settings, list) and isinstance(token, int) and token < len(settings)
        if not is_index and not (isinstance(settings, Mapping) and token in settings):
            return False
        settings = settings[token]
    return "${" in str(settings)
