"""The commands on contracts: validate, diff and simulate work on files and need no store; load puts contracts into one,
and list shows either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import OK
from analemma.cli.json_input import STANDARD_INPUT, parse_object, source_of, standard_input
from analemma.cli.options import Json, StoreOptions, command_group, on_store
from analemma.cli.output import print_json, print_line
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.contracts.contract_set import ContractSet
    from analemma.contracts.diffing import Difference
    from analemma.contracts.problems import Problem
    from analemma.pipeline.backfill_reports import Backfill
    from analemma.slicing.entity_key import EntityKey
    from analemma.slicing.simulate import SimulatedEntity
    from analemma.store.store import App

commands = command_group("Checking and comparing contracts.")

_DOCUMENT_HINT = 'each line is {"entityType": ..., "entityId": ..., "payload": {...}}'
SIMULATED_TENANT = "simulated"

Paths = Annotated[
    list[str], typer.Argument(help="Contract files, or directories of them, that belong together.", metavar="PATH...")
]
Against = Annotated[
    str | None, typer.Option("--against", help="The contracts in use: a file or a directory.", metavar="PATH")
]


@commands.command(epilog="Example: analemma contracts validate contracts/")
def validate(paths: Paths, against: Against = None, json: Json = False) -> None:
    """Check contracts, and list everything that is wrong with them.

    With --against, published versions must keep their content, and nothing new may bind what is deprecated."""
    from analemma.contracts.loading import check_contracts
    from analemma.contracts.problems import ContractProblems
    from analemma.sinks.registry import check_target

    before = None if against is None else _load([against])
    checked = check_contracts(*paths, previous=before, check_target=check_target)
    if json:
        if checked.problems:
            raise ContractProblems(checked.problems)
        print_json({"contracts": checked.documents, "files": checked.files, "warnings": _shown(checked.warnings)})
        return
    for problem in checked.problems:
        print_line(str(problem))
    for warning in checked.warnings:
        print_line(f"{warning.place}: warning: {warning.reason}")
    if checked.problems:
        count = len(checked.problems)
        raise Invalid("there is 1 problem" if count == 1 else f"there are {count} problems")
    files = "1 file" if len(checked.files) == 1 else f"{len(checked.files)} files"
    print_line(f"{checked.documents} contracts in {files} are valid")


@on_store(commands, "analemma contracts load contracts/ -u ./store")
def load(
    store: StoreOptions,
    paths: Paths,
    backfill: Annotated[
        bool, typer.Option("--backfill", help="Compile what older rules made by the new ones, before it returns.")
    ] = False,
) -> int:
    """Load contracts into a store, all or none, and list what changed.

    They are checked together with those that are loaded: published versions keep their content, a status only moves
    on, and what is not named stays. Processes that have the store open work by them within a second. What was compiled
    by older rules stays as it is, and an index that is new does not know it: the backfill that ends this is printed, or
    run with --backfill."""
    with store.open(new_tenant=True) as app:
        before = {(each.id, each.version): each for each in app.contracts.list()}
        loaded = app.contracts.load(*paths)
        after = app.contracts.list()
        changed = [each for each in after if before.get((each.id, each.version)) != each]
        waiting = _waiting_states(app, {each.id for each in changed if each.kind == "STATE_SOURCE"})
        needed = app.backfills.needed()
        done = [app.backfill(each.scope) for each in needed] if backfill else []
    failed = any(each.state != "DONE" or each.counts.failed for each in done)
    if store.json:
        print_json(
            {
                "loaded": [asdict(each) for each in changed],
                "total": len(after),
                "warnings": _shown(loaded.warnings),
                **({"matching_workflows": waiting} if waiting else {}),
                **({} if backfill else {"backfills_needed": [each.as_dict() for each in needed]}),
                **({"backfills": [_backfilled(each) for each in done]} if backfill else {}),
            }
        )
        return 1 if failed else OK
    for warning in loaded.warnings:
        print_line(f"{warning.place}: warning: {warning.reason}")
    for each in changed:
        was = before.get((each.id, each.version))
        print_line(
            f"{each.kind:<15}  {each.id}@{each.version}  {'new' if was is None else was.status} -> {each.status}"
        )
    print_line(f"{len(changed)} changed, {len(after)} loaded in all")
    for source, tenants in waiting.items():
        for tenant, count in tenants.items():
            states = "1 state" if count == 1 else f"{count} states"
            print_line(
                f"{source} matches {states} that tenant {tenant} has already: "
                f"`analemma sources backfill {source} --tenant {tenant}` ingests them"
            )
    for left in needed if not backfill else ():
        entities = "1 entity" if left.entities == 1 else f"{left.entities} entities"
        lacking = f", and are not found by {', '.join(left.indexes)} yet" if left.indexes else ""
        print_line(
            f"{entities} of type {left.entity_type} of tenant {left.tenant} were compiled by older rules{lacking}: "
            f"`{left.command}` compiles them"
        )
    for job in done:
        print_line(f"{job.id}  {job.state}  {job.scope.describe()}: {job.counts.done} done, {job.counts.failed} failed")
    return 1 if failed else OK


def _backfilled(job: Backfill) -> dict[str, Any]:
    return {"id": job.id, "state": job.state, "scope": job.scope.describe(), "counts": job.counts._asdict()}


def _waiting_states(app: App, sources: set[str]) -> dict[str, dict[str, int]]:
    """How many branches of workflows were there before the sources that take them, by source and tenant."""
    active = [each.id for each in app.contracts.current.state_sources() if each.id in sources]
    found: dict[str, dict[str, int]] = {}
    for name in app.tenant_names() if active else ():
        states = app.tenant(name).pipeline.sources
        for source in active:
            count = sum(1 for _ in states.matching(source))
            if count:
                found.setdefault(source, {})[name] = count
    return found


@on_store(commands, "analemma contracts list contracts/ --json", name="list")
def list_contracts(
    store: StoreOptions,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Contract files or directories. Left out: those that the store has.", metavar="[PATH...]"),
    ] = None,
) -> None:
    """List contracts: kind, id, version, status, checksum, and where they are or when they were loaded."""
    rows = _listed(paths) if paths else _listed_in(store)
    if store.json:
        print_json({"contracts": rows})
        return
    if not rows:
        print("no contracts are loaded")
        return
    width = max(len(f"{row['id']}@{row['version']}") for row in rows)
    for row in rows:
        ref = f"{row['id']}@{row['version']}"
        where = row.get("place") or row["loaded_at"]
        print_line(f"{row['kind']:<15}  {ref:<{width}}  {row['status']:<10}  {row['checksum']}  {where}")


def _listed(paths: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "kind": each.kind,
            "id": each.id,
            "version": str(each.version),
            "status": each.status.value,
            "checksum": each.checksum,
            "place": str(each.origin),
        }
        for each in _load(paths).contracts
    ]


def _listed_in(store: StoreOptions) -> list[dict[str, Any]]:
    with store.open(new_tenant=True) as app:
        return [{**asdict(each), "loaded_at": each.loaded_at.isoformat()} for each in app.contracts.list()]


@commands.command(epilog="Example: analemma contracts diff in-use/ contracts/")
def diff(
    before: Annotated[str, typer.Argument(help="The contracts as they were: a file or a directory.", metavar="BEFORE")],
    after: Annotated[str, typer.Argument(help="The contracts as they are now.", metavar="AFTER")],
    check: Annotated[
        bool, typer.Option("--check", help="Fail if a version was not raised as far as its changes ask.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what changed between contracts, and whether it is a major, minor or patch step."""
    from analemma.contracts.diffing import diff_contracts

    found = diff_contracts(_load([before]), _load([after]))
    short = [each for each in found if not each.sufficient]
    if json:
        print_json({"differences": list(map(_difference, found)), "sufficient": not short})
    for each in found if not json else ():
        print_line(
            f"{each.kind} {each.id}  {each.before or 'new'} -> {each.after or 'gone'}  {each.level.name.lower()}"
        )
        for level, reason in each.reasons:
            print_line(f"  {level.name.lower():<5}  {reason}")
        if not each.sufficient:
            print_line(f"  the version must be raised by a {each.needed.name.lower()} step")
    if not found and not json:
        print("no differences")
    if check and short:
        raise Invalid(
            f"{len(short)} versions were not raised enough: {', '.join(each.id for each in short)}",
            hint="published versions keep their content",
        )


