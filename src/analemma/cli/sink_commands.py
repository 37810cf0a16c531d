"""The commands that look at sinks: sinks list, health, wake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analemma.cli.exit_codes import OK
from analemma.cli.options import StoreOptions, command_group, on_store
from analemma.cli.output import one_line, print_json, print_line

if TYPE_CHECKING:
    from analemma.pipeline.sinks import SinkState, SinkStatus

commands = command_group("Sinks: what each is to get, how far it is, and whether it answers.")

Rule = Annotated[str, typer.Argument(help="The id of a sink rule.", metavar="RULE")]


@on_store(commands, "analemma sinks list -u ./store", name="list")
def list_sinks(
    store: StoreOptions,
    every_tenant: Annotated[bool, typer.Option("--all-tenants", help="Count the documents of all tenants.")] = False,
) -> int:
    """List the sink rules that are active, and what waits for each; exit code 1 if one is not well."""
    with store.open() as app:
        found = app.sinks.list(tenant=None if every_tenant else app.default.name)
    if store.json:
        print_json({"sinks": [each.as_dict() for each in found]})
    for each in () if store.json else found:
        print_line(_line(each))
    return OK if all(_is_well(each.state) and not each.dead for each in found) else 1


@on_store(commands, "analemma sinks health -u ./store", name="health")
def health(
    store: StoreOptions,
    rule: Annotated[str | None, typer.Argument(help="The id of a sink rule.", metavar="[RULE]")] = None,
) -> int:
    """Ask sinks whether they would take documents: all, or that of one rule; exit code 1 if one would not.

    Also if one answers, and fails with what it is sent."""
    with store.open() as app:
        found = app.sinks.health(rule)
    if store.json:
        print_json({"sinks": [each.as_dict() for each in found]})
    for each in () if store.json else found:
        parts = [each.id, "healthy" if each.is_healthy else "NOT HEALTHY", one_line(each.detail)]
        if not _is_well(each.state):
            parts += [each.state, *([] if each.reason is None else [one_line(each.reason)])]
        print_line("  ".join(parts))
    return OK if all(each.is_healthy and _is_well(each.state) for each in found) else 1


@on_store(commands, "analemma sinks wake sinkrule.file.book -u ./store", name="wake")
def wake(store: StoreOptions, rule: Rule) -> None:
    """Have workers try a sink at once that is left alone because it did not answer."""
    with store.open() as app:
        rested = app.sinks.wake(rule)
    if store.json:
        print_json({"woken": rested})
    else:
        print_line(f"{rule} is tried at once" if rested else f"{rule} did not rest, and nothing waits for another try")


def _is_well(state: SinkState) -> bool:
    from analemma.pipeline.sinks import WELL

    return state in WELL


def _line(status: SinkStatus) -> str:
    parts = [status.id, status.type or "no active rule", status.state, f"{status.pending} pending"]
    if status.failed:
        parts.append(f"{status.failed} to be tried again")
    if status.dead:
        parts.append(f"{status.dead} dead")
    if status.resting_s is not None:
        parts.append(f"left alone for {status.resting_s:.0f} s")
    elif status.next_attempt_s is not None:
        parts.append(f"next try in {status.next_attempt_s:.0f} s")
    if status.reason is not None:
        parts.append(one_line(status.reason))
    return "  ".join(parts)
