"""The conformance suite of pending deltas: what `KernelCatalogSuite` asks of a catalog that keeps pending deltas."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from analemma.canon.nodes import BlockId
from analemma.catalog.kernel.pending import PendingEntry, Settlement
from analemma.catalog.port import BranchKey, CommitRequest, Head, Idempotency, KernelCatalog, TenantId
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.errors import AnalemmaError, Conflict
from analemma.testing.commits import KEY, make_block, make_event, make_request, make_upload

OTHER = BranchKey("ann", "other")


def make_entry(key: BranchKey = KEY, body: bytes | None = None, **columns: Any) -> PendingEntry:
    """An entry with content of its own."""
    data = os.urandom(24) if body is None else body
    kept: dict[str, Any] = {"codec": 0, "size": len(data), "digest": hashlib.sha256(data).digest(), "body": data}
    known = {"created_at_us": 1_000_000, "idempotency_key": None, "fingerprint": None, **columns}
    return PendingEntry(key, os.urandom(16), **known, **kept)


def make_settlement(
    tenant: TenantId, expected: Head | None, seqs: Sequence[int], key: BranchKey = KEY
) -> list[Settlement]:
    """Each of the entries as a version, on the one before."""
    steps = []
    head = expected
    for seq in seqs:
        request = make_request(tenant, head, [make_block()], key=key)
        steps.append(Settlement(seq, request, b"receipt %d" % seq))
        head = request.head
    return steps


def commits_of(settlements: Sequence[Settlement]) -> list[CommitRequest]:
    """The versions that are to be made."""
    return [each.commit for each in settlements if each.commit is not None]


class CatalogPendingSuite(ABC):
    """Entries are durable and ordered, and become versions once; a ticket says what became of each."""

    @abstractmethod
    def doom(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> None:
        """Mark a block as the collector's pass 1 would."""

    @abstractmethod
    def is_doomed(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> bool:
        """Whether the mark is there."""

    @abstractmethod
    def deliveries(self, catalog: KernelCatalog, tenant: TenantId) -> list[tuple[str, int, str]]:
        """The outbox as (aggregate id, place, event id), in that order."""

    def test_entries_come_back_as_they_were_in_the_order_of_their_branch(
        self, catalog: SqlCatalog, tenant: TenantId
    ) -> None:
        made = [
            make_entry(),
            make_entry(idempotency_key="once", fingerprint=b"f" * 32),
            make_entry(OTHER),
            make_entry(BranchKey("ann", "report", "side")),
        ]
        seqs = [catalog.enter(tenant, entry) for entry in made]
        found = catalog.pending_entries(tenant, [KEY, OTHER], most_entries=10, most_bytes=1 << 20)
        assert found == [entry._replace(seq=seq) for seq, entry in zip(seqs[:3], made[:3], strict=True)]
        assert seqs[0] < seqs[1]
        assert catalog.pending_entries(tenant, [], most_entries=10, most_bytes=1 << 20) == []
        assert catalog.pending_entries(catalog.tenant("else"), [KEY], most_entries=10, most_bytes=1 << 20) == []

    def test_entries_keep_their_columns(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        made = [
            make_entry(OTHER, body=b""),
            make_entry(idempotency_key="\u00e9\"'", fingerprint=b"short"),
            make_entry(created_at_us=2**62),
            make_entry(OTHER, body=bytes(range(256)) * 100),
        ]
        seqs = [catalog.enter(tenant, entry) for entry in made]
        assert len(set(seqs)) == 4 and seqs[1] < seqs[2] and seqs[0] < seqs[3]
        found = catalog.pending_entries(tenant, [KEY, OTHER], most_entries=10, most_bytes=1 << 20)
        assert {entry.seq: entry for entry in found} == {
            seq: entry._replace(seq=seq) for seq, entry in zip(seqs, made, strict=True)
        }

    def test_places_are_in_the_order_of_entering_whoever_enters(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        """What one thread saw acknowledged is before what it enters next, also when others enter between."""

        def produce(_: int) -> list[int]:
            return [catalog.enter(tenant, make_entry()) for _ in range(10)]

        with ThreadPoolExecutor(8) as threads:
            places = list(threads.map(produce, range(8)))
        assert all(own == sorted(own) for own in places)
        assert len({place for own in places for place in own}) == 80
        pending = catalog.pending_entries(tenant, [KEY], most_entries=100, most_bytes=1 << 20)
        assert [entry.seq for entry in pending] == sorted(place for own in places for place in own)

    def test_a_page_takes_the_first_entries_of_each_branch_by_turns(
        self, catalog: SqlCatalog, tenant: TenantId
    ) -> None:
        mine = [catalog.enter(tenant, make_entry()) for _ in range(5)]
        theirs = [catalog.enter(tenant, make_entry(OTHER)) for _ in range(2)]
        page = catalog.pending_entries(tenant, [KEY, OTHER], most_entries=4, most_bytes=1 << 20)
        assert [entry.seq for entry in page] == sorted(mine[:2] + theirs)
        page = catalog.pending_entries(tenant, [KEY], most_entries=3, most_bytes=1 << 20)
        assert [entry.seq for entry in page] == mine[:3]

    def test_a_page_ends_when_it_has_enough_bytes_but_is_never_empty(
        self, catalog: SqlCatalog, tenant: TenantId
    ) -> None:
        seqs = [catalog.enter(tenant, make_entry(body=bytes(1000))) for _ in range(4)]
        for most_bytes, expected in ((1, 1), (1000, 1), (1001, 2), (2500, 3), (1 << 20, 4)):
            page = catalog.pending_entries(tenant, [KEY], most_entries=9, most_bytes=most_bytes)
            assert [entry.seq for entry in page] == seqs[:expected]

    def test_what_is_pending_is_counted_and_found(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        assert catalog.pending_count(tenant) == 0 and catalog.pending_branches(tenant) == []
        assert catalog.newest_pending(tenant, KEY) is None and catalog.newest_pending(tenant) is None
        assert catalog.head_and_pending(tenant, KEY) == (None, False)
        first = catalog.enter(tenant, make_entry(created_at_us=1000, idempotency_key="k", fingerprint=b"print"))
        second = catalog.enter(tenant, make_entry(OTHER, created_at_us=2000))
        assert catalog.pending_count(tenant) == 2 and catalog.pending_count(catalog.tenant("else")) == 0
        assert catalog.newest_pending(tenant, KEY) == first and catalog.newest_pending(tenant) == max(first, second)
        assert sorted(catalog.pending_branches(tenant)) == [OTHER, KEY]
        assert catalog.pending_branches(tenant, before_us=2000) == [KEY]
        assert catalog.pending_branches(tenant, through=min(first, second)) == [KEY]
        assert len(catalog.pending_branches(tenant, limit=1)) == 1
        assert catalog.head_and_pending(tenant, KEY) == (None, True)
        assert catalog.head_and_pending(tenant, BranchKey("ann", "report", "side")) == (None, False)
        assert catalog.head_and_pending(catalog.tenant("else"), KEY) == (None, False)
        assert catalog.pending_request(tenant, KEY, "k") == b"print"
        assert catalog.pending_request(tenant, KEY, "other") is None

    def test_settling_makes_versions_and_tickets(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        begun = make_request(tenant, None)
        catalog.commit(begun)
        entries = [make_entry(), make_entry(), make_entry(OTHER), make_entry(OTHER)]
        seqs = [catalog.enter(tenant, entry) for entry in entries]
        grown = make_settlement(tenant, begun.head, seqs[:2])
        new = make_settlement(tenant, None, seqs[2:], OTHER)
        catalog.settle(tenant, [*new, *grown])
        newest = commits_of(grown)[-1].head
        assert catalog.heads(tenant, [KEY, OTHER, BranchKey("no", "one")]) == {
            KEY: newest,
            OTHER: commits_of(new)[-1].head,
        }
        for settlements in (grown, new):
            self._check_stored(catalog, tenant, commits_of(settlements))
        assert [row.version for row in catalog.history(tenant, KEY)] == [3, 2, 1]
        assert catalog.pending_count(tenant) == 0
        assert catalog.head_and_pending(tenant, KEY) == (newest, False)
        for seq, entry in zip(seqs, entries, strict=True):
            row = catalog.ticket(tenant, seq, entry.secret)
            assert row is not None
            assert (row.key, row.receipt, row.failure) == (entry.key, b"receipt %d" % seq, None)

    def test_versions_keep_their_columns_and_share_blocks(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        """Every column, also where nothing stands, and one block that two of them and an earlier commit emit."""
        shared = make_block()
        begun = make_request(tenant, None, [shared])
        catalog.commit(begun)
        seqs = [catalog.enter(tenant, make_entry()) for _ in range(3)]
        steps = []
        head = begun.head
        said = ("r\u00e9sum\u00e9 \"'\\ \U0001f600", 7), (None, None), ("", 0)
        for seq, (message, segment) in zip(seqs, said, strict=True):
            request = make_request(tenant, head, [make_block(), shared])
            request = replace(request, manifest=request.manifest._replace(message=message, segment=segment))
            steps.append(Settlement(seq, request, b"receipt"))
            head = request.head
        catalog.settle(tenant, steps)
        self._check_stored(catalog, tenant, commits_of(steps))
        made = [each.manifest for each in commits_of(steps)]
        assert [catalog.manifest(tenant, each.id) for each in made] == made
        assert len(catalog.read_blocks(tenant, [shared.id])) == 1

    def test_settling_saves_the_doomed_blocks_that_it_emits(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        emitted, left = make_block(), make_block()
        begun = make_request(tenant, None, [emitted, left])
        catalog.commit(begun)
        for block in (emitted, left):
            self.doom(catalog, tenant, block.id)
        request = make_request(tenant, begun.head, [make_block(), emitted])
        seq = catalog.enter(tenant, make_entry())
        catalog.settle(tenant, [Settlement(seq, request, b"receipt")])
        assert [self.is_doomed(catalog, tenant, block.id) for block in (emitted, left)] == [False, True]

    def test_a_version_of_an_entry_that_links_what_is_gone_is_refused(
        self, catalog: SqlCatalog, tenant: TenantId
    ) -> None:
        begun = make_request(tenant, None)
        catalog.commit(begun)
        seq = catalog.enter(tenant, make_entry())
        request = replace(make_request(tenant, begun.head), bases=(begun.head.manifest, make_block().id))
        with pytest.raises(Conflict):
            catalog.settle(tenant, [Settlement(seq, request, b"receipt")])
        assert catalog.head(tenant, KEY) == begun.head and catalog.pending_count(tenant) == 1

    def test_events_of_versions_are_written_with_them_in_their_order(
        self, catalog: SqlCatalog, tenant: TenantId
    ) -> None:
        seqs = [catalog.enter(tenant, make_entry()) for _ in range(3)]
        steps = []
        head = None
        for number, seq in enumerate(seqs):
            request = make_request(tenant, head, [make_block()], events=(make_event(f"e{number}", "lane"),))
            steps.append(Settlement(seq, request, b"receipt"))
            head = request.head
        catalog.settle(tenant, steps)
        told = [("lane", place, f"e{place - 1}") for place in (1, 2, 3)]
        assert self.deliveries(catalog, tenant) == told
        # Settled already: nothing of it is told again.
        with pytest.raises(Conflict):
            catalog.settle(tenant, steps)
        assert self.deliveries(catalog, tenant) == told

    def test_an_entry_is_settled_once(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        seq = catalog.enter(tenant, make_entry())
        first = make_settlement(tenant, None, [seq])
        catalog.settle(tenant, first)
        # On the head that the first left: only the entry tells that it was applied.
        again = make_settlement(tenant, commits_of(first)[-1].head, [seq])
        for settlements in (again, [Settlement(seq, failure="{}")], [Settlement(seq, receipt=b"another")]):
            with pytest.raises(Conflict):
                catalog.settle(tenant, settlements)
        assert catalog.head(tenant, KEY) == commits_of(first)[-1].head
        assert catalog.read_blocks(tenant, [commits_of(again)[0].manifest.id]) == {}

    def test_what_was_built_on_another_head_changes_nothing(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        begun = make_request(tenant, None)
        winner = make_request(tenant, begun.head)
        catalog.commit(begun)
        catalog.commit(winner)
        entry = make_entry()
        late, other = catalog.enter(tenant, entry), catalog.enter(tenant, make_entry(OTHER))
        stale, good = make_settlement(tenant, begun.head, [late]), make_settlement(tenant, None, [other], OTHER)
        for settlements in ([*stale, *good], make_settlement(tenant, None, [late])):
            with pytest.raises(Conflict):
                catalog.settle(tenant, settlements)
        assert catalog.heads(tenant, [KEY, OTHER]) == {KEY: winner.head}
        assert catalog.read_blocks(tenant, [block.id for block in commits_of(stale)[0].blocks]) == {}
        row = catalog.ticket(tenant, late, entry.secret)
        assert row is not None and row.receipt is None and row.failure is None
        catalog.settle(tenant, [*good, *make_settlement(tenant, winner.head, [late])])
        assert catalog.pending_count(tenant) == 0

    def test_a_failure_is_kept_and_moves_nothing(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        begun = make_request(tenant, None)
        catalog.commit(begun)
        entries = [make_entry(), make_entry(), make_entry(OTHER)]
        first, second, other = [catalog.enter(tenant, entry) for entry in entries]
        good = make_settlement(tenant, begun.head, [second])
        catalog.settle(tenant, [Settlement(other, failure="{}"), Settlement(first, failure='{"no": 1}'), *good])
        assert catalog.head(tenant, KEY) == commits_of(good)[-1].head
        assert catalog.head(tenant, OTHER) is None
        row = catalog.ticket(tenant, first, entries[0].secret)
        assert row is not None and (row.receipt, row.failure) == (None, '{"no": 1}')
        assert catalog.pending_count(tenant) == 0 and catalog.newest_pending(tenant) is None
        assert catalog.pending_entries(tenant, [KEY, OTHER], most_entries=9, most_bytes=1 << 20) == []

    def test_a_ticket_opens_with_its_own_secret_in_its_own_tenant(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        entry = make_entry()
        seq = catalog.enter(tenant, entry)

        def foreign() -> list[object]:
            return [
                catalog.ticket(tenant, seq, os.urandom(16)),
                catalog.ticket(tenant, seq + 1, entry.secret),
                catalog.ticket(catalog.tenant("else"), seq, entry.secret),
            ]

        assert foreign() == [None] * 3
        assert catalog.ticket(tenant, seq, entry.secret) is not None
        catalog.settle(tenant, make_settlement(tenant, None, [seq]))
        assert foreign() == [None] * 3

    def test_settling_finishes_uploads_and_remembers_keys(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        upload = make_upload()
        catalog.open_upload(tenant, upload)
        seq = catalog.enter(tenant, make_entry(idempotency_key="k", fingerprint=b"f"))
        known = Idempotency("k", b"f", b"receipt")
        request = make_request(tenant, None, uploads=(upload.id,), idempotency=known)
        catalog.settle(tenant, [Settlement(seq, request, b"receipt")])
        found = catalog.upload(tenant, upload.id)
        assert found is not None and found.state == "ready"
        assert catalog.receipt(tenant, KEY, "k") == known
        assert catalog.pending_request(tenant, KEY, "k") is None

    def test_what_is_refused_changes_nothing_of_any_branch(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        seqs = [catalog.enter(tenant, make_entry()), catalog.enter(tenant, make_entry(OTHER))]
        gone = make_upload()
        bad = make_request(tenant, None, uploads=(gone.id,))
        with pytest.raises(AnalemmaError):
            catalog.settle(
                tenant, [Settlement(seqs[0], bad, b"receipt"), *make_settlement(tenant, None, seqs[1:], OTHER)]
            )
        assert catalog.heads(tenant, [KEY, OTHER]) == {}
        assert catalog.pending_count(tenant) == 2 and catalog.stats(tenant).blocks == 0

    def test_many_settle_the_same_entries_and_one_does(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        keys = [BranchKey("ann", f"workflow {number}") for number in range(6)]
        seqs = {key: [catalog.enter(tenant, make_entry(key)) for _ in range(3)] for key in keys}

        def attempt(turn: int) -> bool:
            order = keys if turn % 2 else keys[::-1]
            try:
                catalog.settle(
                    tenant, [each for key in order for each in make_settlement(tenant, None, seqs[key], key)]
                )
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(attempt, range(4))) == 1
        assert {head.version for head in catalog.heads(tenant, keys).values()} == {3}
        assert catalog.pending_count(tenant) == 0

    def test_old_tickets_are_forgotten_and_pending_ones_are_not(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        entries = [make_entry(), make_entry()]
        seqs = [catalog.enter(tenant, entry) for entry in entries]
        catalog.settle(tenant, make_settlement(tenant, None, seqs[:1]))
        row = catalog.ticket(tenant, seqs[0], entries[0].secret)
        assert row is not None
        assert catalog.forget_tickets(tenant, before_us=row.at_us) == 0
        assert catalog.forget_tickets(catalog.tenant("else"), before_us=row.at_us + 1) == 0
        assert catalog.forget_tickets(tenant, before_us=row.at_us + 1) == 1
        assert catalog.ticket(tenant, seqs[0], entries[0].secret) is None
        assert catalog.ticket(tenant, seqs[1], entries[1].secret) is not None

    def _check_stored(self, catalog: SqlCatalog, tenant: TenantId, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            assert catalog.manifest(tenant, request.manifest.id) == request.manifest
            found = catalog.read_blocks(tenant, [block.id for block in request.blocks])
            assert found == {block.id: block for block in request.blocks}
        records = catalog.journal(tenant, requests[0].head.key)
        assert records[-len(requests) :] == [request.record for request in requests]
