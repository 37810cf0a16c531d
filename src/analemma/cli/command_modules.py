"""Which module has which command. A module is loaded when one of its commands is asked for, so that no command waits
for the others."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
import typer.core
import typer.main

STATE = "State and its history"
BRANCHES = "Branches, marks and decisions"
FLOWS = "Flows"
VIEWS = "Views and sinks"
WORKSPACES = "Workspaces"
STORE = "The store"

PANELS = {
    STATE: {
        **dict.fromkeys(("save", "load", "show", "cat", "verify"), "analemma.cli.state_commands"),
        **dict.fromkeys(("log", "diff", "blame", "rollback", "watch"), "analemma.cli.history_commands"),
    },
    BRANCHES: {
        **dict.fromkeys(
            ("fork", "merge", "branches", "children", "delete", "undelete", "deleted"), "analemma.cli.branch_commands"
        ),
        **dict.fromkeys(("tag", "pin", "decide"), "analemma.cli.marking_commands"),
        "workflow": "analemma.cli.workflow_commands",
        "segments": "analemma.cli.segment_commands",
        "langgraph": "analemma.cli.langgraph_commands",
    },
    FLOWS: {
        "flow": "analemma.cli.flow_commands",
        **dict.fromkeys(("run", "resume", "approve", "cancel", "rerun", "runs"), "analemma.cli.flow_run_commands"),
        "schedule": "analemma.cli.schedule_commands",
        "queue": "analemma.cli.queue_commands",
    },
    VIEWS: {
        "contracts": "analemma.cli.contract_commands",
        "ingest": "analemma.cli.ingest_commands",
        **dict.fromkeys(("compile", "slices"), "analemma.cli.entity_commands"),
        "view": "analemma.cli.view_commands",
        "deploy": "analemma.cli.deploy_commands",
        "deploys": "analemma.cli.deploys_commands",
        "ship": "analemma.cli.ship_commands",
        "sinks": "analemma.cli.sink_commands",
        "backfill": "analemma.cli.backfill_commands",
        "fanout": "analemma.cli.fanout_commands",
        "sources": "analemma.cli.source_commands",
        "outbox": "analemma.cli.outbox_commands",
    },
    WORKSPACES: {
        "workspace": "analemma.cli.workspace_commands",
        **dict.fromkeys(("archive", "restore"), "analemma.cli.archive_commands"),
    },
    STORE: {
        "worker": "analemma.cli.worker_commands",
        "retention": "analemma.cli.retention_commands",
        "payloads": "analemma.cli.payload_commands",
        "gc": "analemma.cli.gc_commands",
        "pack": "analemma.cli.pack_commands",
        "objects": "analemma.cli.object_commands",
        "export": "analemma.cli.export_commands",
    },
}
"""Under which heading `--help` lists which command, in order. Each module has its commands in `commands`."""

MODULES = {name: module for commands in PANELS.values() for name, module in commands.items()}


class CommandsOnDemand(typer.core.TyperGroup):
    """A group that has the commands of `MODULES` beside its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(self.commands)


class _Commands(MutableMapping[str, Any]):
    """Commands by name, loaded when they are looked up."""

    def __init__(self, loaded: MutableMapping[str, Any]) -> None:
        self._loaded = loaded
        self._names = dict.fromkeys([*loaded, *MODULES])

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded and name in MODULES:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command
        self._names[name] = None

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _load(name: str) -> Any:
    commands: typer.Typer = import_module(MODULES[name]).commands
    above = typer.Typer()
    # With a callback, it is a word with commands below it; without one, they are commands like all others.
    above.add_typer(commands, name=name if commands.registered_callback else None)
    command: Any = typer.main.get_group(above).commands[name]
    command.rich_help_panel = next(panel for panel, names in PANELS.items() if name in names)
    return command
