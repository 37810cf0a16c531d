"""Deploys by their commands: deploy, and deploys list, show, explain, retry, await."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.pipeline.tables import damaged
from tests.cli.command_line import CommandLine, at
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

CORRUPT = 6
BOOK = {"isbn": "978", "title": "Solaris", "price": 1200, "tags": ["sf"]}
VIEW = "view.book.detail.v1"


@pytest.fixture
def shop(store: Store, tmp_path: Path) -> CommandLine:
    line = at(store, tmp_path)
    line.variables["BOOKSHOP_OUT"] = str(tmp_path / "out")
    line.text("contracts", "load", str(EXAMPLE))
    return line


def deploy(line: CommandLine, *more: str, **fields: Any) -> Any:
    given = json.dumps({**BOOK, **fields})
    return line.answer("deploy", "BOOK", "978", "-", *more, given=given)["deploy"]


def served(line: CommandLine) -> str:
    title: str = json.loads(line.text("view", "get", VIEW, "978"))["CORE"]["title"]
    return title


def test_from_a_file_to_readers_and_a_sink(shop: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "book.json").write_text(json.dumps(BOOK))
    told = shop.text("deploy", "BOOK", "978", "book.json")
    fields = dict(line.split(maxsplit=1) for line in told.splitlines())
    assert (fields["state"], fields["entity"], fields["served"]) == ("SINKING", "BOOK 978", "yes")
    assert served(shop) == "Solaris"
    late = shop.run("deploys", "await", fields["deploy"], "--timeout", "0")
    assert late.returncode == 10 and "is SINKING after 0 s, and not done" in late.stderr
    assert "waits for an answer of sinkrule.file.book" in late.stderr
    ready = shop.answer("deploys", "await", fields["deploy"], "--until", "ready", "--timeout", "0")
    assert ready["deploy"]["state"] == "SINKING"
    shop.text("worker", "--drain")
    assert "DONE" in shop.text("deploys", "show", fields["deploy"])
    assert len((tmp_path / "out").joinpath("books-default.jsonl").read_text().splitlines()) == 1


def test_what_readers_get_before_and_after_a_cutover(shop: CommandLine) -> None:
    assert deploy(shop, "--no-ship")["state"] == "DONE"
    new = deploy(shop, "--cutover", "done", title="Solaris, revised")
    assert (new["state"], new["served"], served(shop)) == ("SINKING", False, "Solaris")
    shop.text("worker", "--drain")
    assert shop.answer("deploys", "await", new["id"])["deploy"]["served"] is True
    assert served(shop) == "Solaris, revised"


def test_a_deploy_explained(shop: CommandLine) -> None:
    deploy(shop, "--no-ship")
    new = deploy(shop, "--ship", "sinkrule.file.book", title="Fiasco")
    told = shop.text("deploys", "explain", new["id"]).splitlines()
    assert "slice CORE: written: /title" in told and "slice PRICE: unchanged" in told
    assert "sink sinkrule.file.book: WAITING, its slices changed (CORE)" in told
    assert "waits for  an answer of sinkrule.file.book" in told
    assert [line.split()[-1] for line in told[-4:]] == ["QUEUED", "RUNNING", "READY", "SINKING"]
    shop.text("worker", "--drain")
    found = shop.answer("deploys", "explain", new["id"])["explanation"]
    assert found["deploy"]["state"] == "DONE" and found["sinks"][0]["state"] == "ANSWERED"
    assert found["waits_for"] is None and found["steps"][-1]["state"] == "DONE"


def test_one_that_fails_says_why_and_can_be_retried(shop: CommandLine, store: Store) -> None:
    deploy(shop, "--no-ship")
    with damaged(store):
        done = shop.run("deploy", "BOOK", "978", "-", "--json", given=json.dumps({**BOOK, "title": "Bad"}))
        assert done.returncode == CORRUPT
        failed = json.loads(done.stdout)["deploy"]
        assert failed["state"] == "FAILED" and "hash" in failed["error"]["message"]
        told = shop.run("deploys", "list", "--state", "failed").stdout
        assert failed["id"] in told and "hash" in told
        assert shop.run("deploys", "show", failed["id"]).returncode == 0
        again = shop.answer("deploys", "retry", failed["id"])["deploy"]
        assert (again["state"], again["attempt"]) == ("QUEUED", 2)
        shop.text("worker", "--drain")
        assert shop.run("deploys", "await", failed["id"]).returncode == CORRUPT
    assert shop.error("conflict", "deploys", "retry", deploy(shop, "--no-ship", title="x")["id"]).startswith(
        "a deploy that is DONE does not become QUEUED"
    )


def test_a_document_that_no_rule_accounts_for_is_no_deploy(shop: CommandLine) -> None:
    done = shop.run("deploy", "BOOK", "978", "-", "--json", given=json.dumps({**BOOK, "weight": 7}))
    assert (done.returncode, done.stdout) == (2, "") and json.loads(done.stderr)["error"]["paths"] == ["/weight"]
    assert shop.answer("deploys", "list")["deploys"] == []


def test_lists_are_paged(shop: CommandLine) -> None:
    made = [deploy(shop, "--no-ship", title=f"{number}")["id"] for number in range(5)]
    found: list[str] = []
    more: list[str] = []
    for _ in range(3):
        page = shop.answer("deploys", "list", "--type", "BOOK", "--id", "978", "--limit", "2", *more)
        found += [each["id"] for each in page["deploys"]]
        more = ["--cursor", page["next_cursor"]] if page["next_cursor"] else []
    assert found == made[::-1] and not more
    assert "more: --cursor" in shop.text("deploys", "list", "--limit", "2")


def test_a_key_given_again_is_the_same_deploy(shop: CommandLine) -> None:
    first = deploy(shop, "--idempotency-key", "k", "--compile", "async")
    assert first["state"] == "QUEUED"
    assert deploy(shop, "--idempotency-key", "k", "--compile", "async") == first
    document = json.dumps({**BOOK, "title": "Other"})
    said = shop.error("conflict", "deploy", "BOOK", "978", "-", "--idempotency-key", "k", given=document)
    assert "'k' was used for another deploy" in said


def test_what_is_wrong_is_said(shop: CommandLine) -> None:
    document = json.dumps(BOOK)
    assert shop.error("not_found", "deploys", "show", "nope") == "there is no deploy 'nope'"
    assert shop.error("not_found", "deploys", "await", "0" * 32).startswith("there is no deploy")
    assert "sink.nope" in shop.error("not_found", "deploy", "BOOK", "978", "-", "--ship", "sink.nope", given=document)
    both = ("--ship", "sinkrule.file.book", "--no-ship")
    assert "contradict" in shop.error("invalid", "deploy", "BOOK", "978", "-", *both, given=document)
    assert "later" in shop.error("invalid", "deploy", "BOOK", "978", "-", "--compile", "later", given=document)
    assert "not JSON" in shop.error("invalid", "deploy", "BOOK", "978", "-", given="{")
    assert "cannot read" in shop.error("invalid", "deploy", "BOOK", "978", "nope.json")
    assert "isbn" in shop.error("invalid", "deploy", "BOOK", "978", "-", given="{}")
    assert "no state" in shop.error("invalid", "deploys", "list", "--state", "later")
    assert shop.answer("deploys", "list")["deploys"] == []


def test_waiting_for_what_another_process_does(shop: CommandLine) -> None:
    queued = deploy(shop, "--compile", "async")
    assert shop.process("worker", "--drain").returncode == 0
    assert shop.answer("deploys", "await", queued["id"], "--timeout", "20")["deploy"]["state"] == "DONE"
    waited = deploy(shop, "--no-ship", "--wait", title="At once")
    assert waited["state"] == "DONE"