@commands.command(epilog="Example: analemma contracts simulate contracts/ --against in-use/ --documents raw.jsonl")
def simulate(
    paths: Paths,
    documents: Annotated[
        str,
        typer.Option("--documents", "-d", help=f"JSON lines, or - : {_DOCUMENT_HINT}.", metavar="FILE"),
    ],
    against: Against = None,
    json: Json = False,
) -> None:
    """Show what contracts would make of documents: which slices would come, go or change, and where."""
    from analemma.slicing.simulate import simulate as simulate_contracts
    from analemma.slicing.simulate import totals

    before = None if against is None else _load([against])
    found = simulate_contracts(before, _load(paths), dict(_read_documents(documents)))
    if json:
        print_json({"entities": list(map(_simulated, found)), "totals": totals(found)})
        return
    for entity in found:
        for each in entity.slices:
            where = f"  {', '.join(each.pointers)}" if each.pointers else f"  {each.reason}" if each.reason else ""
            print_line(f"{entity.key.type} {entity.key.id}  {each.type}  {each.effect.lower()}{where}")
        if entity.index_entries_added or entity.index_entries_removed:
            counts = f"+{entity.index_entries_added} -{entity.index_entries_removed}"
            print_line(f"{entity.key.type} {entity.key.id}  index entries {counts}")
        if entity.problem is not None:
            print_line(f"{entity.key.type} {entity.key.id}  would be refused: {entity.problem}")
    print_line(", ".join(f"{count} {effect.lower()}" for effect, count in totals(found).items()))


