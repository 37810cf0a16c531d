"""The conformance suite of catalogs: a backend joins by subclassing `KernelCatalogSuite` and filling its four gaps."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from analemma.canon.nodes import BlockId
from analemma.catalog.port import (
    BlockRow,
    BranchKey,
    CommitRequest,
    Committed,
    Head,
    Idempotency,
    KernelCatalog,
    TenantId,
    UploadId,
)
from analemma.errors import Conflict, Expired, HeadMoved, Invalid
from analemma.testing.catalog_blocks import CatalogBlocksSuite
from analemma.testing.catalog_pending import CatalogPendingSuite
from analemma.testing.catalog_records import CatalogRecordsSuite
from analemma.testing.commits import KEY, make_block, make_event, make_line, make_request, make_upload
from analemma.testing.refusals import refuses


class KernelCatalogSuite(CatalogRecordsSuite, CatalogPendingSuite, CatalogBlocksSuite, ABC):
    """What every catalog must do. The subclass supplies the fixture `catalog` and four ways past the port."""

    @abstractmethod
    def collect_upload(self, catalog: KernelCatalog, tenant: TenantId, upload: UploadId) -> None:
        """Move an upload from temp to deleting, as the collector would."""

    @abstractmethod
    def deliveries(self, catalog: KernelCatalog, tenant: TenantId) -> list[tuple[str, int, str]]:
        """The outbox as (aggregate id, place, event id), in that order."""

    @pytest.fixture
    def tenant(self, catalog: KernelCatalog) -> TenantId:
        return catalog.tenant("shop")

    def test_first_commit_creates_the_branch(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        request = make_request(tenant, None, [make_block(), make_block()], message="first")
        committed = catalog.commit(request)
        assert committed.stored == {block.id for block in request.blocks} and committed.known is None
        assert catalog.head(tenant, KEY) == request.head
        assert catalog.manifest(tenant, request.manifest.id) == request.manifest
        assert catalog.journal(tenant, KEY) == [request.record]

    def test_head_moves_from_commit_to_commit(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first = make_request(tenant, None)
        second = make_request(tenant, first.head)
        catalog.commit(first)
        catalog.commit(second)
        assert catalog.head(tenant, KEY) == second.head

    def test_head_of_an_unknown_branch_is_none(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        assert catalog.head(tenant, BranchKey("ann", "nothing")) is None
        assert catalog.manifest(tenant, BlockId(bytes(32))) is None
        assert catalog.history(tenant, BranchKey("ann", "nothing")) == []
        assert catalog.journal(tenant, BranchKey("ann", "nothing")) == []

    def test_commit_on_a_moved_head_changes_nothing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, winner = self._two_commits(catalog, tenant)
        upload = make_upload()
        catalog.open_upload(tenant, upload)
        before = self._everything(catalog, tenant)
        loser = make_request(
            tenant,
            first.head,
            [make_block()],
            uploads=(upload.id,),
            events=(make_event("lost"),),
            idempotency=Idempotency("lost", b"f", b"r"),
        )
        with pytest.raises(HeadMoved) as caught:
            catalog.commit(loser)
        assert caught.value.found == winner.head
        assert caught.value.expected == first.head
        assert self._everything(catalog, tenant) == before
        assert catalog.receipt(tenant, KEY, "lost") is None
        assert catalog.read_blocks(tenant, [block.id for block in loser.blocks]) == {}

    def test_commit_that_expects_a_head_where_there_is_none_changes_nothing(
        self, catalog: KernelCatalog, tenant: TenantId
    ) -> None:
        imagined = make_request(tenant, None).head
        with pytest.raises(HeadMoved) as caught:
            catalog.commit(make_request(tenant, imagined, [make_block()]))
        assert caught.value.found is None
        assert catalog.stats(tenant).blocks == 0

    def test_create_of_an_existing_branch_changes_nothing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        _, winner = self._two_commits(catalog, tenant)
        before = self._everything(catalog, tenant)
        with pytest.raises(HeadMoved) as caught:
            catalog.commit(make_request(tenant, None, [make_block()]))
        assert caught.value.found == winner.head
        assert self._everything(catalog, tenant) == before

    def test_every_part_of_the_head_is_compared(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        _, winner = self._two_commits(catalog, tenant)
        unseen = []
        for field in ("version", "journal_seq", "journal_tip", "manifest"):
            other: Any = bytes(32) if field in ("journal_tip", "manifest") else getattr(winner.head, field) + 1
            request = make_request(tenant, replace(winner.head, **{field: other}), bases=(winner.manifest.id,))
            if not refuses(catalog.commit, request, error=HeadMoved) or catalog.head(tenant, KEY) != winner.head:
                unseen.append(field)
        assert unseen == []

    def test_one_of_many_creators_wins(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        requests = [make_request(tenant, None, [make_block()]) for _ in range(8)]
        results = self._race(catalog, requests)
        winners = [request for request, error in zip(requests, results, strict=True) if error is None]
        assert len(winners) == 1
        assert all(isinstance(error, HeadMoved) for error in results if error is not None)
        assert catalog.head(tenant, KEY) == winners[0].head
        assert catalog.stats(tenant).blocks == 2

    def test_one_of_many_followers_wins(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first = make_request(tenant, None)
        catalog.commit(first)
        requests = [make_request(tenant, first.head, [make_block()]) for _ in range(8)]
        results = self._race(catalog, requests)
        winners = [request for request, error in zip(requests, results, strict=True) if error is None]
        assert len(winners) == 1
        assert all(error.found == winners[0].head for error in results if isinstance(error, HeadMoved))
        assert catalog.head(tenant, KEY) == winners[0].head

    def test_a_version_cannot_be_skipped(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first = make_request(tenant, None)
        catalog.commit(first)
        gap = make_request(tenant, first.head)
        skipped = replace(gap, manifest=gap.manifest._replace(version=3))
        with pytest.raises(Invalid):
            catalog.commit(skipped)

    def test_commit_on_a_missing_base_changes_nothing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        _, winner = self._two_commits(catalog, tenant)
        before = self._everything(catalog, tenant)
        gone = BlockId(os.urandom(32))
        request = make_request(
            tenant, winner.head, [make_block()], bases=(winner.manifest.id, gone), events=(make_event("lost"),)
        )
        with pytest.raises(Expired) as caught:
            catalog.commit(request)
        assert caught.value.manifest == gone.hex()
        assert self._everything(catalog, tenant) == before
        assert catalog.read_blocks(tenant, [block.id for block in request.blocks]) == {}

    def test_a_base_of_another_tenant_is_missing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        foreign = make_request(catalog.tenant("other"), None)
        catalog.commit(foreign)
        with pytest.raises(Expired):
            catalog.commit(make_request(tenant, None, bases=(foreign.manifest.id,)))
        assert catalog.head(tenant, KEY) is None

    def test_commit_makes_its_uploads_ready(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        uploads = [make_upload(owner="ann", workflow="report", execution="run-1") for _ in range(3)]
        for upload in uploads:
            catalog.open_upload(tenant, upload)
            assert catalog.upload(tenant, upload.id) == upload
        packed = BlockRow(BlockId(os.urandom(32)), 500, 1, None, uploads[0].id, 16, 200, b"")
        catalog.commit(make_request(tenant, None, [packed], uploads=tuple(upload.id for upload in uploads)))
        for upload in uploads:
            assert catalog.upload(tenant, upload.id) == upload._replace(state="ready")
        assert catalog.read_blocks(tenant, [packed.id]) == {packed.id: packed}

    def test_commit_whose_upload_was_collected_changes_nothing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        _, winner = self._two_commits(catalog, tenant)
        kept, stolen = make_upload(), make_upload()
        catalog.open_upload(tenant, kept)
        catalog.open_upload(tenant, stolen)
        self.collect_upload(catalog, tenant, stolen.id)
        before = self._everything(catalog, tenant)
        request = make_request(tenant, winner.head, [make_block()], uploads=(kept.id, stolen.id))
        with pytest.raises(Conflict) as caught:
            catalog.commit(request)
        assert caught.value.kind == "conflict"
        assert self._everything(catalog, tenant) == before
        assert catalog.upload(tenant, kept.id) == kept

    def test_an_upload_is_opened_once(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        upload = make_upload()
        catalog.open_upload(tenant, upload)
        with pytest.raises(Conflict):
            catalog.open_upload(tenant, upload)
        assert catalog.upload(tenant, UploadId(bytes(16))) is None

    def test_a_known_key_gives_the_first_answer_whatever_is_asked(
        self, catalog: KernelCatalog, tenant: TenantId
    ) -> None:
        asked = Idempotency("order-1", b"fingerprint", b"receipt of the first")
        first = make_request(tenant, None, [make_block()], idempotency=asked)
        assert catalog.commit(first).known is None
        before = self._everything(catalog, tenant)
        again = make_request(tenant, None, [make_block()], idempotency=replace(asked, receipt=b"another"))
        other = make_request(tenant, first.head, idempotency=replace(asked, fingerprint=b"another"))
        for request in (again, first, make_request(tenant, first.head, idempotency=asked), other):
            assert catalog.commit(request) == Committed(known=asked)
        assert self._everything(catalog, tenant) == before
        assert catalog.receipt(tenant, KEY, "order-1") == asked

    def test_a_failed_commit_leaves_its_key_free(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        asked = Idempotency("order-1", b"one", b"receipt")
        with pytest.raises(Expired):
            catalog.commit(make_request(tenant, None, bases=(BlockId(bytes(32)),), idempotency=asked))
        assert catalog.commit(make_request(tenant, None, idempotency=asked)).known is None

    def test_same_request_from_many_threads_commits_once(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        asked = [Idempotency("order-1", b"one", b"receipt %d" % number) for number in range(8)]
        branches = [BranchKey("ann", "report", f"branch-{number % 2}") for number in range(8)]
        requests = [
            make_request(tenant, None, idempotency=each, key=key) for each, key in zip(asked, branches, strict=True)
        ]

        def commit(request: CommitRequest) -> Committed:
            try:
                return catalog.commit(request)
            except HeadMoved:
                return catalog.commit(request)

        with ThreadPoolExecutor(8) as pool:
            answers = [answer.known for answer in pool.map(commit, requests)]
        first = answers.index(None)
        assert [answer for answer in answers if answer != asked[first]] == [None]
        assert catalog.stats(tenant).manifests == 1

    def test_history_is_paged_newest_first(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        requests = make_line(catalog, tenant, 7)
        rows = [request.manifest for request in reversed(requests)]
        assert catalog.history(tenant, KEY) == rows
        assert catalog.history(tenant, KEY, limit=3) == rows[:3]
        assert catalog.history(tenant, KEY, before_version=rows[2].version, limit=3) == rows[3:6]
        assert catalog.history(tenant, KEY, before_version=1) == []

    def test_journal_is_paged_oldest_first(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        requests = make_line(catalog, tenant, 7)
        rows = [request.record for request in requests]
        assert catalog.journal(tenant, KEY) == rows
        assert catalog.journal(tenant, KEY, limit=3) == rows[:3]
        assert catalog.journal(tenant, KEY, after_seq=rows[2].seq, limit=3) == rows[3:6]

    def test_branches_and_owners_are_apart(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        keys = [KEY, KEY._replace(branch="dev"), KEY._replace(owner="bob"), KEY._replace(workflow="other")]
        requests = [make_request(tenant, None, key=key) for key in keys]
        for request in requests:
            catalog.commit(request)
        for key, request in zip(keys, requests, strict=True):
            assert catalog.head(tenant, key) == request.head
            assert catalog.history(tenant, key) == [request.manifest]

    def test_tenants_are_apart(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        other = catalog.tenant("other")
        assert other != tenant
        assert catalog.tenant("other") == other
        block = make_block()
        mine, theirs = make_request(tenant, None, [block]), make_request(other, None, [block])
        catalog.commit(mine)
        assert catalog.read_blocks(other, [block.id]) == {}
        assert catalog.manifest(other, mine.manifest.id) is None
        assert catalog.head(other, KEY) is None
        assert block.id in catalog.commit(theirs).stored
        assert catalog.head(tenant, KEY) == mine.head
        assert catalog.stats(tenant).blocks == 2
        assert catalog.stats().blocks == 4

    def test_stats_count_what_is_there(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        catalog.open_upload(tenant, make_upload())
        packed = BlockRow(BlockId(os.urandom(32)), 500, 1, None, UploadId(bytes(16)), 16, 200)
        request = make_request(tenant, None, [make_block(b"12345"), packed])
        catalog.commit(request)
        stats = catalog.stats(tenant)
        manifest_size = request.blocks[-1].size
        assert (stats.blocks, stats.manifests, stats.heads, stats.uploads) == (3, 1, 1, 1)
        assert stats.logical_bytes == 505 + manifest_size
        assert stats.stored_bytes == 205 + manifest_size

    def test_odd_tenant_names_are_refused(self, catalog: KernelCatalog) -> None:
        names = ["", "a/b", "-x", ".", "a b", "é", "a\n", "x" * 65, "a\0"]
        assert [name for name in names if not refuses(catalog.tenant, name)] == []

    def test_odd_text_comes_back_unchanged(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        texts = ["o'neil; DROP TABLE head --", 'say "hi"', "100%s :name ?", "다람쥐 🐿", "\\x00 \\", "line\nline"]
        for text in texts:
            key = BranchKey(text, text, text)
            asked = Idempotency(text, b"f", b"r")
            events = (make_event(text, text),)
            request = make_request(tenant, None, key=key, message=text, idempotency=asked, events=events)
            catalog.commit(request)
            assert catalog.head(tenant, key) == request.head
            assert catalog.history(tenant, key) == [request.manifest]
            assert catalog.receipt(tenant, key, text) == asked
        assert sorted(self.deliveries(catalog, tenant)) == sorted((text, 1, text) for text in texts)

    def test_text_that_no_database_stores_is_refused(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        for text in ("a\0b", "\ud800"):
            for request in (
                make_request(tenant, None, key=BranchKey("ann", text)),
                make_request(tenant, None, events=(make_event("event", text),)),
            ):
                assert refuses(catalog.commit, request), (text, request)
        assert catalog.stats(tenant).manifests == 0

    def test_names_longer_than_an_index_entry_are_refused(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        longest = BranchKey("é" * 256, "w" * 512, "b" * 512)
        request = make_request(tenant, None, key=longest, idempotency=Idempotency("k" * 512, b"f", b"r"))
        catalog.commit(request)
        assert catalog.head(tenant, longest) == request.head
        with pytest.raises(Invalid):
            catalog.commit(make_request(tenant, None, key=BranchKey("ann", "é" * 257)))
        with pytest.raises(Invalid):
            catalog.commit(make_request(tenant, None, key=BranchKey("", "report")))

    def test_events_take_their_places_in_order(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first = make_request(tenant, None, events=(make_event("a1", "a"), make_event("b1", "b"), make_event("a2", "a")))
        catalog.commit(first)
        catalog.commit(make_request(tenant, first.head, events=(make_event("b2", "b"), make_event("a3", "a"))))
        in_a, in_b = [("a", 1, "a1"), ("a", 2, "a2"), ("a", 3, "a3")], [("b", 1, "b1"), ("b", 2, "b2")]
        assert self.deliveries(catalog, tenant) == in_a + in_b

    def test_same_blocks_in_opposite_orders_never_deadlock(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        shared = [make_block() for _ in range(40)]
        events = ("x", "y", "z")
        rounds = 12

        def work(number: int) -> None:
            key = BranchKey("ann", f"workflow-{number}")
            head: Head | None = None
            for turn in range(rounds):
                backwards = (number + turn) % 2 == 1
                request = make_request(
                    tenant,
                    head,
                    reversed(shared) if backwards else shared,
                    key=key,
                    events=tuple(
                        make_event(f"{number}/{turn}/{lane}", lane)
                        for lane in (reversed(events) if backwards else events)
                    ),
                )
                catalog.commit(request)
                head = request.head

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        for number in range(8):
            versions = [row.version for row in catalog.history(tenant, BranchKey("ann", f"workflow-{number}"))]
            assert versions == list(range(rounds, 0, -1))
        places: dict[str, list[int]] = {}
        for lane, place, _ in self.deliveries(catalog, tenant):
            places.setdefault(lane, []).append(place)
        assert places == {lane: list(range(1, 8 * rounds + 1)) for lane in events}

    def test_versions_are_gapless_when_threads_share_a_branch(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        wins = 0
        lock = threading.Lock()

        def work(_: int) -> None:
            nonlocal wins
            for _turn in range(15):
                try:
                    catalog.commit(make_request(tenant, catalog.head(tenant, KEY), [make_block()]))
                except HeadMoved:
                    continue
                with lock:
                    wins += 1

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        assert [row.version for row in catalog.history(tenant, KEY)] == list(range(wins, 0, -1))
        assert [row.seq for row in catalog.journal(tenant, KEY)] == list(range(1, wins + 1))
        assert catalog.stats(tenant).blocks == 2 * wins

    def test_closing_twice_is_harmless(self, catalog: KernelCatalog) -> None:
        catalog.close()
        catalog.close()

    def _two_commits(self, catalog: KernelCatalog, tenant: TenantId) -> tuple[CommitRequest, CommitRequest]:
        first = make_request(tenant, None, [make_block()])
        second = make_request(tenant, first.head, [make_block()], events=(make_event("kept"),))
        catalog.commit(first)
        catalog.commit(second)
        return first, second

    def _everything(self, catalog: KernelCatalog, tenant: TenantId) -> object:
        return (
            catalog.stats(),
            catalog.head(tenant, KEY),
            catalog.history(tenant, KEY),
            catalog.journal(tenant, KEY),
            self.deliveries(catalog, tenant),
        )

    def _race(self, catalog: KernelCatalog, requests: list[CommitRequest]) -> list[BaseException | None]:
        start = threading.Barrier(len(requests))

        def run(request: CommitRequest) -> BaseException | None:
            start.wait()
            try:
                catalog.commit(request)
            except HeadMoved as exc:
                return exc
            return None

        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(run, requests))
