"""Where settings come from, what they refuse, and that the reference page says the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analemma import Settings
from analemma.errors import Invalid
from tests.docs.pages import DOCS, table_rows

CONFIG_VARIABLE = "ANALEMMA_CONFIG"


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("ANALEMMA_")]:
        monkeypatch.delenv(variable)
    return tmp_path


def test_arguments_beat_variables_beat_the_file_beat_defaults(
    empty_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_directory / "analemma.toml").write_text('tenant = "file"\nredis_ttl_s = 7\nobject_retries = 5\n')
    monkeypatch.setenv("ANALEMMA_TENANT", "variable")
    monkeypatch.setenv("ANALEMMA_REDIS_TTL_S", "8")
    settings = Settings(tenant="argument")
    assert (settings.tenant, settings.redis_ttl_s, settings.object_retries) == ("argument", 8, 5)
    assert settings.postgres_pool_max == 8


def test_the_file_can_be_named(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_directory / "analemma.toml").write_text('tenant = "here"\n')
    (empty_directory / "other.toml").write_text('tenant = "there"\nsqlite_synchronous = "NORMAL"\n')
    monkeypatch.setenv(CONFIG_VARIABLE, "other.toml")
    assert (Settings().tenant, Settings().sqlite_synchronous) == ("there", "NORMAL")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANALEMMA_URL", "")
    monkeypatch.setenv("ANALEMMA_REDIS_TTL_S", "")
    assert (Settings().url, Settings().redis_ttl_s) == (None, 300)


def test_a_bad_variable_is_named_with_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value, expected in (
        ("ANALEMMA_POSTGRES_POOL_MAX", "many", "an integer from 1 to 1000, got 'many'"),
        ("ANALEMMA_POSTGRES_POOL_MAX", "0", "an integer from 1 to 1000, got '0'"),
        ("ANALEMMA_STATEMENT_TIMEOUT_S", "nan", "a number from 0.1 to 86400, got 'nan'"),
        ("ANALEMMA_STATEMENT_TIMEOUT_S", "1e9", "a number from 0.1 to 86400, got '1e9'"),
        ("ANALEMMA_AUTO_MIGRATE", "maybe", "true or false, got 'maybe'"),
        ("ANALEMMA_SQLITE_SYNCHRONOUS", "OFF", "FULL or NORMAL, got 'OFF'"),
        ("ANALEMMA_TENANT", "x" * 300, "text of 1 to 64 characters, got '" + "x" * 79),
    ):
        monkeypatch.setenv(variable, value)
        with pytest.raises(Invalid) as refused:
            Settings()
        assert str(refused.value) == f"{variable}: expected {expected}"
        monkeypatch.delenv(variable)


def test_a_bad_key_of_the_file_is_named_with_the_file(empty_directory: Path) -> None:
    (empty_directory / "analemma.toml").write_text("cache_bytes = [1]\n")
    with pytest.raises(Invalid, match=r"^cache_bytes in analemma\.toml: expected an integer from 0 to \d+, got \[1\]$"):
        Settings()


def test_an_unknown_key_of_the_file_is_refused(empty_directory: Path) -> None:
    (empty_directory / "analemma.toml").write_text('tennant = "a"\n')
    with pytest.raises(Invalid) as refused:
        Settings()
    assert refused.value.message == "tennant in analemma.toml: there is no such setting"
    assert refused.value.hint == "did you mean tenant?"


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(Invalid, match="setting colour: there is no such setting"):
        Settings(colour="red")


def test_a_file_that_is_not_toml_is_refused_in_one_line(empty_directory: Path) -> None:
    for content in (b"tenant = ", b"\xff\xfe", b"a = 1\na = 2\n"):
        (empty_directory / "analemma.toml").write_bytes(content)
        with pytest.raises(Invalid, match=r"^analemma\.toml is not TOML: ") as refused:
            Settings()
        assert "\n" not in str(refused.value)


def test_a_named_file_has_to_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, "missing.toml")
    with pytest.raises(Invalid, match=r"cannot read missing\.toml: No such file"):
        Settings()


def test_passwords_show_neither_in_the_repr_nor_in_refusals() -> None:
    for name in ("url", "objects", "redis_url"):
        settings = Settings(**{name: "postgresql://ann:hunter2@db:5432/shop?sslmode=require"})
        assert "hunter2" not in repr(settings) + str(settings)
        assert "postgresql://ann:***@db:5432/shop?sslmode=require" in repr(settings)
        with pytest.raises(Invalid) as refused:
            Settings(**{name: "redis://:hunter2@db/" + "x" * 5000})
        assert "hunter2" not in str(refused.value)


def test_urls_are_shown_without_secrets() -> None:
    shown = {
        "/var/lib/analemma": "/var/lib/analemma",
        "sqlite:///a/b.db": "sqlite:///a/b.db",
        "redis://:pass@host:1/0": "redis://:***@host:1/0",
        "postgresql://ann:p@ss:word@host/db": "postgresql://ann:***@host/db",
        "s3://bucket/a?access_key_id=AK&secret_access_key=S&region=eu": (
            "s3://bucket/a?access_key_id=***&secret_access_key=***&region=eu"
        ),
        "az://box/p?sas_token=x": "az://box/p?sas_token=***",
        "postgresql://ann:p/s?s#@host/db": "postgresql://ann:***@host/db",
        "s3://bucket/a@b:c": "s3://bucket/a@b:c",
    }
    assert [url for url, expected in shown.items() if f"url='{expected}'" not in repr(Settings(url=url))] == []


def test_settings_do_not_change() -> None:
    settings: Any = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.tenant = "other"


def test_every_setting_is_on_the_page_with_a_description_and_bounds() -> None:
    rows = table_rows(DOCS / "reference" / "settings.md", first_heading="name")
    assert [row[0] for row in rows] == [*vars(Settings())]
    assert [row[0] for row in rows if not all(row[1:])] == []


def test_importing_the_package_does_not_import_pydantic() -> None:
    code = "import sys, analemma; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
