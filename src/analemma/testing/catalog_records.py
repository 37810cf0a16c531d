"""The part of the catalogs' conformance suite beside commits: journal records, and what they do to rows."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from analemma.canon.nodes import BlockId
from analemma.catalog.port import (
    BranchKey,
    CommitRequest,
    Head,
    KernelCatalog,
    Pin,
    RecordRequest,
    Tag,
    TenantId,
    Verdict,
)
from analemma.errors import Conflict, Expired, HeadMoved, Invalid
from analemma.testing.commits import KEY, after, make_expiry, make_line, make_record, make_request


class CatalogRecordsSuite:
    """What every catalog must do besides committing; a part of `KernelCatalogSuite`."""

    def test_a_record_moves_the_tip_and_nothing_else(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second = make_line(catalog, tenant, 2)
        request = make_record(tenant, second.head, manifest=first.manifest.id)
        catalog.append(request)
        assert catalog.head(tenant, KEY) == after(request)
        assert catalog.journal(tenant, KEY)[-1] == request.record
        catalog.commit(make_request(tenant, after(request)))
        assert [row.version for row in catalog.history(tenant, KEY)] == [3, 2, 1]

    def test_a_record_on_another_tip_changes_nothing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second = make_line(catalog, tenant, 2)
        for field in ("version", "journal_seq", "journal_tip", "manifest"):
            other: Any = bytes(32) if field in ("journal_tip", "manifest") else getattr(second.head, field) + 1
            wrong = replace(second.head, **{field: other})
            with pytest.raises(HeadMoved) as caught:
                catalog.append(make_record(tenant, wrong, "put_ref", manifest=first.manifest.id, **_pin(first, "why")))
            assert caught.value.found == second.head, field
            assert catalog.head(tenant, KEY) == second.head
            assert len(catalog.journal(tenant, KEY)) == 2 and catalog.refs(tenant, KEY.owner, KEY.workflow) == []

    def test_a_record_on_a_missing_version_changes_nothing(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        (first,) = make_line(catalog, tenant, 1)
        elsewhere = make_request(tenant, None, key=KEY._replace(branch="idea"))
        catalog.commit(elsewhere)
        for missing in (BlockId(bytes(32)), elsewhere.manifest.id):
            with pytest.raises(Expired):
                catalog.append(make_record(tenant, first.head, manifest=missing))
        assert catalog.head(tenant, KEY) == first.head

    def test_tags_are_compared_and_set(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second = make_line(catalog, tenant, 2)
        tagging = _tagging(tenant, second.head, first)
        head = self._append(catalog, tagging)
        tag = Tag("good", KEY, first.manifest.id, 1, "why", tagging.record.created_at_us)
        assert catalog.refs(tenant, KEY.owner, KEY.workflow, kind="tag", name="good") == [tag]
        for refused in (
            _tagging(tenant, head, first),
            _tagging(tenant, head, second),
            _tagging(tenant, head, second, second),
            _untagging(tenant, head, second),
            _untagging(tenant, head, first, name="other"),
        ):
            with pytest.raises(Conflict) as caught:
                catalog.append(refused)
            assert caught.value.kind == "conflict"
            assert catalog.head(tenant, KEY) == head
        moving = _tagging(tenant, head, second, first)
        head = self._append(catalog, moving)
        moved = replace(tag, manifest=second.manifest.id, version=2, created_at_us=moving.record.created_at_us)
        assert catalog.refs(tenant, KEY.owner, KEY.workflow, kind="tag") == [moved]
        self._append(catalog, _untagging(tenant, head, second))
        assert catalog.refs(tenant, KEY.owner, KEY.workflow, kind="tag") == []

    def test_pins_come_and_go(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        (first,) = make_line(catalog, tenant, 1)
        head = first.head
        for reason in ("why", "other"):
            pinning = make_record(tenant, head, "put_ref", manifest=first.manifest.id, **_pin(first, reason))
            head = self._append(catalog, pinning)
            pin = Pin(first.manifest.manifest_id, KEY, first.manifest.id, 1, reason, pinning.record.created_at_us)
            assert catalog.refs(tenant, KEY.owner, KEY.workflow, kind="pin") == [pin]
        unpinning = {"manifest": first.manifest.id, **_pin(first), "left": [first.manifest.id]}
        head = self._append(catalog, make_record(tenant, head, "drop_ref", **unpinning))
        assert catalog.refs(tenant, KEY.owner, KEY.workflow) == []
        with pytest.raises(Conflict):
            catalog.append(make_record(tenant, head, "drop_ref", **unpinning))

    def test_versions_are_found_by_their_newest_decision(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        line = make_line(catalog, tenant, 5)
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
        self._append(catalog, make_expiry(tenant, head, *line[:2]))
        assert catalog.history(tenant, KEY, decision="approved") == [rows[4]]

    def test_what_something_needs_does_not_expire(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        first, second, third, fourth = make_line(catalog, tenant, 4)
        head = self._append(catalog, _tagging(tenant, fourth.head, first))
        pinning = {"manifest": second.manifest.id, **_pin(second)}
        head = self._append(catalog, make_record(tenant, head, "put_ref", **pinning))
        absent = [third.manifest._replace(version=3), fourth.manifest._replace(version=9)]
        another = [second.manifest._replace(version=3)]
        for request in (
            *(make_expiry(tenant, head, *gone) for gone in ((first,), (second,), (first, third))),
            *(make_record(tenant, head, "expire_versions", expired=gone) for gone in (absent, another)),
        ):
            with pytest.raises(Conflict):
                catalog.append(request)
        with pytest.raises(Invalid):
            catalog.append(make_expiry(tenant, head, third, fourth))
        assert catalog.head(tenant, KEY) == head
        assert [row.version for row in catalog.history(tenant, KEY)] == [4, 3, 2, 1]
        assert catalog.manifest(tenant, third.manifest.id) == third.manifest
        self._append(catalog, make_expiry(tenant, head, third))

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
                catalog.append(make_expiry(tenant, head, gone))

            with ThreadPoolExecutor(2) as pool:
                forked, expired = pool.submit(commit), pool.submit(expire)
                expired.result()
                made = forked.result()
            assert catalog.manifest(tenant, first.manifest.id) is None
            assert (catalog.head(tenant, fork.head.key) == fork.head) is made

    def test_one_of_many_records_wins(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        (first,) = make_line(catalog, tenant, 1)
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

    def _append(self, catalog: KernelCatalog, request: RecordRequest) -> Head:
        catalog.append(request)
        return after(request)


def _tagging(tenant: TenantId, head: Head, of: CommitRequest, left: CommitRequest | None = None) -> RecordRequest:
    on = [] if left is None else [left.manifest.id]
    return make_record(
        tenant, head, "put_ref", manifest=of.manifest.id, ref_kind="tag", name="good", text="why", left=on
    )


def _untagging(tenant: TenantId, head: Head, of: CommitRequest, name: str = "good") -> RecordRequest:
    left = of.manifest.id
    return make_record(tenant, head, "drop_ref", manifest=left, ref_kind="tag", name=name, left=[left])


def _pin(of: CommitRequest, text: str | None = None) -> dict[str, Any]:
    return {"ref_kind": "pin", "name": of.manifest.manifest_id, "left": [], "text": text}
