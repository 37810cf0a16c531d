"""What others wrote is shown, and commands nothing: names, messages and states at a terminal and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine

EVIL = "a\x1b[2Jb\x07\nc\x9b\u202ed"
SHOWN = r"a\x1b[2Jb\x07\nc\x9b\u202ed"


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path, {"ANALEMMA_URL": str(tmp_path / "store"), "ANALEMMA_OWNER": "ann"})
    line.text("init")
    return line


def test_names_and_messages_cannot_steer_a_terminal(here: CommandLine) -> None:
    here.text("save", "-w", EVIL, "--set", "n=1", "-m", EVIL)
    here.text("tag", "-w", EVIL, "first", "1", "-m", EVIL)
    here.text("pin", "-w", EVIL, "1", "--reason", EVIL)
    here.text("workflow", "set", "-w", EVIL, "--name", EVIL)
    shown = [
        here.text("log", "-w", EVIL),
        here.text("show", "-w", EVIL, "1"),
        here.text("blame", "-w", EVIL, "n"),
        here.text("tag", "-w", EVIL),
        here.text("pin", "-w", EVIL),
        here.text("workflow", "list"),
        here.text("workflow", "show", "-w", EVIL),
        here.run("load", "-w", f"{EVIL}{EVIL}").stderr,
    ]
    for text in shown:
        assert not set(text) & set("\x1b\x07\x9b\u202e")
    assert all(SHOWN in text for text in shown[:-1])
    assert [len(text.splitlines()) for text in (shown[0], shown[3], shown[4], shown[5])] == [1, 1, 1, 1]


def test_paths_and_values_cannot_steer_a_terminal(here: CommandLine) -> None:
    here.save("n=1")
    here.save(f"{EVIL}={json.dumps(EVIL)}")
    difference = here.text("diff", "-w", "trip", "1", "2")
    assert len(difference.splitlines()) == 1 and not set(difference) & set("\x1b\x07\x9b\u202e")
    loaded = here.text("load", "-w", "trip")
    assert not set(loaded) & set("\x1b\x07\x9b\u202e")
    assert json.loads(loaded) == {"n": 1, EVIL: EVIL}


def test_json_is_in_the_letters_of_its_language(here: CommandLine) -> None:
    here.text("save", "-w", "trip", "--set", 'city="서울 😀"', "-m", "서울")
    assert "서울 😀" in here.text("load", "-w", "trip")
    assert '"message": "서울"' in here.text("log", "-w", "trip", "--json")


def test_an_output_without_these_letters_still_gets_json(here: CommandLine) -> None:
    here.save('city="서울 é 😀"')
    done = here.process("load", "-w", "trip", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.stdout.isascii() and json.loads(done.stdout) == {"city": "서울 é 😀"}
