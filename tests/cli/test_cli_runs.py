"""The commands on runs: `analemma run`, `resume`, `approve`, `cancel`, `rerun`, `runs`, and a worker that goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.command_line import CODES, CommandLine, at
from tests.stores import Store

PROGRAM = "tests.cli.order_program"
DOCUMENT = """
workflow: order
nodes:
  - {id: add_up, type: python, function: order.add_up, reads: [prices], writes: [total]}
  - {id: approve, type: human, choices: ["yes", "no"], prompt: "Pay {{total}}?"}
  - {id: pay, type: python, function: order.pay, reads: [total, broken], writes: [paid]}
"""
UNSURE = "tests.cli.unsure_program"
ASKING = """
workflow: asking
nodes:
  - {id: ask, type: http_request, url: "URL", stub: {rate: 3}}
"""
PLACE = ("-o", "ann", "-w", "o-1")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    with store.open():
        pass
    (tmp_path / "order.yaml").write_text(DOCUMENT)
    return at(store, tmp_path)


def test_a_run_is_begun_approved_and_gone_on_with(here: CommandLine) -> None:
    shown = here.text("run", "order.yaml", "--module", PROGRAM, "--set", "prices=[1, 2]", *PLACE)
    assert "add_up: continue" in shown and "approve: paused" in shown and "Pay 3?" in shown
    (run,) = here.answer("runs", "--status", "WAITING_HUMAN")["runs"]
    assert run["waiting"]["choices"] == ["yes", "no"]
    execution = run["execution_id"]
    decided = here.answer("approve", execution, "yes", "--actor", "ann", "--payload", '{"note": 1}')
    assert (decided["status"], decided["segment_id"]) == ("RUNNING", "pay")
    assert here.run("approve", execution, "no", "--actor", "ann").returncode == 4
    done = here.answer("resume", execution, "--module", PROGRAM)
    assert done["status"] == "COMPLETED"
    assert [each["segment_id"] for each in done["segments"]] == ["add_up", "approve", "pay"]
    assert here.answer("load", *PLACE)["state"]["paid"] == 3
    assert "pay  complete" in here.text("runs", execution)
    assert f"{execution}  COMPLETED" in here.text("runs")


def test_a_run_that_fails_exits_with_the_code_of_its_error(here: CommandLine) -> None:
    failed = here.run("run", f"{PROGRAM}:flow", "--set", "prices=[1]", "--set", "broken=true", *PLACE)
    assert failed.returncode == 0, failed.stderr
    (run,) = here.answer("runs")["runs"]
    broken = here.run("approve", run["execution_id"], "yes", "--actor", "ann", "--module", PROGRAM)
    assert broken.returncode == 1 and "the till is closed" in broken.stdout
    missing = here.run("run", "order.yaml", "--set", "prices=[1]", "-o", "ann", "-w", "o-2")
    assert missing.returncode == 3 and "order.add_up" in missing.stdout


@pytest.mark.parametrize(
    ("told", "receipt", "charged"),
    [
        (("--unknown", "happened", "--result", '"as the bank says"'), "as the bank says", 1),
        (("--unknown", "did-not"), "paid now", 2),
    ],
    ids=["happened", "did-not"],
)
def test_a_run_that_nobody_knows_about_says_how_it_goes_on(
    here: CommandLine, told: tuple[str, ...], receipt: str, charged: int
) -> None:
    begun = here.run("run", f"{UNSURE}:flow", *PLACE)
    assert begun.returncode == 1 and "the bank did not answer" in begun.stdout
    execution = here.answer("runs")["runs"][0]["execution_id"]
    hint = f"analemma resume {execution} --unknown happened|did-not --module MODULE"
    assert hint in begun.stdout
    unsure = here.run("resume", execution, "--module", UNSURE)
    assert unsure.returncode == CODES["outcome_unknown"]
    assert hint in unsure.stdout
    # Nothing is settled where the program is not named.
    assert here.run("resume", execution, *told).returncode == CODES["not_found"]
    wrong = here.run("resume", execution, "--unknown", "did-not", "--result", "1")
    assert wrong.returncode == 2 and "--result" in wrong.stderr
    done = here.answer("resume", execution, "--module", UNSURE, *told)
    assert done["status"] == "COMPLETED" and here.answer("load", *PLACE)["state"]["receipt"] == receipt
    keys = (here.directory / "bank.txt").read_text().split()
    assert len(keys) == charged and len(set(keys)) == 1
    assert here.run("resume", execution, "--unknown", "happened").returncode == 4


def test_answers_come_from_a_file_from_stubs_or_from_an_earlier_run(here: CommandLine) -> None:
    with answering(b'{"rate": 7}') as server:
        url = f"http://127.0.0.1:{server.server_port}/rate"
        document = ASKING.replace("URL", url)
        (here.directory / "ask.yaml").write_text(document)
        asked = ("run", "ask.yaml", "-o", "ann", "-w")
        real = here.answer(*asked, "a-1", ANALEMMA_NODE_HOSTS="127.0.0.1")
    assert real["status"] == "COMPLETED"
    recorded = here.text("runs", real["execution_id"], "--recorded")
    (here.directory / "answers.json").write_text(recorded)
    assert json.loads(recorded) == {"ask": {"rate": 7}}
    assert here.run("runs", "--recorded").returncode == 2
    # Nobody is there to be asked any more.
    for number, (mock, rate) in enumerate((("answers.json", 7), ("stubs", 3), ("recorded", 7)), 2):
        here.answer(*asked, f"a-{number}", "--mock", mock)
        assert here.answer("load", "-o", "ann", "-w", f"a-{number}")["state"]["ask"] == {"rate": rate}
    (here.directory / "list.json").write_text("[]")
    assert here.run(*asked, "a-9", "--mock", "list.json").returncode == 2
    assert here.run(*asked, "a-9", "--mock", "nothing.json").returncode == 2
    assert here.error("invalid", *asked, "a-9", "--mock", "") == "--mock is empty"
    (here.directory / "strange.json").write_text('{"aks": 1}')
    assert "'aks', which is no node" in here.error("invalid", *asked, "a-9", "--mock", "strange.json")
    (here.directory / "bare.yaml").write_text(document.replace(", stub: {rate: 3}", "").replace("asking", "bare"))
    bare = ("run", "bare.yaml", "-o", "ann", "-w", "b-1", "--mock")
    assert 'or say --mock FILE, with {"NODE": answer} in it' in here.run(*bare, "stubs").stdout
    assert "without --mock, or say --mock FILE" in here.run(*bare, "recorded").stderr


@contextmanager
def answering(body: bytes) -> Iterator[HTTPServer]:
    """A host that gives the same answer to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_worker_goes_on_and_runs_are_cancelled_and_run_again(here: CommandLine) -> None:
    for workflow in ("o-1", "o-2"):
        begun = here.answer("run", f"{PROGRAM}:flow", "--no-wait", "--set", "prices=[4]", "-o", "ann", "-w", workflow)
        assert begun["status"] == "PENDING"
    assert "runs: went on 2 times" in here.text("worker", "--drain", "--module", PROGRAM)
    one, other = [run["execution_id"] for run in here.answer("runs")["runs"]]
    assert here.answer("cancel", one)["status"] == "CANCELLED"
    assert here.run("resume", one, "--module", PROGRAM).returncode == 0
    here.answer("approve", other, "no", "--actor", "ann", "--module", PROGRAM)
    forked = here.answer("rerun", other, "--from-segment", "approve", "--fork", "--branch", "try", "--module", PROGRAM)
    assert (forked["branch"], forked["status"]) == ("try", "WAITING_HUMAN")
    again = here.answer("rerun", other, "--from-segment", "2", "--module", PROGRAM)
    assert (again["incarnation"], again["status"]) == (2, "COMPLETED")
    assert here.run("rerun", other, "--branch", "x", "--from-segment", "0").returncode == 2
    assert here.run("rerun", other).returncode == 2
    assert here.run("runs", "nobody").returncode == 3
    assert here.run("run", "nothing_there:flow", *PLACE).returncode == 3


def test_a_node_that_fails_is_one_line_and_not_a_traceback(here: CommandLine) -> None:
    # In a process of its own: here, other threads of the tests may have something to log.
    failing = ("run", "order.yaml", "--module", PROGRAM, "-o", "ann", "-w")
    failed = here.process(*failing, "f-1", PYTHONPATH=str(ROOT))
    assert "because    add_up: KeyError: 'prices'" in failed.stdout
    (line,) = failed.stderr.splitlines()
    assert line.endswith("failed in segment add_up: KeyError: 'prices'")
    assert "Traceback" in here.process(*failing, "f-2", PYTHONPATH=str(ROOT), ANALEMMA_DEBUG="1").stderr


def test_a_run_that_is_not_there_is_looked_for_in_the_list(here: CommandLine) -> None:
    assert "hint: analemma runs lists them" in here.run("runs", "nope").stderr


def test_a_store_that_is_not_there_is_made_with_an_option(tmp_path: Path) -> None:
    assert "hint: run `analemma init -u`" in CommandLine(tmp_path, {}).run("runs", "-u", "./store").stderr
