"""Archiving, step by step. Each step may be the last one that a worker does; `Archiver.run` goes on from wherever the
workspace stands.

    1. op_id and unit are committed                        (operations.begin)
    2. the volume is looked at, flushed and read; the data is written, under a name of this attempt  AFTER_DATA
    3. it is read back and compared                        AFTER_VERIFY
    4. the marker is written, naming the data              AFTER_META
    5. the volume is as it was read; archive_key is committed, with the unit  AFTER_COMMIT
    6. the volume is moved aside, and looked at once more  AFTER_ASIDE
    7. it is deleted                                       AFTER_REMOVE
    8. the operation is over                               (operations.finish)

Until 5 the volume is untouched, and from 5 on the archive is verified and named: a live workspace has one or the other
at every moment."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from analemma.archives.block_reading import find_damage, shown_damage
from analemma.archives.block_writing import BlockWriter
from analemma.archives.extracting import flush
from analemma.archives.index_blocks import TIMES_NS
from analemma.archives.jobs import Job
from analemma.archives.metas import TAR_ZST, Meta, encode_meta
from analemma.archives.names import new_attempt
from analemma.archives.operations import Held
from analemma.archives.parts import FormatName, Parts
from analemma.archives.reading import current_archive, kept_facts, read_meta, verify_archive
from analemma.archives.tar_format import verify_object, verify_written, write_tar
from analemma.archives.tar_reading import CHECKSUM_MISMATCH
from analemma.archives.volumes import volume_missing
from analemma.archives.walking import Changed, Walk, fingerprint_of
from analemma.blocks.port import is_transient
from analemma.catalog.archives.workspaces import SessionId, WorkspaceRow
from analemma.catalog.engine.db import Transaction
from analemma.errors import AnalemmaError, Conflict, DataLost, Unavailable
from analemma.failpoints import declare, hit

AFTER_DATA = declare("archive.after_data", "the data of an archive is stored, and nothing names it")
AFTER_VERIFY = declare("archive.after_verify", "the data was read back, and nothing names it")
AFTER_META = declare("archive.after_meta", "the marker is stored, and the workspace does not name it")
AFTER_COMMIT = declare("archive.after_commit", "the workspace has its archive, and its volume too")
AFTER_ASIDE = declare("archive.after_aside", "the volume is moved aside")
AFTER_REMOVE = declare("archive.after_remove", "the volume is deleted, and the row does not say so")

MOST_ATTEMPTS = 3
"""Of reading a volume that changes meanwhile, or of sending it to a store that fails for a moment."""


class Archiver:
    """Turns the volume of a held workspace into an archive, and removes it."""

    def __init__(self, parts: Parts, held: Held, job: Job, *, format: FormatName, force: bool = False) -> None:
        self._parts = parts
        self._held = held
        self._job = job
        self._format = format
        self._force = force
        self._session: SessionId | None = None
        self._index = b""

    @property
    def committed(self) -> bool:
        """Whether the archive is the workspace's already: from then on there is no way back."""
        return self._held.row.archive_op == self._held.row.op_id

    def run(self) -> None:
        """All that is left to do, but for the end of the operation."""
        row = self._held.row
        assert row.op_id is not None
        self._held.volume.check_owner(self._parts.volume_owner(row.id))
        if self.committed:
            meta = self._committed_meta(row.op_id)
        else:
            finished = self._finished_upload(row.op_id)
            if finished is not None and finished.root is not None:
                # Its blocks were a dead worker's, and may have been collected. Written once more, they are ours.
                self._format, finished = "blocks", None
            meta = finished or self._upload(row.op_id)
            self._commit(row.op_id, meta)
        self._remove(row.op_id, meta)

    def _committed_meta(self, op_id: str) -> Meta:
        """The marker by which the volume may go. If the archive is lost, or not the one that was committed, the volume
        stays."""
        volume = self._held.volume
        try:
            row = self._held.row
            meta = current_archive(self._parts, row, kept_facts(self._parts, row))
            if volume.exists() or volume.aside(op_id) is not None:
                # It was read back before the commit; who knows how long ago that was.
                verify_archive(self._parts, row, meta, self._job)
            return meta
        except DataLost as exc:
            if volume.aside(op_id) is not None:
                volume.move_back(op_id)
            exc.facts["kept"] = volume.exists()
            raise

    def abandon(self) -> None:
        """Give up a session whose blocks were not committed: what it wrote is garbage."""
        session, self._session = self._session, None
        if session is not None:
            self._parts.rows.forget_session(session)

    def _finished_upload(self, op_id: str) -> Meta | None:
        """An upload of this very operation that was finished, and is of the volume as it is."""
        try:
            meta = self._read_meta(op_id)
        except AnalemmaError as exc:
            if exc.facts.get("reason") is None:
                raise
            return None
        if meta.fingerprint != self._held.volume.fingerprint():
            raise Changed(
                f"the volume of workspace {self._held.row.id} changed since it was archived", hint="archive again"
            )
        try:
            self._verify(op_id, meta)
        except AnalemmaError as exc:
            if exc.facts.get("reason") is None:
                raise
            # The marker is there and the data is not what it says: this op_id cannot be finished any more.
            raise Conflict(f"an earlier attempt of {op_id} is damaged", hint="archive again") from exc
        return meta

    def _upload(self, op_id: str) -> Meta:
        if not self._held.volume.exists():
            raise volume_missing(self._held.volume.path)
        total = None
        if self._job.watched:
            look = Walk(self._held.volume.path, only_look=True)
            look.skim()
            total = look.totals.bytes
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                # Look, flush, read: a page that is written to through memory after the flush changes a file's times,
                # and one that was written to before it is read as it is.
                before = self._look()
                self._flush()
                self._job.begin("reading", total)
                meta = self._write_data(op_id)
                if not meta.fingerprint == before == self._held.volume.fingerprint():
                    raise Changed(
                        f"the volume of workspace {self._held.row.id} changed while it was read",
                        hint="stop what writes to the volume, then try again",
                    )
                break
            except AnalemmaError as exc:
                # A stream cannot be sent again by whoever only passes it on; the volume can be read again.
                if attempt == MOST_ATTEMPTS or not (isinstance(exc, Changed) or is_transient(exc)):
                    raise
        return self._write_meta(op_id, meta)

    def _look(self) -> str:
        """The fingerprint of the volume; Limit, before anything is written, if the format cannot hold it."""
        look = Walk(self._held.volume.path, only_look=True, times_ns=TIMES_NS if self._format == "blocks" else None)
        look.skim()
        return look.fingerprint()

    def _flush(self) -> None:
        path = self._held.volume.path
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                flush(folder)
            finally:
                os.close(folder)
        except OSError as exc:
            raise Unavailable(
                f"the volume {path} cannot be flushed: {exc.strerror}", hint="check its disk, then archive again"
            ) from exc

    def _write_data(self, op_id: str) -> Meta:
        meta = self._write_blocks(op_id) if self._format == "blocks" else self._write_tar(op_id)
        hit(AFTER_VERIFY)
        return meta

    def _write_blocks(self, op_id: str) -> Meta:
        for repair in (False, True):
            self.abandon()
            writer = BlockWriter(self._parts, self._held, self._job, force=self._force or repair, repair=repair)
            self._session = writer.session
            meta, self._index = writer.write(op_id)
            hit(AFTER_DATA)
            # All of them, also those that were there before: the volume goes only when every block can be had from
            # where it lies. Only where the settings say so is it enough that the restore has read them lately.
            damage = find_damage(self._parts.blocks, meta, self._job, writer.shared())
            if not damage:
                return meta
            # The volume has what the store has lost: it is read once more, and what is damaged is stored anew.
        raise DataLost(
            f"blocks that the archive shares with others are damaged, and the volume is kept: {shown_damage(damage)}",
            hint="run verify and bring the blocks back from a second copy, or archive with format tar",
            reason=CHECKSUM_MISMATCH,
        )

    def _write_tar(self, op_id: str) -> Meta:
        name = new_attempt(self._parts.entropy)
        settings = self._parts.settings
        walk = Walk(self._held.volume.path, limits=self._parts.limits)
        written = write_tar(
            self._parts.archive_objects,
            self._parts.key(self._held.row, op_id, name),
            walk,
            self._job,
            level=settings.archive_level,
            outside_links=settings.archive_outside_links,
        )
        hit(AFTER_DATA)
        meta = Meta(
            format=TAR_ZST,
            workspace=self._held.row.id,
            op_id=op_id,
            data=name,
            size=written.size,
            sha256=written.sha256,
            counts=walk.totals.counts(),
            fingerprint=walk.fingerprint(),
            tar_size=written.tar_size,
            created_at=datetime.fromtimestamp(self._parts.clock.now_us() / 1_000_000, UTC).isoformat(),
            skipped=walk.totals.skipped,
            notes=tuple(walk.totals.notes),
        )
        verify_written(self._parts.archive_objects, self._parts.key(self._held.row, op_id, name), written, self._job)
        return meta

    def _write_meta(self, op_id: str, meta: Meta) -> Meta:
        self._held.check()
        if meta.root is not None:
            # The same volume gives the same bytes, so another attempt finds its own. Not before it is certain that the
            # volume stood still: an index of what was only passing would be in the way.
            key = self._parts.key(self._held.row, op_id, meta.data)
            self._parts.archive_objects.put(key, self._index, if_absent=True)
            self._verify(op_id, meta)
        try:
            self._parts.archive_objects.put(self._parts.key(self._held.row, op_id), encode_meta(meta), if_absent=True)
        except Conflict:
            # A worker that was taken for dead has finished its attempt. One of the two markers counts, and names its
            # own data.
            found = self._finished_upload(op_id)
            # Blocks count only in the session that wrote them, so they must be the very same.
            if found is None or (found.root is not None and found.root != meta.root):
                raise
            meta = found
        hit(AFTER_META)
        return meta

    def _commit(self, op_id: str, meta: Meta) -> None:
        key = self._parts.key(self._held.row, op_id)
        writer = self._held

        def commit(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
            if row.op_id != op_id:
                raise Conflict(f"workspace {row.id} is in the middle of another operation", hint="look again")
            root = None if meta.root is None else bytes.fromhex(meta.root)
            if self._session is not None:
                self._parts.rows.close_session(tx, self._session)
            self._parts.rows.keep_unit(tx, row, op_id, meta.facts(root), now)
            return row._replace(archive_op=op_id, archive_key=key)

        writer.change(commit)
        self._session = None
        hit(AFTER_COMMIT)

    def _remove(self, op_id: str, meta: Meta) -> None:
        volume = self._held.volume
        if volume.exists():
            volume.move_aside(op_id)
        hit(AFTER_ASIDE)
        aside = volume.aside(op_id)
        if aside is not None:
            self._look_once_more(op_id, aside, meta)
        volume.delete_aside(op_id)
        hit(AFTER_REMOVE)

    def _look_once_more(self, op_id: str, aside: str, meta: Meta) -> None:
        """Now that nobody finds it by its name: what was written since it was read is in no archive."""
        try:
            same = fingerprint_of(aside) == meta.fingerprint
        except AnalemmaError as exc:
            self._held.volume.move_back(op_id)
            exc.facts["kept"] = True
            raise
        if not same:
            self._held.volume.move_back(op_id)
            raise Changed(
                f"the volume of workspace {self._held.row.id} changed after it was read, and was kept",
                hint="stop what writes to the volume, then archive again",
                kept=True,
            )

    def _verify(self, op_id: str, meta: Meta) -> None:
        key = self._parts.key(self._held.row, op_id, meta.data)
        verify_object(self._parts.archive_objects, key, size=meta.size, sha256=meta.sha256, job=self._job)

    def _read_meta(self, op_id: str) -> Meta:
        return read_meta(self._parts, self._held.row, op_id)
