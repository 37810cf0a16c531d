"""For people who write sinks: the suite every sink must pass.

class TestMySink(SinkSuite):
    @pytest.fixture
    def place(self):
        return MyPlace(...)  # a `SinkPlace`
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any, Protocol

import pytest

from analemma.errors import Invalid, Unavailable
from analemma.sinks.port import Outcome as Outcome
from analemma.sinks.port import Sink, SinkDocument

HOSTILE_IDS = (
    "../../etc/passwd",
    "/absolute",
    "a/b/c",
    ".",
    "..",
    ".hidden",
    "back\\slash",
    "\u00fcber \ud55c\uae00 \U0001f600",
    "e\u0301 and \u00e9",
    "quote'\"; DROP TABLE documents; --",
    "new\nline",
    "carriage\rreturn",
    "tab\t",
    "nul\x00byte",
    "\x1b[31mred",
    "%2F",
    "%",
    "~",
    "a.b.*.>",
    "{tenantId}",
    "${HOME}",
    " ",
    "x" * 256,
    "x" * 3000,
    "\u00e9" * 300,
)
"""Ids that a sink takes and keeps apart, or refuses; nothing else may happen."""

HOSTILE_BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"text": "\u00fcber \ud55c\uae00 \U0001f600 \u2028 \u2029"},
    {"text": "line\nline\r\n\ttab \x07 \x1b \x7f \\ \" '"},
    {"nul": "a\x00b"},
    {"": "no name"},
    {"a.b": {"c.d": 1}, "$where": "x", "__proto__": None},
    {"numbers": [0, -1, 2**53, 2**63 - 1, -(2**63), 0.1, 1e300, -0.5]},
    {"nothing": None, "truth": [True, False], "list": [], "object": {}},
    {"deep": [[[[[[[[[[[[[[[[[[[["x"]]]]]]]]]]]]]]]]]]]]},
    {"json": '{"docId": "other", "shipSeq": 99}\n{"docId": "x"}'},
)

UNENCODABLE: dict[str, Any] = {"number": 2**70}
"""What no JSON of ours can hold."""


class SinkPlace(Protocol):
    """Where a sink writes to: opened, read and broken by the suite."""

    def open(self) -> Sink:
        """A sink that writes there; each time another."""

    def read(self, document: SinkDocument) -> dict[str, Any] | None:
        """What a reader of the place finds of this document now, by other means than the sink; None: nothing."""

    def broken(self) -> AbstractContextManager[object]:
        """Inside the block the place takes nothing, in a way that passes."""


def make_document(doc_id: str = "shop__978", ship_seq: int = 1, **body: Any) -> SinkDocument:
    """A document of some book."""
    return SinkDocument(
        doc_id=doc_id,
        ship_seq=ship_seq,
        body=body or {"title": f"state {ship_seq}"},
        tenant="shop",
        entity_key="BOOK#shop#978",
        version=1000,
    )


def gone(document: SinkDocument, ship_seq: int) -> SinkDocument:
    """That the document is deleted."""
    return replace(document, ship_seq=ship_seq, body=None)


class SinkSuite:
    """What a `Sink` promises. A subclass supplies the fixture `place`, which is empty."""

    longest_body = 1 << 20
    takes_deletes = True
    knows_what_it_has_seen = False
    """Whether the place itself answers that it has a state already, for a while: then the first to arrive stays."""
    secrets: tuple[str, ...] = ()
    """Texts of the settings that must be seen nowhere."""

    def refuses_id(self, doc_id: str) -> bool:
        """Whether the sink says that it takes no such id."""
        return False

    def refuses_body(self, body: dict[str, Any]) -> bool:
        """Whether the sink says that it takes no such body."""
        return False

    def refused_by_the_place(self) -> dict[str, Any] | None:
        """A body that the place itself refuses, after the sink sent it; None if it takes every body."""
        return None

    @pytest.fixture
    def sink(self, place: SinkPlace) -> Iterator[Sink]:
        sink = place.open()
        yield sink
        sink.close()

    def test_a_document_arrives_and_is_replaced_by_newer_states(self, sink: Sink, place: SinkPlace) -> None:
        for ship_seq in (1, 2, 7):
            document = make_document(ship_seq=ship_seq)
            assert sink.ship(document).outcome is Outcome.SHIPPED
            assert place.read(document) == document.body

    def test_an_older_state_does_not_replace_a_newer_one(self, sink: Sink, place: SinkPlace) -> None:
        if not sink.guards:
            pytest.skip("this sink leaves it to whoever ships")
        assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.SHIPPED
        with closing(place.open()) as other:
            for each in (sink, other):
                answer = each.ship(make_document(ship_seq=1))
                assert answer.outcome is Outcome.STALE and answer.is_done
        assert place.read(make_document()) == {"title": "state 2"}

    def test_the_same_state_again_is_no_older_state(self, sink: Sink, place: SinkPlace) -> None:
        for title in ("first", "first", "second"):
            assert sink.ship(make_document(ship_seq=3, title=title)).outcome is Outcome.SHIPPED
        assert place.read(make_document()) == {"title": "first" if self.knows_what_it_has_seen else "second"}

    def test_a_deleted_document_is_gone(self, sink: Sink, place: SinkPlace) -> None:
        if not self.takes_deletes:
            pytest.skip("this sink cannot delete")
        document = make_document(ship_seq=1)
        assert sink.ship(document).outcome is Outcome.SHIPPED
        assert sink.delete(replace(document, ship_seq=2)).outcome is Outcome.SHIPPED
        assert place.read(document) is None
        # Again, and one that was never there.
        assert sink.ship(gone(document, 2)).outcome is Outcome.SHIPPED
        assert sink.ship(gone(make_document("shop__other"), 1)).outcome is Outcome.SHIPPED
        # What is newer than the delete brings it back.
        assert sink.ship(make_document(ship_seq=3)).outcome is Outcome.SHIPPED
        assert place.read(document) == {"title": "state 3"}

    def test_an_older_delete_leaves_a_newer_document(self, sink: Sink, place: SinkPlace) -> None:
        if not sink.guards:
            pytest.skip("this sink leaves it to whoever ships")
        document = make_document(ship_seq=5)
        assert sink.ship(document).outcome is Outcome.SHIPPED
        assert sink.ship(gone(document, 4)).outcome is Outcome.STALE
        assert place.read(document) == document.body

    def test_a_deleted_document_does_not_come_back_by_an_older_state(self, sink: Sink, place: SinkPlace) -> None:
        if not sink.remembers_deletes:
            pytest.skip("this sink leaves it to whoever ships")
        document = make_document(ship_seq=1)
        sink.ship(document)
        assert sink.ship(gone(document, 3)).outcome is Outcome.SHIPPED
        assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.STALE
        assert place.read(document) is None

    def test_a_batch_is_answered_document_by_document_in_its_order(self, sink: Sink, place: SinkPlace) -> None:
        if sink.guards:
            sink.ship(make_document("b", 9))
        documents = [make_document("a"), make_document("b"), make_document("c", **UNENCODABLE), make_document("d")]
        answers = sink.ship_batch(documents)
        middle = Outcome.STALE if sink.guards else Outcome.SHIPPED
        assert [each.outcome for each in answers] == [Outcome.SHIPPED, middle, Outcome.REFUSED, Outcome.SHIPPED]
        assert answers[2].reason and not answers[2].is_done
        assert place.read(documents[0]) == documents[0].body and place.read(documents[3]) == documents[3].body
        assert place.read(documents[2]) is None
        assert sink.ship_batch([]) == ()

    def test_what_the_place_refuses_does_not_take_others_along(self, sink: Sink, place: SinkPlace) -> None:
        body = self.refused_by_the_place()
        if body is None:
            pytest.skip("this place takes every body")
        documents = [make_document(f"doc {number}") for number in range(9)]
        for bad in (0, 4, 5, 8):
            documents[bad] = make_document(f"doc {bad}", **body)
        answers = sink.ship_batch(documents)
        refused = [number for number, each in enumerate(answers) if each.outcome is Outcome.REFUSED]
        assert refused == [0, 4, 5, 8] and all(answers[number].reason for number in refused)
        for number, document in enumerate(documents):
            assert place.read(document) == (None if number in refused else document.body)

    def test_of_a_document_that_stands_twice_in_a_batch_the_newest_state_stays(
        self, sink: Sink, place: SinkPlace
    ) -> None:
        batch = [make_document("a", seq) for seq in (2, 3, 1)] + [make_document("b", 1), make_document("b", 2)]
        batch += [make_document("c", 4, title="first"), make_document("c", 4, title="last")]
        outcomes = [each.outcome for each in sink.ship_batch(batch)]
        stale, shipped = Outcome.STALE, Outcome.SHIPPED
        assert outcomes == [stale, shipped, stale, stale, shipped, shipped, shipped]
        assert [place.read(make_document(name)) for name in "abc"] == [
            {"title": "state 3"},
            {"title": "state 2"},
            {"title": "last"},
        ]

    def test_a_refused_newest_state_leaves_the_one_before_it(self, sink: Sink, place: SinkPlace) -> None:
        answers = sink.ship_batch([make_document("a", 1), make_document("a", 2, **UNENCODABLE)])
        assert [each.outcome for each in answers] == [Outcome.SHIPPED, Outcome.REFUSED]
        assert place.read(make_document("a")) == {"title": "state 1"}

    def test_a_large_batch_arrives_whole(self, sink: Sink, place: SinkPlace) -> None:
        documents = [make_document(f"doc {number}", text="x" * (number % 50), number=number) for number in range(333)]
        assert {each.outcome for each in sink.ship_batch(documents)} == {Outcome.SHIPPED}
        for document in documents[::37]:
            assert place.read(document) == document.body

    def test_a_place_that_fails_is_tried_again(self, sink: Sink, place: SinkPlace) -> None:
        documents = [make_document("a", 1), make_document("b", 1)]
        sink.ship(documents[0])
        newer = [replace(each, ship_seq=2) for each in documents]
        with place.broken():
            answers = sink.ship_batch(newer)
            assert {each.outcome for each in answers} == {Outcome.RETRY}
            for answer in answers:
                assert answer.reason and "\n" not in answer.reason and not answer.is_done
                self._has_no_secret(answer.reason)
        assert {each.outcome for each in sink.ship_batch(newer)} == {Outcome.SHIPPED}
        assert [place.read(each) for each in documents] == [each.body for each in documents]

    def test_health_says_whether_the_place_answers(self, sink: Sink, place: SinkPlace) -> None:
        sink.ship(make_document())
        assert sink.health().is_healthy
        with place.broken():
            health = sink.health()
            assert not health.is_healthy and health.detail
            self._has_no_secret(health.detail)
        assert sink.health().is_healthy

    def test_a_closed_sink_says_so(self, place: SinkPlace) -> None:
        sink = place.open()
        sink.ship(make_document())
        sink.close()
        sink.close()
        assert not sink.health().is_healthy
        with pytest.raises(Unavailable, match="closed"):
            sink.ship(make_document())
        never_used = place.open()
        never_used.close()

    def test_secrets_are_neither_shown_nor_logged(
        self, sink: Sink, place: SinkPlace, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("DEBUG"):
            sink.ship(make_document())
            sink.health()
            with place.broken():
                sink.ship(make_document(ship_seq=2))
        self._has_no_secret(caplog.text)
        self._has_no_secret(repr(sink))
        self._has_no_secret(str(vars(sink)))

    def test_a_hostile_id_is_kept_or_refused(self, sink: Sink, place: SinkPlace) -> None:
        bystander = make_document()
        wrong: list[tuple[str, str]] = []
        for number, doc_id in enumerate(HOSTILE_IDS, 1):
            document = make_document(doc_id, 1, title="hostile")
            outcomes = [each.outcome for each in sink.ship_batch([replace(bystander, ship_seq=number), document])]
            expected = Outcome.REFUSED if self.refuses_id(doc_id) else Outcome.SHIPPED
            if outcomes != [Outcome.SHIPPED, expected]:
                wrong.append((doc_id, f"{outcomes}"))
            if place.read(bystander) != bystander.body:
                wrong.append((doc_id, "changes another document"))
            if expected is Outcome.REFUSED:
                continue
            if place.read(document) != document.body:
                wrong.append((doc_id, "is not there"))
            if self.takes_deletes:
                outcome = sink.ship(gone(document, 2)).outcome
                if outcome is not Outcome.SHIPPED or place.read(document) is not None:
                    wrong.append((doc_id, f"stays when it is deleted: {outcome}"))
                if place.read(bystander) != bystander.body:
                    wrong.append((doc_id, "deletes another document"))
        assert wrong == []

    def test_hostile_ids_are_kept_apart(self, sink: Sink, place: SinkPlace) -> None:
        documents = [
            make_document(doc_id, 1, number=number)
            for number, doc_id in enumerate(HOSTILE_IDS)
            if not self.refuses_id(doc_id)
        ]
        assert {each.outcome for each in sink.ship_batch(documents)} == {Outcome.SHIPPED}
        assert [place.read(each) for each in documents] == [each.body for each in documents]

    def test_ids_that_are_no_text_are_refused_before_they_are_sent(self, sink: Sink) -> None:
        assert sink.ship(make_document("lone \ud800 surrogate")).outcome is Outcome.REFUSED
        for wrong in ("", None, 7):
            with pytest.raises(Invalid):
                make_document(wrong)  # type: ignore[arg-type]
        for ship_seq in (-1, 2**63, 1.5, True):
            with pytest.raises(Invalid):
                make_document(ship_seq=ship_seq)  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            replace(make_document(), body=["no", "object"])  # type: ignore[arg-type]

    def test_a_hostile_body_arrives_unchanged_or_is_refused(self, sink: Sink, place: SinkPlace) -> None:
        wrong: list[tuple[Any, ...]] = []
        for number, body in enumerate(HOSTILE_BODIES):
            document = replace(make_document(f"doc {number}"), body=body)
            expected = Outcome.REFUSED if self.refuses_body(body) else Outcome.SHIPPED
            outcome, found = sink.ship(document).outcome, place.read(document)
            if outcome is not expected or found != (body if expected is Outcome.SHIPPED else None):
                wrong.append((body, outcome, found))
        assert wrong == []

    def test_a_large_body_arrives_and_one_that_is_too_large_is_refused(self, sink: Sink, place: SinkPlace) -> None:
        document = make_document(text="\u00e9x" * ((self.longest_body - 100) // 3))
        assert sink.ship_batch([make_document("small"), document])[1].outcome is Outcome.SHIPPED
        assert place.read(document) == document.body
        huge = make_document("huge", text="x" * (65 << 20))
        assert sink.ship(huge).outcome is Outcome.REFUSED

    def test_the_largest_counter_is_a_counter(self, sink: Sink, place: SinkPlace) -> None:
        document = make_document(ship_seq=2**63 - 1)
        assert sink.ship(document).outcome is Outcome.SHIPPED
        assert place.read(document) == document.body

    def test_threads_share_a_sink(self, sink: Sink, place: SinkPlace) -> None:
        def write(number: int) -> set[Outcome]:
            batches = [[make_document(f"{number}-{turn}-{each}") for each in range(3)] for turn in range(5)]
            return {answer.outcome for batch in batches for answer in sink.ship_batch(batch)}

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(write, range(4))) == [{Outcome.SHIPPED}] * 4
        for number in range(4):
            document = make_document(f"{number}-4-2")
            assert place.read(document) == document.body

    def test_two_writers_at_once_leave_the_newest(self, place: SinkPlace) -> None:
        """Each ships half of the states of every document, in batches and in its own order."""
        sinks = [place.open(), place.open()]
        names = ["a", "b", "c", "d"]
        states = 24

        def write(number: int) -> list[Outcome]:
            order = [(name, seq) for seq in range(1 + number, states + 1, 2) for name in names]
            random.Random(number).shuffle(order)
            batches = [order[start : start + 5] for start in range(0, len(order), 5)]
            outcomes: list[Outcome] = []
            for batch in batches:
                left = [make_document(name, seq) for name, seq in batch]
                for _ in range(20):
                    answers = sinks[number].ship_batch(left)
                    outcomes += [each.outcome for each in answers if each.is_done]
                    left = [each for each, answer in zip(left, answers, strict=True) if not answer.is_done]
                    if not left:
                        break
                assert not left
            return outcomes

        with ThreadPoolExecutor(2) as threads:
            outcomes = list(threads.map(write, range(2)))
        assert [len(each) for each in outcomes] == [states * 2, states * 2]
        if sinks[0].guards:
            newest = {"title": f"state {states}"}
            assert [place.read(make_document(name)) for name in names] == [newest] * 4
        for sink in sinks:
            sink.close()

    def _has_no_secret(self, text: str) -> None:
        assert not any(secret in text for secret in self.secrets)