def _load(paths: Sequence[str]) -> ContractSet:
    from analemma.contracts.loading import load_contracts

    return load_contracts(*paths)


def _shown(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    return [asdict(each) for each in problems]


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "kind": difference.kind,
        "id": difference.id,
        "before": difference.before and str(difference.before),
        "after": difference.after and str(difference.after),
        "level": difference.level.name.lower(),
        "needed": difference.needed.name.lower(),
        "declared": difference.declared.name.lower(),
        "sufficient": difference.sufficient,
        "reasons": [{"level": level.name.lower(), "reason": reason} for level, reason in difference.reasons],
    }


def _simulated(entity: SimulatedEntity) -> dict[str, Any]:
    return {
        "entityType": entity.key.type,
        "entityId": entity.key.id,
        "changed": entity.changed,
        "problem": entity.problem,
        "indexEntriesAdded": entity.index_entries_added,
        "indexEntriesRemoved": entity.index_entries_removed,
        "slices": [
            {"type": each.type, "effect": each.effect.value, "pointers": each.pointers, "reason": each.reason}
            for each in entity.slices
        ],
    }


def _read_documents(file: str) -> Iterator[tuple[EntityKey, dict[str, Any]]]:
    from analemma.slicing.entity_key import EntityKey

    seen: set[EntityKey] = set()
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        source = f"{source_of(file)}, line {number}"
        found = parse_object(line, source, hint=_DOCUMENT_HINT)
        if set(found) != {"entityType", "entityId", "payload"} or not isinstance(found["payload"], dict):
            raise Invalid(f"{source}: not a document", hint=_DOCUMENT_HINT)
        key = EntityKey(found["entityType"], SIMULATED_TENANT, found["entityId"])
        if key in seen:
            raise Invalid(f"{source}: {key.type} {key.id} stands here twice", hint="give the newest one")
        seen.add(key)
        yield key, found["payload"]


def _lines(file: str) -> list[str]:
    from pathlib import Path

    stream = standard_input() if file == STANDARD_INPUT else None
    try:
        data = Path(file).read_bytes() if stream is None else stream.read()
        # Only these end a line: JSON strings may hold the other characters that Python takes for line ends.
        return data.decode("utf-8-sig").split("\n")
    except OSError as exc:
        raise Invalid(f"cannot read {file}: {exc.strerror}", file=file) from exc
    except ValueError as exc:
        raise Invalid(f"{source_of(file)} is not UTF-8: {exc}", hint="save it as UTF-8", file=file) from exc
