"""The commands on schedules and queues, and a worker that sees to both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, at
from tests.raw_rows import change
from tests.stores import Store

PROGRAM = "tests.cli.order_program"
DOCUMENT = """
workflow: order
nodes:
  - {id: add_up, type: python, function: order.add_up, reads: [prices], writes: [total]}
"""
OWN = """
workflow: own
nodes:
  - {id: nightly, type: trigger, on: schedule, cron: "0 3 * * *", zone: Europe/Berlin}
"""


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    with store.open():
        pass
    (tmp_path / "order.yaml").write_text(DOCUMENT)
    (tmp_path / "own.yaml").write_text(OWN)
    return at(store, tmp_path)


def test_a_schedule_is_added_shown_paused_resumed_run_and_removed(here: CommandLine) -> None:
    add = ("schedule", "add", "nightly", "order.yaml", "-o", "ann", "--set", "prices=[1, 2]")
    shown = here.text(*add, "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--queue", "slow", "--priority", "3")
    assert "30 2 * * * Europe/Berlin" in shown and "ann/nightly" in shown
    assert here.run(*add, "--every", "60").returncode == 4
    replaced = here.answer(*add, "--every", "60", "--replace", "--queue", "slow", "--catch-up", "all", "--limit", "5")
    assert (replaced["every_s"], replaced["catch_up"], replaced["limit"], replaced["queue"]) == (60.0, "all", 5, "slow")
    (listed,) = here.answer("schedule", "list")["schedules"]
    assert listed["name"] == "nightly" and listed["input"] == {"prices": [1, 2]}
    assert "every 60 s" in here.text("schedule", "list")
    assert "paused" in here.text("schedule", "pause", "nightly")
    assert here.answer("schedule", "show", "nightly")["paused"] is True
    assert here.answer("schedule", "resume", "nightly")["next_at"] is not None
    run = here.answer("schedule", "run-now", "nightly")
    assert (run["status"], run["queue"]) == ("PENDING", "slow")
    here.run("worker", "--drain", "--module", PROGRAM)
    assert here.answer("runs", run["execution_id"])["status"] == "COMPLETED"
    assert here.answer("load", "-o", "ann", "-w", "nightly")["state"]["total"] == 3
    assert "removed" in here.text("schedule", "remove", "nightly")
    assert here.run("schedule", "show", "nightly").returncode == 3
    assert here.answer("schedule", "list") == {"schedules": []}


def test_a_worker_begins_what_is_due_also_without_a_program(here: CommandLine, store: Store) -> None:
    here.answer("schedule", "add", "often", "order.yaml", "-o", "ann", "--every", "3600", "--set", "prices=[4]")
    assert change(store, "UPDATE schedule SET next_at = next_at - 3600000000, look_at = look_at - 3600000000") == 1
    assert "schedules: began 1 runs" in here.text("worker", "--drain")
    (run,) = here.answer("runs")["runs"]
    assert run["status"] == "PENDING" and run["idempotency_key"].startswith("schedule/often/20")
    assert "schedules" not in here.text("worker", "--drain", "--module", PROGRAM)
    assert here.answer("load", "-o", "ann", "-w", "often")["state"]["total"] == 4


def test_a_documents_own_trigger_is_enough(here: CommandLine) -> None:
    added = here.answer("schedule", "add", "own", "own.yaml", "-o", "ann")
    assert (added["cron"], added["zone"]) == ("0 3 * * *", "Europe/Berlin")
    assert here.run("schedule", "add", "other", "order.yaml", "-o", "ann").returncode == 2


def test_queues_are_set_listed_used_and_removed(here: CommandLine) -> None:
    assert here.answer("queue", "list") == {"queues": []}
    assert "2 at a time, 10 per 60 s" in here.text(
        "queue", "set", "mail", "--concurrency", "2", "--rate", "10", "--per", "60"
    )
    started = ("run", "order.yaml", "-o", "ann", "-w", "o-1", "--set", "prices=[1]", "--queue", "mail")
    assert here.run(*started).returncode == 2
    run = here.answer(*started, "--no-wait", "--priority", "7")
    assert (run["status"], run["queue"], run["priority"]) == ("PENDING", "mail", 7)
    (queue,) = here.answer("queue", "list")["queues"]
    assert (queue["name"], queue["waiting"], queue["working"]) == ("mail", 1, 0)
    assert "1 waiting" in here.text("queue", "list")
    assert here.run("queue", "set", "mail", "--rate", "10").returncode == 2
    assert here.answer("queue", "set", "mail", "--concurrency", "3")["rate"] is None
    here.run("worker", "--drain", "--module", PROGRAM)
    assert here.answer("runs", run["execution_id"])["status"] == "COMPLETED"
    assert "no limits" in here.text("queue", "remove", "mail")
    assert here.run("queue", "remove", "mail").returncode == 3


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((), "a schedule has either --cron or --every", "--cron '0 9 * * MON-FRI', or --every 3600"),
        (("--every", "5", "--zone", "Mars/X"), "--zone is of --cron, and --every has none", "leave out --zone"),
        (("--every", "5", "-w", "x-{tock}"), "nothing is put in the place of {tock}", "there is {tick}"),
    ],
    ids=["neither", "zone of an interval", "placeholder"],
)
def test_schedules_that_make_no_sense_are_refused_in_words_of_the_command_line(
    here: CommandLine, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    done = here.run("schedule", "add", "odd", "order.yaml", "-o", "ann", "--set", "prices=[1]", *arguments)
    assert done.returncode == 2 and f"error: {message}" in done.stderr and f"hint: {hint}" in done.stderr
    assert here.answer("schedule", "list") == {"schedules": []}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("schedule", "show", "nope"), "analemma schedule list has"),
        (("queue", "remove", "nope"), "analemma queue list has"),
        (("queue", "set", "mail", "--rate", "3"), "--rate 10 --per 60"),
    ],
    ids=["schedule", "queue", "rate"],
)
def test_errors_say_what_to_type_next(here: CommandLine, arguments: tuple[str, ...], hint: str) -> None:
    assert f"hint: {hint}" in here.run(*arguments).stderr
