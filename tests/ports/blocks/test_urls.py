"""Opening a store by its URL: each form works, mistakes are explained, secrets never show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import AnalemmaError, Invalid, Unavailable
from tests.ports.entry_points.objects import LocalStore, MemoryStore, open_objects

SECRET = "hunter2hunter2"


def test_a_path_or_a_file_url_is_a_local_store(tmp_path: Path) -> None:
    plain = open_objects(str(tmp_path / "with space"))
    url = open_objects(f"file://{tmp_path}/with%20space")
    assert isinstance(plain, LocalStore) and isinstance(url, LocalStore)
    plain.put("k/x", b"data")
    assert url.get("k/x") == b"data"
    plain.close()
    url.close()


def test_memory_is_fresh_each_time() -> None:
    first, second = open_objects("memory://"), open_objects("memory://")
    assert isinstance(first, MemoryStore)
    first.put("k", b"x")
    assert second.head("k") is None


CLOUDS = [
    (
        f"s3://bucket/a/prefix?region=eu-west-1&access_key_id=A&secret_access_key={SECRET}",
        "s3://bucket/a/prefix",
        True,
    ),
    ("s3://bucket?region=us-east-1&skip_signature=true", "s3://bucket", True),
    ("gs://bucket/prefix/?skip_signature=true", "gs://bucket/prefix", False),
    (f"az://container/p?account_name=acc&account_key={'c2VjcmV0' * 4}", "az://container/p", True),
]


def test_cloud_urls_open_without_a_request_and_show_no_secret() -> None:
    for url, place, tags in CLOUDS:
        store: Any = open_objects(url)
        assert place in repr(store) and SECRET not in repr(store) and "?" not in repr(store)
        assert store.supports_tags is tags
        store.close()


HOSTILE = [
    "",
    "ftp://host/x",
    "file://relative/path",
    "file:///abs?query=1",
    "s3://",
    "/some\0where",
    "file:///some%00where",
    f"s3://[bucket?secret_access_key={SECRET}",
    f"s3://key:{SECRET}@bucket/prefix",
    f"s3://bucket/a/../b?secret_access_key={SECRET}",
    f"s3://bucket?secret_access_key={SECRET}&no_such_setting={SECRET}",
    f"s3://bucket?endpoint=http://127.0.0.1:1&secret_access_key={SECRET}",
    f"s3://bucket?timeout_s={SECRET}",
    f"s3://bucket?skip_signature={SECRET}",
    f"gs://bucket?service_account_key={SECRET}",
    f"az://container?account_name=a&account_key={SECRET}!!",
]


def test_a_url_that_cannot_work_is_invalid_in_one_line_without_its_secrets() -> None:
    taken = []
    for url in HOSTILE:
        try:
            open_objects(url)
            taken.append(url)
        except Invalid as exc:
            assert_clean(exc)
    assert taken == []


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(Unavailable, match=r"pip install 'analemma\[s3\]'") as caught:
        open_objects(f"s3://bucket?secret_access_key={SECRET}")
    assert_clean(caught.value)


def test_opening_an_embedded_store_does_not_load_the_cloud_library() -> None:
    code = "import sys, analemma; analemma.open('sqlite:///:memory:').close(); print('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def assert_clean(error: AnalemmaError) -> None:
    chain: BaseException | None = error
    while chain is not None:
        assert SECRET not in str(chain) and SECRET not in repr(chain)
        chain = chain.__cause__
    assert "\n" not in str(error)
