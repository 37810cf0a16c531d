"""Every object store passes the same suite: plain, and behind the wrappers."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from analemma.errors import AnalemmaError, Conflict, Denied, OutcomeUnknown, Unavailable
from analemma.testing.objects import METADATA, FailingStore, ObjectStoreSuite
from tests.ports.entry_points.objects import (
    Hardened,
    LocalStore,
    MemoryStore,
    ObjectInfo,
    ObjectMetrics,
    ObjectStore,
    check_key,
    check_prefix,
    is_transient,
    open_objects,
)
from tests.s3_server import SECRET_KEY, CannotStart, S3Server, free_ports, run_directory, shared_s3


@pytest.mark.deep("a store for tests, which all of them try")
class TestMemory(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        store = MemoryStore()
        yield store
        store.close()


class TestLocal(ObjectStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        store = LocalStore(tmp_path / "objects")
        yield store
        store.close()


@pytest.mark.deep("the wrappers have tests of their own, and stand before every store that is opened")
class TestWrapped(ObjectStoreSuite):
    """The wrappers change nothing when nothing fails."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        store = Hardened(FailingStore(LocalStore(tmp_path / "objects")), ObjectMetrics())
        yield store
        store.close()


class FolderStore:
    """A store that has all methods of its own, as all had to before: it keeps everything below a folder of another."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.store = store
        self.folder = check_key(folder)

    def put(self, key: str, data: bytes, *, metadata: Any = None, if_absent: bool = False) -> None:
        self.store.put(self.inner(key), data, metadata=metadata, if_absent=if_absent)

    def put_stream(self, key: str, chunks: Iterable[bytes], *, metadata: Any = None) -> None:
        self.store.put_stream(self.inner(key), chunks, metadata=metadata)

    def replace(self, key: str, data: bytes, *, expected: bytes) -> None:
        self.store.replace(self.inner(key), data, expected=expected)

    def get(self, key: str) -> bytes:
        return self.store.get(self.inner(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.store.get_range(self.inner(key), offset, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self.store.get_ranges(self.inner(key), ranges)

    def open_read(self, key: str) -> Iterator[bytes]:
        return self.store.open_read(self.inner(key))

    def head(self, key: str) -> ObjectInfo | None:
        info = self.store.head(self.inner(key))
        return None if info is None else self.outer(info)

    def delete(self, key: str) -> None:
        self.store.delete(self.inner(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        self.store.delete_many([self.inner(key) for key in keys])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        for info in self.store.list(f"{self.folder}/{folder}" if folder else self.folder):
            yield self.outer(info)

    def tag(self, key: str, tags: Any) -> None:
        self.store.tag(self.inner(key), tags)

    def health(self) -> None:
        self.store.health()

    def close(self) -> None:
        self.store.close()

    def inner(self, key: str) -> str:
        return f"{self.folder}/{check_key(key)}"

    def outer(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key.removeprefix(f"{self.folder}/"), info.size, info.modified_us, info.metadata)


@pytest.mark.deep("stores of other people, which none of ours is like")
class TestAllMethodsOfItsOwn(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[FolderStore]:
        store = FolderStore(MemoryStore(), "below/here")
        yield store
        store.close()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with shared_s3(run_directory(tmp_path_factory.getbasetemp())) as server:
            yield server
    except CannotStart as exc:
        pytest.skip(str(exc))


class TestS3(ObjectStoreSuite):
    @pytest.fixture
    def store(self, s3_server: S3Server) -> Iterator[ObjectStore]:
        store = open_objects(s3_server.url())
        yield store
        store.close()

    def test_a_bucket_that_is_not_there_is_unavailable(self, s3_server: S3Server) -> None:
        store = open_objects(s3_server.url(bucket="nobody-made-this"))
        for operation in (
            lambda: store.get("k/x"),
            lambda: store.put("k/x", b"x"),
            lambda: store.put("k/x", b"x", if_absent=True),
            lambda: list(store.list("k")),
            store.health,
        ):
            with pytest.raises(Unavailable, match="no such bucket") as caught:
                operation()
            assert_one_clean_line(caught.value)

    def test_bad_credentials_are_denied(self, s3_server: S3Server) -> None:
        operations: list[Callable[[ObjectStore], object]] = [
            lambda store: store.get("k/x"),
            lambda store: store.put("k/x", b"x", if_absent=True),
            lambda store: store.put_stream("k/x", [b"x"]),
            lambda store: list(store.list("k")),
            lambda store: list(store.list()),
            lambda store: store.delete("k/x"),
            lambda store: store.health(),
        ]
        for wrong in ("secret_access_key", "access_key_id"):
            store = open_objects(s3_server.url(**{wrong: "WRONGWRONGWRONG"}))
            for operation in operations:
                with pytest.raises(Denied) as caught:
                    operation(store)
                assert_one_clean_line(caught.value)

    def test_an_endpoint_that_does_not_answer_is_a_transient_failure(self, s3_server: S3Server) -> None:
        store = open_objects(s3_server.url(endpoint=f"http://127.0.0.1:{free_ports(1)[0]}"))
        for operation in (lambda: store.get("k/x"), lambda: store.put("k/x", b"x"), store.health):
            with pytest.raises(Unavailable) as caught:
                operation()
            assert caught.value.facts["transient"] is True
            assert caught.value.kind == "unavailable"  # Nothing was sent, so nothing is in doubt.
            assert_one_clean_line(caught.value)

    def test_tags_reach_the_object_and_its_metadata_stays(self, s3_server: S3Server) -> None:
        store: Any = open_objects(s3_server.url("tagged"))
        assert store.supports_tags
        store.put("k/x", b"data", metadata=METADATA)
        store.tag("k/x", {"status": "orphan"})
        with urllib.request.urlopen(f"{s3_server.filer}/buckets/analemma/tagged/k/x?metadata=true") as answer:
            assert b'"X-Amz-Tagging-status"' in answer.read()
        info = store.head("k/x")
        assert info is not None and info.metadata == METADATA

    def test_two_prefixes_of_one_bucket_do_not_see_each_other(self, s3_server: S3Server) -> None:
        one, other = open_objects(s3_server.url("left")), open_objects(s3_server.url("left-right"))
        one.put("k/x", b"one")
        assert other.head("k/x") is None
        assert [info.key for info in other.list()] == []
        assert [info.key for info in one.list()] == ["k/x"]

    def test_more_than_one_page_is_listed_and_deleted(self, s3_server: S3Server) -> None:
        store = open_objects(s3_server.url())
        keys = [f"many/{number % 7}/{number:04}" for number in range(1100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), keys))
        assert [info.key for info in store.list("many")] == sorted(keys)
        store.delete_many(keys)
        assert list(store.list("many")) == []


class LossyProxy:
    """Stands before the server and hangs up on chosen writes, before passing on the request or the answer."""

    def __init__(self, target: str, losses: list[str]) -> None:
        self._target = ("127.0.0.1", int(target.rsplit(":", 1)[1]))
        self._losses = losses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self._threads.append(threading.Thread(target=self._relay, args=(client, server)))
                self._threads[-1].start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        """One connection; each request is read whole, so that the loss falls where it should."""
        with client, server, contextlib.suppress(OSError):
            while request := read_message(client):
                loss = self._losses.pop(0) if self._losses and request.startswith(b"PUT") else "none"
                if loss == "request":
                    return
                server.sendall(request)
                answer = read_message(server, head_only=request.startswith(b"HEAD"))
                if loss == "answer":
                    return
                client.sendall(answer)


def read_message(source: socket.socket, *, head_only: bool = False) -> bytes:
    message = b""
    while b"\r\n\r\n" not in message:
        piece = source.recv(65536)
        if not piece:
            return b""
        message += piece
    head, _, body = message.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    while not head_only and length and len(body) < int(length[1]):
        body += source.recv(65536)
    return head + b"\r\n\r\n" + body


class TestLostAnswers:
    """What the network can do to a conditional put, on a real connection to a real server."""

    @pytest.fixture
    def losses(self) -> list[str]:
        return []

    @pytest.fixture
    def stores(self, s3_server: S3Server, losses: list[str]) -> Iterator[tuple[ObjectStore, ObjectStore]]:
        """One behind the proxy, and one that sees what is really there."""
        proxy = LossyProxy(s3_server.endpoint, losses)
        prefix = uuid4().hex
        direct = open_objects(s3_server.url(prefix))
        yield open_objects(s3_server.url(prefix, endpoint=proxy.endpoint)), direct
        proxy.close()

    @pytest.mark.parametrize(("loss", "happened"), [("request", False), ("answer", True)])
    def test_the_outcome_is_reported_as_unknown(
        self, stores: tuple[ObjectStore, ObjectStore], losses: list[str], loss: str, happened: bool
    ) -> None:
        proxied, direct = stores
        losses.append(loss)
        with pytest.raises(OutcomeUnknown) as caught:
            proxied.put("k/x", b"mine", if_absent=True)
        assert is_transient(caught.value)
        assert (direct.head("k/x") is not None) is happened

    @pytest.mark.parametrize("lost", [["request"], ["answer"], ["answer", "answer"], ["request", "answer"]], ids=str)
    def test_a_retried_put_finds_its_own_write(
        self, stores: tuple[ObjectStore, ObjectStore], losses: list[str], lost: list[str]
    ) -> None:
        proxied, direct = stores
        losses.extend(lost)
        Hardened(proxied, first_wait_s=0.01).put("k/x", b"mine", if_absent=True)
        assert losses == [] and direct.get("k/x") == b"mine"

    def test_a_retried_put_still_sees_that_someone_else_was_first(
        self, stores: tuple[ObjectStore, ObjectStore], losses: list[str]
    ) -> None:
        proxied, direct = stores
        direct.put("k/x", b"them")
        losses.append("answer")
        with pytest.raises(Conflict):
            Hardened(proxied, first_wait_s=0.01).put("k/x", b"mine", if_absent=True)
        assert direct.get("k/x") == b"them"


def assert_one_clean_line(error: AnalemmaError) -> None:
    text = f"{error} {error!r}"
    assert "\n" not in text and SECRET_KEY not in text and "WRONG" not in text
    assert error.hint
