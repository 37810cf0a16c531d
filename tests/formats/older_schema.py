"""The scripts by which databases were migrated before the schema had a baseline, which the package has in an archive.
`python -m tests.formats.older_schema` writes the archive. Neither it nor the scripts ever change."""

from __future__ import annotations

import io
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import analemma
from tests.ports.entry_points.catalog import BASELINE, POSTGRES, SQLITE, older_migrations
from tests.raw_rows import change, is_sqlite
from tests.stores import Store

FILES = sorted((Path(__file__).parent / "migrations").glob("*.sql"))
ARCHIVE = Path(analemma.__file__).parent / "catalog" / "sql" / "schema" / "older.zip"


def pack() -> bytes:
    """The archive: the same scripts make the same bytes, wherever the compression is the same."""
    made = io.BytesIO()
    with ZipFile(made, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for file in FILES:
            entry = ZipInfo(file.name)
            entry.compress_type = ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    return made.getvalue()


def record(store: Store, *, but: int) -> None:
    """Have a new database say that it came here by the older scripts, all but one."""
    sql = SQLITE if is_sqlite(store) else POSTGRES
    assert change(store, "DELETE FROM migration WHERE number = ?", [BASELINE]) == 1
    add = "INSERT INTO migration (number, name, checksum, applied_at) VALUES (?, ?, ?, 1)"
    for each in older_migrations(sql):
        if each.number != but:
            change(store, add, [each.number, each.name, each.checksum])


if __name__ == "__main__":
    ARCHIVE.write_bytes(pack())
