"""The part of the catalogs' conformance suite beside commits: workflows, journal records and their rows, expiry."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Literal

import pytest

from analemma.canon.identity import BlockId
from analemma.catalog.port import (
    BranchKey,
    BranchStart,
    CommitRequest,
    ExpiringVersion,
    Head,
    KernelCatalog,
    Pin,
    PolicyRow,
    RecordRequest,
    RetentionPolicy,
    Tag,
    TenantId,
    Verdict,
)
from analemma.errors import Conflict, Expired, HeadMoved, Invalid
from analemma.testing.commits import KEY, after, make_record, make_request


class CatalogRecordsSuite:
    """What every catalog must do besides committing; a part of `KernelCatalogSuite`."""

    def test_a_workflow_begins_with_its_first_commit(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        assert catalog.workflow(tenant, KEY.owner, KEY.workflow) is None
        first, second = _line(catalog, tenant, 2)
        found = catalog.workflow(tenant, KEY.owner, KEY.workflow)
        assert found is not None and [found] == catalog.workflows(tenant, KEY.owner)
        assert (found.workflow_id, found.name, found.status) == (KEY.workflow, KEY.workflow, "IDLE")
        assert (found.manifest, found.branch, found.version, found.segment_id) == (second.manifest.id, "main", 2, 3)
        assert (found.created_at_us, found.committed_at_us) == (
            first.manifest.created_at_us,
            second.manifest.created_at_us,
        )

    def test_a_commit_that_fails_begins_no_workflow(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        with pytest.raises(Expired):
            catalog.commit(make_request(tenant, None, bases=(BlockId(bytes(32)),)))
        assert catalog.workflows(tenant, KEY.owner) == []
        assert catalog.branches(tenant, KEY.owner, KEY.workflow) == []

    def test_workflows_are_paged_by_id(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        names = ["Z", "a", "b c", "é", "🐿"]
        for name in reversed(names):
            catalog.commit(make_request(tenant, None, key=BranchKey("ann", name)))
        catalog.commit(make_request(tenant, None, key=BranchKey("bob", "c")))
        catalog.commit(make_request(catalog.tenant("other"), None, key=BranchKey("ann", "c")))
        assert [row.workflow_id for row in catalog.workflows(tenant, "ann")] == names
        assert [row.workflow_id for row in catalog.workflows(tenant, "ann", after="a", limit=2)] == names[2:4]
        assert catalog.set_workflow(tenant, "ann", "é", name="Zoo", status="FAILED")
        assert [row.workflow_id for row in catalog.workflows(tenant, "ann", name_prefix="Z")] == ["Z", "é"]
        assert [row.name for row in catalog.workflows(tenant, "ann", status="FAILED")] == ["Zoo"]
        assert not catalog.set_workflow(tenant, "ann", "nothing", name="x", status=None)

    def test_branches_know_where_they_began(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        (first,) = _line(catalog, tenant, 1)
        other = make_request(tenant, None, key=KEY._replace(branch="idea"), bases=(first.manifest.id,))
        fork = replace(other, manifest=other.manifest._replace(parent=first.manifest.id))
        catalog.commit(fork)
        assert [(row.name, row.parent, row.manifest) for row in catalog.branches(tenant, KEY.owner, KEY.workflow)] == [
            ("idea", first.manifest.id, fork.manifest.id),
            ("main", None, first.manifest.id),
        ]
        assert catalog.children(tenant, first.manifest) == [fork.manifest]
        assert catalog.branch_start(tenant, fork.head.key) == BranchStart(
            fork.manifest.id, first.manifest.id, fork.manifest.created_at_us
        )
        assert catalog.branch_start(tenant, BranchKey("ann", "nothing")) is None
        second = make_request(tenant, first.head)
        catalog.commit(second)
        assert catalog.children(tenant, first.manifest) == [fork.manifest, second.manifest]
        assert catalog.children(tenant, second.manifest) == []

    def test_versions_are_paged_oldest_first(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        rows = [request.manifest for request in _line(catalog, tenant, 5)]
        assert catalog.versions_after(tenant, KEY, after_version=0) == rows
        assert catalog.versions_after(tenant, KEY, after_version=2, limit=2) == rows[2:4]
        assert catalog.versions_after(tenant, KEY, after_version=5) == []

    def test_versions_are_found_by_how_their_ids_begin(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        rows = sorted((request.manifest for request in _line(catalog, tenant, 5)), key=lambda row: row.id)
        lowest, highest = BlockId(bytes(32)), BlockId(b"\xff" * 32)
        assert catalog.versions_between(tenant, lowest, highest, limit=4) == rows[:4]
        assert catalog.versions_between(tenant, rows[1].id, rows[3].id, limit=4) == rows[1:4]
        assert catalog.versions_between(tenant, lowest, highest, owner=KEY.owner, limit=9) == rows
        assert catalog.versions_between(tenant, lowest, highest, owner="bob") == []
        assert catalog.versions_between(catalog.tenant("other"), lowest, highest) == []

    def test_a_snapshot_shows_nothing_that_came_later(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        (first,) = _line(catalog, tenant, 1)
        with ThreadPoolExecutor(1) as pool, catalog.snapshot() as seen:
            assert seen.head(tenant, KEY) == first.head
            committing = pool.submit(catalog.commit, make_request(tenant, first.head))
            wait([committing], timeout=0.2)  # A store in memory has one connection: there it waits for the block's end.
            assert seen.head(tenant, KEY) == first.head
            assert [row.version for row in seen.history(tenant, KEY)] == [1]
            assert [row.seq for row in seen.journal(tenant, KEY)] == [1]
        committing.result()
        assert [row.version for row in catalog.history(tenant, KEY)] == [2, 1]

    def test_a_record_moves_the_tip_and_nothing_else(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second = _line(catalog, tenant, 2)
        request = make_record(tenant, second.head, manifest=first.manifest.id)
        catalog.append(request)
        assert catalog.head(tenant, KEY) == after(request)
        assert catalog.journal(tenant, KEY)[-1] == request.record
        catalog.commit(make_request(tenant, after(request)))
        assert [row.version for row in catalog.history(tenant, KEY)] == [3, 2, 1]

    def test_a_record_on_another_tip_changes_nothing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second = _line(catalog, tenant, 2)
        for field in ("version", "journal_seq", "journal_tip", "manifest"):
            other: Any = bytes(32) if field in ("journal_tip", "manifest") else getattr(second.head, field) + 1
            wrong = replace(second.head, **{field: other})
            with pytest.raises(HeadMoved) as caught:
                catalog.append(make_record(tenant, wrong, "put_pin", manifest=first.manifest.id, reason="why"))
            assert caught.value.found == second.head, field
            assert catalog.head(tenant, KEY) == second.head
            assert len(catalog.journal(tenant, KEY)) == 2 and catalog.pins(tenant, KEY.owner, KEY.workflow) == []

    def test_a_record_on_a_missing_version_changes_nothing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        (first,) = _line(catalog, tenant, 1)
        elsewhere = make_request(tenant, None, key=KEY._replace(branch="idea"))
        catalog.commit(elsewhere)
        for missing in (BlockId(bytes(32)), elsewhere.manifest.id):
            with pytest.raises(Expired):
                catalog.append(make_record(tenant, first.head, manifest=missing))
        assert catalog.head(tenant, KEY) == first.head

    def test_tags_are_compared_and_set(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second = _line(catalog, tenant, 2)
        tagging = _tagging(tenant, second.head, "add_tag", first)
        head = self._append(catalog, tagging)
        tag = Tag("good", KEY, first.manifest.id, 1, "why", tagging.record.created_at_us)
        assert catalog.tag(tenant, KEY.owner, KEY.workflow, "good") == tag
        for refused in (
            _tagging(tenant, head, "add_tag", second),
            _tagging(tenant, head, "move_tag", second, moved_from=second.manifest.id),
            make_record(tenant, head, "drop_tag", manifest=second.manifest.id, name="good"),
            make_record(tenant, head, "drop_tag", manifest=first.manifest.id, name="other"),
        ):
            with pytest.raises(Conflict) as caught:
                catalog.append(refused)
            assert caught.value.kind == "conflict"
            assert catalog.head(tenant, KEY) == head
        moving = _tagging(tenant, head, "move_tag", second, moved_from=first.manifest.id)
        head = self._append(catalog, moving)
        moved = replace(tag, manifest=second.manifest.id, version=2, created_at_us=moving.record.created_at_us)
        assert catalog.tags(tenant, KEY.owner, KEY.workflow) == [moved]
        self._append(catalog, make_record(tenant, head, "drop_tag", manifest=second.manifest.id, name="good"))
        assert catalog.tags(tenant, KEY.owner, KEY.workflow) == []

    def test_pins_come_and_go(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        (first,) = _line(catalog, tenant, 1)
        head = first.head
        for reason in ("why", "other"):
            pinning = make_record(tenant, head, "put_pin", manifest=first.manifest.id, reason=reason)
            head = self._append(catalog, pinning)
            pin = Pin(KEY, first.manifest.id, 1, reason, pinning.record.created_at_us)
            assert catalog.pins(tenant, KEY.owner, KEY.workflow) == [pin]
        head = self._append(catalog, make_record(tenant, head, "drop_pin", manifest=first.manifest.id))
        assert catalog.pins(tenant, KEY.owner, KEY.workflow) == []
        with pytest.raises(Conflict):
            catalog.append(make_record(tenant, head, "drop_pin", manifest=first.manifest.id))

    def test_nothing_runs_where_nothing_was_begun(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        _line(catalog, tenant, 1)
        assert catalog.running_executions(tenant, KEY.owner, KEY.workflow) == []
        assert catalog.resumable_heads(tenant, KEY.owner, KEY.workflow) == []

    def test_decisions_are_found_by_version(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second, third = _line(catalog, tenant, 3)
        head, records = third.head, []
        for request in (third, first, third):
            decided = make_record(tenant, head, kind="decided", manifest=request.manifest.id)
            head = self._append(catalog, decided)
            records.append(decided.record)
        head = self._append(catalog, make_record(tenant, head, kind="noted", manifest=third.manifest.id))
        assert catalog.decisions(tenant, KEY, third.manifest.id) == [records[0], records[2]]
        assert catalog.decisions(tenant, KEY, second.manifest.id) == []
        assert catalog.decisions(tenant, BranchKey("bob", "other"), third.manifest.id) == []

    def test_versions_are_found_by_their_newest_decision(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        line = _line(catalog, tenant, 5)
        head = line[-1].head
        decided: list[tuple[int, Verdict]] = [(1, "approved"), (3, "approved"), (4, "rejected"), (3, "escalated")]
        for version, decision in [*decided, (5, "approved"), (2, "approved")]:
            record = make_record(
                tenant,
                head,
                "put_decision",
                kind="decided",
                manifest=line[version - 1].manifest.id,
                version=version,
                decision=decision,
            )
            head = self._append(catalog, record)
        rows = [request.manifest for request in line]
        assert catalog.history(tenant, KEY, decision="approved") == [rows[4], rows[1], rows[0]]
        assert catalog.history(tenant, KEY, decision="approved", limit=2) == [rows[4], rows[1]]
        assert catalog.history(tenant, KEY, decision="approved", before_version=2) == [rows[0]]
        assert catalog.history(tenant, KEY, decision="approved", execution="run-2") == []
        assert catalog.history(tenant, KEY, decision="approved", segment=3, since_us=rows[1].created_at_us) == [
            rows[4],
            rows[1],
        ]
        assert catalog.history(tenant, KEY, decision="escalated") == [rows[2]]
        assert catalog.history(tenant, KEY, decision="pending") == []
        assert catalog.history(catalog.tenant("other"), KEY, decision="approved") == []
        self._append(catalog, _expiry(tenant, head, *line[:2]))
        assert catalog.history(tenant, KEY, decision="approved") == [rows[4]]

    def test_expired_versions_are_remembered(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second, third = _line(catalog, tenant, 3)
        before = catalog.stats(tenant).blocks
        request = _expiry(tenant, third.head, first, second)
        self._append(catalog, request)
        assert [row.version for row in catalog.history(tenant, KEY)] == [3]
        assert catalog.manifest(tenant, first.manifest.id) is None
        gone = catalog.expired(tenant, second.manifest.id)
        assert gone is not None and gone == catalog.expired_version(tenant, KEY, 2)
        assert (gone.manifest, gone.key, gone.version) == (second.manifest.id, KEY, 2)
        assert gone.expired_at_us == request.record.created_at_us
        assert catalog.expired(tenant, third.manifest.id) is None
        assert catalog.expired_version(catalog.tenant("other"), KEY, 2) is None
        assert catalog.expired_versions(tenant, KEY, after_version=1) == [gone]
        assert [row.version for row in catalog.expired_versions(tenant, KEY)] == [1, 2]
        assert [row.version for row in catalog.expired_versions(tenant, KEY, limit=1)] == [1]
        assert catalog.stats(tenant).blocks == before
        with pytest.raises(Expired):
            catalog.commit(make_request(tenant, None, key=KEY._replace(branch="idea"), bases=(first.manifest.id,)))

    def test_what_something_needs_does_not_expire(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second, third, fourth = _line(catalog, tenant, 4)
        head = self._append(catalog, _tagging(tenant, fourth.head, "add_tag", first))
        head = self._append(catalog, make_record(tenant, head, "put_pin", manifest=second.manifest.id, reason=None))
        absent = [ExpiringVersion(3, third.manifest.id), ExpiringVersion(9, fourth.manifest.id)]
        another = [ExpiringVersion(3, second.manifest.id)]
        for request in (
            *(_expiry(tenant, head, *gone) for gone in ((first,), (second,), (first, third))),
            *(make_record(tenant, head, "expire_versions", expired=gone) for gone in (absent, another)),
        ):
            with pytest.raises(Conflict):
                catalog.append(request)
        with pytest.raises(Invalid):
            catalog.append(_expiry(tenant, head, third, fourth))
        assert catalog.head(tenant, KEY) == head
        assert [row.version for row in catalog.history(tenant, KEY)] == [4, 3, 2, 1]
        assert catalog.expired(tenant, third.manifest.id) is None
        self._append(catalog, _expiry(tenant, head, third))

    def test_a_commit_and_the_expiry_of_its_base_do_not_both_win_silently(
        self, catalog: KernelCatalog, tenant: TenantId
    ) -> None:
        for turn in range(10):
            key = BranchKey("ann", f"workflow-{turn}")
            first = make_request(tenant, None, key=key)
            second = make_request(tenant, first.head, key=key)
            catalog.commit(first)
            catalog.commit(second)
            fork = make_request(tenant, None, key=key._replace(branch="idea"), bases=(first.manifest.id,))
            start = threading.Barrier(2)

            def commit(fork: CommitRequest = fork, start: threading.Barrier = start) -> bool:
                start.wait()
                try:
                    catalog.commit(fork)
                except Expired:
                    return False
                return True

            def expire(head: Head = second.head, gone: CommitRequest = first, start: threading.Barrier = start) -> None:
                start.wait()
                catalog.append(_expiry(tenant, head, gone))

            with ThreadPoolExecutor(2) as pool:
                forked, expired = pool.submit(commit), pool.submit(expire)
                expired.result()
                made = forked.result()
            assert catalog.manifest(tenant, first.manifest.id) is None
            assert (catalog.head(tenant, fork.head.key) == fork.head) is made

    def test_one_of_many_records_wins(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        (first,) = _line(catalog, tenant, 1)
        requests = [make_record(tenant, first.head) for _ in range(8)]
        start = threading.Barrier(8)

        def run(request: RecordRequest) -> bool:
            start.wait()
            try:
                catalog.append(request)
            except HeadMoved:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = [request for request, ok in zip(requests, pool.map(run, requests), strict=True) if ok]
        assert len(won) == 1
        assert catalog.head(tenant, KEY) == after(won[0])

    def test_the_policy_of_a_workflow_comes_before_its_owners(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        assert catalog.retention(tenant, "ann", "report") is None
        catalog.set_retention(tenant, "ann", None, RetentionPolicy(keep_last=3))
        assert catalog.retention(tenant, "ann", "report") == RetentionPolicy(keep_last=3)
        for policy in (RetentionPolicy(1, 2, 3, 4, 5), RetentionPolicy(keep_weekly=1)):
            catalog.set_retention(tenant, "ann", "report", policy)
            assert catalog.retention(tenant, "ann", "report") == policy
        assert catalog.retention(tenant, "ann", None) == RetentionPolicy(keep_last=3)
        assert catalog.retention(tenant, "bob", "report") is None

    def test_policies_are_listed_page_by_page(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        assert catalog.retention_policies(tenant) == []
        made = [
            PolicyRow(owner, workflow, RetentionPolicy(keep_last=number))
            for number, (owner, workflow) in enumerate([("ann", None), ("ann", "b"), ("ann", "é"), ("bob", "a")], 1)
        ]
        for row in made:
            catalog.set_retention(tenant, row.owner, row.workflow, row.policy)
        catalog.set_retention(catalog.tenant("other"), "ann", None, RetentionPolicy())
        listed: list[PolicyRow] = []
        while page := catalog.retention_policies(
            tenant, after=(listed[-1].owner, listed[-1].workflow) if listed else None, limit=1
        ):
            listed += page
        assert sorted(listed, key=lambda row: row.policy.keep_last or 0) == made
        assert catalog.retention_policies(tenant) == listed

    def _append(self, catalog: KernelCatalog, request: RecordRequest) -> Head:
        catalog.append(request)
        return after(request)


def _line(catalog: KernelCatalog, tenant: TenantId, count: int) -> list[CommitRequest]:
    requests: list[CommitRequest] = []
    for _ in range(count):
        requests.append(make_request(tenant, requests[-1].head if requests else None))
        catalog.commit(requests[-1])
    return requests


def _expiry(tenant: TenantId, head: Head, *requests: CommitRequest) -> RecordRequest:
    expired = [ExpiringVersion(request.manifest.version, request.manifest.id) for request in requests]
    return make_record(tenant, head, "expire_versions", kind="expired", expired=expired)


def _tagging(
    tenant: TenantId, head: Head, how: Literal["add_tag", "move_tag"], of: CommitRequest, **details: Any
) -> RecordRequest:
    return make_record(tenant, head, how, manifest=of.manifest.id, name="good", message="why", **details)
