"""Texts that are filled in when a node runs, and what may not be written into a document."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from analemma.errors import Invalid, NotFound
from analemma.flows.naming import path_tokens
from analemma.flows.texts import environment_names, fill, fill_environment, fill_value, placeholders, secret_problem

STATE: dict[str, Any] = {"name": "Ada", "ticket": {"id": 7, "tags": ["a", "b"]}, "odd/name": True, "text": "{{name}}"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("Dear {{name}}", "Dear Ada"),
        ("{{ name }}{{/ticket/id}}", "Ada7"),
        ("{{/ticket/tags}}", '["a","b"]'),
        ("{{/ticket/tags/1}}", "b"),
        ("{{/odd~1name}}", "true"),
        ("{{text}}", "{{name}}"),
        (r"\{{name}}", "{{name}}"),
        ("{name} {} }}", "{name} {} }}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
    ],
)
def test_a_text_is_filled_from_the_state_once(text: str, filled: str) -> None:
    assert fill(text, STATE) == filled


def test_what_goes_into_an_address_is_encoded() -> None:
    assert fill("https://x/{{q}}", {"q": "a/b?c"}, lambda text: quote(text, safe="")) == "https://x/a%2Fb%3Fc"


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(NotFound, match="nothing at /ticket/title"):
        fill("{{/ticket/title}}", STATE)
    with pytest.raises(NotFound):
        fill_value(["{{missing}}"], STATE)


def test_a_placeholder_alone_keeps_its_type() -> None:
    made = fill_value({"id": "{{/ticket/id}}", "tags": ["{{/ticket/tags}}", "x{{name}}"], "n": 1.0}, STATE)
    assert made == {"id": 7, "tags": [["a", "b"], "xAda"], "n": 1.0}


@pytest.mark.parametrize("text", ["{{}}", "{{ }}", "{{a", "{{/}}", "{{a{b}}}"])
def test_a_placeholder_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        placeholders(text)


def test_variables_are_filled_from_the_environment() -> None:
    assert fill_environment("Bearer ${TOKEN} $${HOME} $5", {"TOKEN": "abc"}) == "Bearer abc ${HOME} $5"
    with pytest.raises(NotFound, match="TOKEN is not set"):
        fill_environment("${TOKEN}", {})


@pytest.mark.parametrize("text", ["${}", "${lower}", "${A-B}", "${A"])
def test_what_is_no_variable_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        environment_names(text)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("Authorization", "Bearer ${TOKEN}"),
        ("authorization", "${TOKEN}"),
        ("X-Api-Key", "${KEY}"),
        ("password", "{{password}}"),
        ("password", ""),
        ("max_tokens", "many"),
        ("tokenizer", "cl100k"),
        ("content", "the password is secret"),
    ],
)
def test_what_holds_no_secret_may_stand_in_a_document(key: str, text: str) -> None:
    assert secret_problem(key, text) is None


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("Authorization", "Bearer abcdef"),
        ("authorization", "${TOKEN} and more and more"),
        ("X-API-Key", "1234"),
        ("api_key", "k"),
        ("password", "hunter2"),
        ("password", "hunter2 "),
        ("access_token", "abc"),
        ("Cookie", "session=1"),
        ("content", "use sk-abcdefghijklmnopqrstuv please"),
        ("code", "AKIAABCDEFGHIJKLMNOP"),
        ("code", "-----BEGIN RSA PRIVATE KEY-----"),
    ],
)
def test_what_looks_like_a_secret_may_not(key: str, text: str) -> None:
    assert secret_problem(key, text) is not None


@pytest.mark.parametrize("path", ["", "/", "//a", "\x00", "a\nb", "x" * 257, "/~2"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        path_tokens(path)
