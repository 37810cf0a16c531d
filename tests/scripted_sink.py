"""A sink whose answers a test decides, installed as others install theirs: by an entry point."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pytest
from pydantic import Field, SecretStr

from analemma import SHIPPED, BatchingSink, Health, Parcel, Shipped, SinkContext, SinkSettings

TYPE = "SCRIPTED"
Answering = Callable[[Sequence[Parcel]], list[Shipped]]


class ScriptedSettings(SinkSettings):
    """Which script."""

    script: str = Field(description="The name of a script.")
    api_key: SecretStr = Field(SecretStr("none"), description="A secret.")
    guards: bool = Field(False, description="What the sink says of itself.")


class Script:
    """What a sink got, and how it answers."""

    def __init__(self) -> None:
        self.answering: Answering = lambda parcels: [SHIPPED] * len(parcels)
        self.batches: list[list[Parcel]] = []
        self.opening: Callable[[], None] = lambda: None
        self.closing: Callable[[], None] = lambda: None
        self.opened = 0
        self.closed = 0
        self.lock = threading.Lock()

    @property
    def parcels(self) -> list[Parcel]:
        """Everything it got, in order."""
        return [parcel for batch in self.batches for parcel in batch]

    @property
    def states(self) -> list[tuple[str, int]]:
        """Ids and ship_seqs of everything it got."""
        return [(parcel.document.doc_id, parcel.document.ship_seq) for parcel in self.parcels]


SCRIPTS: dict[str, Script] = {}


class ScriptedSink(BatchingSink):
    """Asks its script."""

    settings_class = ScriptedSettings

    def __init__(self, script: Script, *, guards: bool) -> None:
        super().__init__()
        self.guards = self.remembers_deletes = guards
        self._script = script

    @classmethod
    def open(cls, settings: ScriptedSettings, context: SinkContext) -> Self:
        script = SCRIPTS[settings.script]
        script.opened += 1
        script.opening()
        return cls(script, guards=settings.guards)

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        with self._script.lock:
            self._script.batches.append(list(parcels))
        return self._script.answering(parcels)

    def check_health(self) -> Health:
        return Health(True, "as the script says")

    def release(self) -> None:
        self._script.closed += 1
        self._script.closing()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> tuple[Script, ...]:
    """Have sinks of type SCRIPTED for the time of a test; their scripts, by these names."""
    facts = folder / "plugins" / "scripted-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[analemma.sinks]\n{TYPE} = {__name__}:ScriptedSink\n")
    monkeypatch.syspath_prepend(str(folder / "plugins"))
    for name in names:
        monkeypatch.setitem(SCRIPTS, name, Script())
    return tuple(SCRIPTS[name] for name in names)
