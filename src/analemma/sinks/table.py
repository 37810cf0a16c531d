"""A sink that is a table of a PostgreSQL or SQLite database: one row per document, guarded by its `ship_seq`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field

from analemma.catalog.sinks.tables import SinkRow, SinkTable, open_sink_table
from analemma.errors import Invalid, Unavailable
from analemma.sinks.batching import BatchingSink, Parcel, PlaceIsDown, in_chunks, send_chunks
from analemma.sinks.port import SHIPPED, STALE, Health, Shipped, refused, retry
from analemma.sinks.settings import Secret, SinkContext, SinkSettings, Text, TimeoutS

MOST_BYTES = 32 << 20


class TableSettings(SinkSettings):
    """Settings of TABLE sinks."""

    url: Secret = Field(description="The database: `postgresql://...`, or `sqlite:///path`.")
    table: Text = Field(description="The table, as `name` or, on PostgreSQL, `schema.name`.")
    create: bool = Field(False, description="Make the table if it is not there.")
    deletes: Literal["mark", "remove"] = Field(
        "mark",
        description="`mark` keeps the row of a deleted document, without body, so that older states stay out; "
        "`remove` takes it away.",
    )
    timeout_s: TimeoutS = Field(30, description="How long to wait for connections, locks and statements.")


class TableSink(BatchingSink):
    """Upserts in one statement per batch. The database compares, so any number of writers may ship at once."""

    settings_class = TableSettings
    guards = True

    def __init__(self, table: SinkTable, *, remove_deleted: bool) -> None:
        super().__init__()
        self._table = table
        self._remove_deleted = remove_deleted
        self.remembers_deletes = not remove_deleted

    @classmethod
    def open(cls, settings: TableSettings, context: SinkContext) -> Self:
        url = settings.url.get_secret_value()
        if url.startswith("sqlite:///"):
            url = f"sqlite:///{context.base / url.removeprefix('sqlite:///')}"
        table = open_sink_table(url, settings.table, create=settings.create, timeout_s=settings.timeout_s)
        return cls(table, remove_deleted=settings.deletes == "remove")

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        return send_chunks(in_chunks(parcels, most=10_000, most_bytes=MOST_BYTES), self._write)

    def check_health(self) -> Health:
        try:
            self._table.check()
        except (Unavailable, Invalid) as exc:
            return Health(False, exc.message)
        return Health(True, "the table is there")

    def release(self) -> None:
        self._table.close()

    def _write(self, parcels: Sequence[Parcel]) -> list[Shipped] | Shipped:
        try:
            stale = self._table.write([_row(parcel) for parcel in parcels], remove_deleted=self._remove_deleted)
        except Invalid as exc:
            return refused(exc.message)
        except Unavailable as exc:
            raise PlaceIsDown(retry(exc.message)) from exc
        return [STALE if parcel.document.doc_id in stale else SHIPPED for parcel in parcels]


def _row(parcel: Parcel) -> SinkRow:
    document = parcel.document
    body = None if parcel.body is None else parcel.body.decode()
    return SinkRow(document.doc_id, document.ship_seq, document.tenant, document.entity_key, document.version, body)
