"""The command that takes documents in: ingest, one by one or from JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from analemma.cli.json_input import source_of
from analemma.cli.options import StoreOptions, on_store
from analemma.cli.output import one_line, print_fields, print_json
from analemma.errors import AnalemmaError, Invalid, Unavailable

if TYPE_CHECKING:
    from analemma.cli.line_input import Line, LineReader, Position
    from analemma.pipeline.ingest import IngestedItem
    from analemma.store.store import App, Tenant

commands = typer.Typer()

ID_FIELD: Final = "id"
BATCH_LINES: Final = 200
BATCH_BYTES: Final = 8 * 1024 * 1024
TOLD_PROBLEMS: Final = 1000
"""So many bad lines are listed; the others are only counted."""

EntityType = Annotated[str, typer.Argument(help="The entity type, as its schema names it.", metavar="TYPE")]


@on_store(commands, "analemma ingest BOOK books.jsonl --id-field isbn -u ./store", name="ingest")
def ingest(
    store: StoreOptions,
    entity_type: EntityType,
    file: Annotated[
        str | None, typer.Argument(help="JSON lines, one document each; - for standard input.", metavar="[FILE]")
    ] = None,
    id_field: Annotated[
        str, typer.Option("--id-field", help="The field of each document that has its id.", metavar="NAME")
    ] = ID_FIELD,
    drop_id_field: Annotated[
        bool, typer.Option("--drop-id-field", help="The id is no part of the document: leave that field out.")
    ] = False,
    entity_id: Annotated[
        str | None, typer.Option("--id", help="One entity: its id, with --payload or --delete.", metavar="ID")
    ] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", help="The document of this one entity.", metavar="JSON")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="This one entity is no more.")] = False,
    version: Annotated[
        str | None, typer.Option("--version", help="Of one entity: the version that it becomes.", metavar="VERSION")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", help="Of one entity: the schema that checks it, as ID or ID@VERSION.", metavar="ID"),
    ] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", help="What a bad line does: stop or skip.", metavar="stop|skip")
    ] = "stop",
    resume: Annotated[
        str | None,
        typer.Option("--resume", help="Keep in this file how far it came, and go on from there.", metavar="FILE"),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", help="How many lines share a transaction.", metavar="N", min=1, max=10_000)
    ] = BATCH_LINES,
) -> None:
    """Take documents in. Each becomes a version of its entity, unless it is the newest one already.

    Lines before a bad one are stored when it stops the command. Run again, it offers all lines again, or with --resume
    those that are left: lines that are the newest version of their entity already change nothing, but of a file with
    several documents of one id, each becomes a version again."""
    if on_error not in ("stop", "skip"):
        raise Invalid(f"--on-error {on_error}: there is no such choice", hint="stop or skip")
    if (file is None) == (entity_id is None):
        raise Invalid(
            "it is not said what to ingest" if file is None else "a file and one entity were given",
            hint="give FILE (or -), or --id with --payload",
        )
    if entity_id is not None and (
        resume is not None or drop_id_field or (id_field, on_error, batch) != (ID_FIELD, "stop", BATCH_LINES)
    ):
        raise Invalid(
            "--id-field, --drop-id-field, --on-error, --resume and --batch are for a file",
            hint="leave them out, or leave out --id",
        )
    with store.open(new_tenant=True) as app:
        if entity_id is not None:
            _ingest_one(store, app.default, entity_type, entity_id, payload, delete, version, schema)
            return
        if payload is not None or delete or version is not None or schema is not None:
            raise Invalid("--payload, --delete, --version and --schema are for one entity", hint="give --id")
        assert file is not None
        ids = _Ids(id_field, drop_id_field)
        counts = _ingest_file(store, app, entity_type, file, ids, on_error == "skip", resume, batch)
    if store.json:
        print_json({"ingested": asdict(counts)})
    else:
        fields: dict[str, Any] = {
            "created": counts.created,
            "unchanged": counts.unchanged,
            "refused": counts.refused,
        }
        if counts.unknown_fields:
            fields["unknown fields"] = f"{', '.join(counts.unknown_fields)} (kept)"
        print_fields(fields)


@dataclass(frozen=True, slots=True)
class _Ids:
    """Where a document has its id."""

    name: str
    dropped: bool

    def split(self, document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Its id, and what is ingested."""
        found = document.get(self.name)
        if type(found) is int:
            found = str(found)
        if not isinstance(found, str):
            what = "has no field" if self.name not in document else "has neither text nor a whole number in"
            raise Invalid(f"it {what} {self.name!r}", hint="--id-field names the field that has the id")
        if not self.dropped:
            return found, document
        return found, {name: value for name, value in document.items() if name != self.name}


@dataclass(slots=True)
class _Counts:
    """What became of the lines of this run."""

    lines: int = 0
    """Those that are not blank: each is created, unchanged or refused."""
    created: int = 0
    unchanged: int = 0
    refused: int = 0
    skipped_lines: int = 0
    """Those that an earlier run had stored."""
    unknown_fields: list[str] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)


def _ingest_one(
    store: StoreOptions,
    tenant: Tenant,
    entity_type: str,
    entity_id: str,
    payload: str | None,
    delete: bool,
    version: str | None,
    schema: str | None,
) -> None:
    from analemma.canon.canonical_json import parse_json

    if (payload is None) != delete or (delete and schema is not None):
        raise Invalid("one entity needs a document, or --delete", hint="give --payload JSON, or --delete alone")
    if schema is not None and not all(schema.partition("@")[::2] if "@" in schema else [schema]):
        raise Invalid(f"--schema {schema}: an id or a version is missing", hint="give ID or ID@VERSION")
    if payload is None:
        result = tenant.delete(entity_type, entity_id, version=version)
    else:
        try:
            document = parse_json(payload.encode())
        except (Invalid, UnicodeEncodeError) as exc:
            reason = exc.message if isinstance(exc, Invalid) else "it is not UTF-8"
            raise Invalid(f"--payload: {reason}", hint="give a JSON object") from exc
        result = tenant.ingest(entity_type, entity_id, document, version=version, schema=schema)
    if store.json:
        print_json({"ingested": asdict(result)})
        return
    fields = {"version": result.version, "hash": result.hash, "created": "yes" if result.created else "no, unchanged"}
    if result.unknown_fields:
        fields["unknown fields"] = f"{', '.join(result.unknown_fields)} (kept)"
    print_fields(fields)


def _ingest_file(
    store: StoreOptions,
    app: App,
    entity_type: str,
    file: str,
    ids: _Ids,
    skips: bool,
    resume: str | None,
    batch: int,
) -> _Counts:
    from analemma.cli.line_input import CursorFile, LineReader, open_lines

    # What has no schema cannot be ingested: say so once, and not of each line, of which there may be none.
    app.contracts.current.schema(entity_type)
    source = source_of(file)
    run = _Run(app.default, entity_type, ids, source, skips, tell=None if store.json else _tell)
    cursor = None
    if resume is not None:
        about: dict[str, str | bool] = {
            "store": str(app.info()["store_id"]),
            "tenant": app.default.name,
            "entity_type": entity_type,
            "id_field": ids.name,
            "drop_id_field": ids.dropped,
        }
        cursor = CursorFile(resume, about=about)
    with open_lines(file) as (stream, size), _progress(store, size) as moved:
        reader = LineReader(stream)
        if cursor is not None and (before := cursor.read()) is not None:
            reader.skip(before, source)
            run.counts.skipped_lines = before.lines
        for lines, position, failure in _batches(reader, batch):
            run.take(lines)
            if cursor is not None and position.lines:
                cursor.write(position)
            moved(position.bytes)
            if failure is not None:
                raise run.stopped_by(failure, position.lines + 1) from failure
    return run.counts


def _batches(reader: LineReader, batch: int) -> Iterator[tuple[list[Line], Position, OSError | None]]:
    """Lines that go together, where the reader stands behind them, and why it cannot go on. A bad one ends its
    batch."""
    waiting: list[Line] = []
    size = 0
    lines = iter(reader)
    position = reader.position
    while True:
        try:
            line = next(lines, None)
        except OSError as exc:
            # What was read before is whole, and this line is not: nothing of it counts.
            yield waiting, position, exc
            return
        position = reader.position
        if line is None:
            break
        waiting.append(line)
        size += line.size
        if len(waiting) >= batch or size >= BATCH_BYTES or line.problem is not None:
            yield waiting, position, None
            waiting, size = [], 0
    if waiting or position.lines:
        yield waiting, position, None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a line cannot be stored."""

    reason: str
    hint: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """For programs: the paths that no rule accounts for, all of them."""


def _refusal(error: AnalemmaError) -> _Refusal:
    return _Refusal(error.message, facts={"paths": error.facts["paths"]} if "paths" in error.facts else {})


class _Run:
    """Stores batches of lines, and counts."""

    def __init__(
        self,
        tenant: Tenant,
        entity_type: str,
        ids: _Ids,
        source: str,
        skips: bool,
        *,
        tell: Callable[[str], None] | None,
    ) -> None:
        self.counts = _Counts()
        self._tenant = tenant
        self._entity_type = entity_type
        self._ids = ids
        self._source = source
        self._skips = skips
        self._tell = tell

    def take(self, lines: Sequence[Line]) -> None:
        """Store a batch. A line that cannot be stored is told, or, when it is to stop the command, raised once all
        before it are stored."""
        numbers: list[int] = []
        items: list[tuple[str, str, Any]] = []
        bad: dict[int, _Refusal] = {}
        for line in lines:
            self.counts.lines += 1
            try:
                if line.value is None:
                    raise Invalid(line.problem or "it cannot be read")
                entity_id, document = self._ids.split(line.value)
            except Invalid as exc:
                bad[line.number] = _Refusal(exc.message, exc.hint)
                if not self._skips:
                    break
                continue
            numbers.append(line.number)
            items.append((self._entity_type, entity_id, document))
        for number, item in zip(numbers, self._store(items, numbers) if items else (), strict=True):
            if item.result is None:
                bad[number] = _Refusal("it was refused") if item.error is None else _refusal(item.error)
                continue
            if item.result.created:
                self.counts.created += 1
            else:
                self.counts.unchanged += 1
            self._note_unknown(item.result.unknown_fields)
        for number in sorted(bad):
            self._refuse(number, bad[number])

    def _store(self, items: Sequence[tuple[str, str, Any]], numbers: Sequence[int]) -> Sequence[IngestedItem]:
        try:
            return self._tenant.ingest_many(items, batch=len(items))
        except Unavailable as exc:
            told = {"line": numbers[0], "created": self.counts.created, "unchanged": self.counts.unchanged}
            raise Unavailable(
                f"{self._source}, line {numbers[0]}: {exc.message}",
                hint="lines before it are stored; run again when that is mended, with --resume from there on",
                **{**exc.facts, **told},
            ) from exc

    def stopped_by(self, failure: OSError, number: int) -> Unavailable:
        """The error of an input that can be read no further."""
        return Unavailable(
            f"{self._source}, line {number}: it cannot be read: {failure.strerror or failure}",
            hint="lines before it are stored; run again when it can be read, with --resume from there on",
            line=number,
            created=self.counts.created,
            unchanged=self.counts.unchanged,
        )

    def _refuse(self, number: int, refusal: _Refusal) -> None:
        counts, reason = self.counts, refusal.reason
        counts.refused += 1
        if len(counts.problems) < TOLD_PROBLEMS:
            counts.problems.append({"line": number, "reason": one_line(reason), **refusal.facts})
        if not self._skips:
            raise Invalid(
                f"{self._source}, line {number}: {reason}",
                hint=refusal.hint or "lines before it are stored; correct it and run again, or give --on-error skip",
                line=number,
                created=counts.created,
                unchanged=counts.unchanged,
                **refusal.facts,
            )
        if self._tell is not None:
            self._tell(f"{self._source}, line {number}: {one_line(reason)}")

    def _note_unknown(self, names: Sequence[str]) -> None:
        known = self.counts.unknown_fields
        known += [name for name in names if name not in known]


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


@contextmanager
def _progress(store: StoreOptions, size: int | None) -> Iterator[Callable[[int], None]]:
    """A bar, for people who watch."""
    if store.json or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("ingest", total=size)
        yield lambda done: bar.update(task, completed=done)
