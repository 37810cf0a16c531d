"""A local put is durable when it returns: shown by the system calls it makes, and in which order."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys
from tests.ports.entry_points.objects import LocalStore
store = LocalStore(sys.argv[1])
os.write(2, b"before")
{call}
os.write(2, b"returned")
"""

CALLS = {
    "put": "store.put('packs/ab/abcd', b'data' * 1000, metadata={'usage': 'temp'})",
    "put_if_absent": "store.put('packs/ab/abcd', b'data' * 1000, if_absent=True)",
    "put_stream": "store.put_stream('packs/ab/abcd', [b'data' * 1000] * 3)",
}


def traced(tmp_path: Path, call: str) -> list[str]:
    """The system calls between "before" and "returned", with descriptors shown as paths."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    log = tmp_path / "strace.log"
    names = "write,fsync,fdatasync,linkat,renameat,renameat2,rename,link,mkdirat,unlinkat,fsetxattr,rmdir"
    program = [sys.executable, "-c", SCRIPT.format(call=call), str(tmp_path / "objects")]
    run = subprocess.run(
        [strace, "-f", "-y", "-o", str(log), "-e", f"trace={names}", *program],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if "ptrace" in run.stderr.lower():
        pytest.skip(f"strace may not trace here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    lines = [re.sub(r"^\d+\s+", "", line) for line in log.read_text().splitlines()]
    first = next(index for index, line in enumerate(lines) if '"before"' in line)
    last = next(index for index, line in enumerate(lines) if '"returned"' in line)
    return lines[first + 1 : last]


def position(lines: list[str], pattern: str) -> int:
    found = [index for index, line in enumerate(lines) if re.search(pattern, line)]
    assert found, f"{pattern} is not among\n" + "\n".join(lines)
    return found[-1]


@pytest.mark.parametrize("call", CALLS)
def test_bytes_are_flushed_before_the_name_appears_and_the_name_before_put_returns(tmp_path: Path, call: str) -> None:
    lines = traced(tmp_path, CALLS[call])
    root = re.escape(str(tmp_path / "objects"))
    written = position(lines, rf"write\(\d+<{root}/\.tmp/")
    flushed = position(lines, rf"fsync\(\d+<{root}/\.tmp/[^>]+>\)\s+= 0")
    named = position(lines, r"^(linkat|rename|renameat2?)\(.*= 0")
    folders = [position(lines, rf"fsync\(\d+<{root}{name}>\)\s+= 0") for name in ("/packs/ab", "/packs", "")]
    assert written < flushed < named < folders[0] < folders[1] < folders[2]


@pytest.mark.deep("it takes a second to trace a program")
def test_metadata_is_on_the_file_before_it_is_flushed(tmp_path: Path) -> None:
    lines = traced(tmp_path, CALLS["put"])
    assert position(lines, "fsetxattr") < position(lines, r"fsync\(\d+<[^>]*/\.tmp/")


@pytest.mark.deep("it takes a second to trace a program")
def test_a_folder_that_was_removed_and_made_again_is_flushed_with_its_own_name(tmp_path: Path) -> None:
    lines = traced(
        tmp_path,
        "store.put('a/b/x', b'1'); LocalStore(sys.argv[1]).delete('a/b/x'); "
        "os.write(2, b'gone'); store.put('a/b/y', b'2')",
    )
    root = re.escape(str(tmp_path / "objects"))
    gone = position(lines, '"gone"')
    named = position(lines, r"^(rename|renameat2?)\(.*= 0")
    for name in ("/a/b", "/a", ""):
        assert gone < named < position(lines, rf"fsync\(\d+<{root}{name}>\)\s+= 0")


@pytest.mark.deep("it takes a second to trace a program")
def test_a_second_object_in_a_folder_costs_two_flushes(tmp_path: Path) -> None:
    lines = traced(tmp_path, "store.put('a/b/x', b'1'); os.write(2, b'second'); store.put('a/b/y', b'2')")
    assert len([line for line in lines[position(lines, '"second"') :] if line.startswith("fsync")]) == 2


@pytest.mark.deep("it takes a second to trace a program")
def test_losing_the_race_also_waits_until_the_winners_name_is_durable(tmp_path: Path) -> None:
    lines = traced(tmp_path, "store.put('k/x', b'same', if_absent=True); store.put('k/x', b'same', if_absent=True)")
    refused = position(lines, r"^linkat\(.*EEXIST")
    assert refused < position(lines, r"fsync\(\d+<[^>]*/k>\)\s+= 0")


def test_a_delete_is_flushed_before_it_returns(tmp_path: Path) -> None:
    lines = traced(tmp_path, "store.put('k/x', b'data'); store.put('k/y', b'data'); store.delete('k/x')")
    assert position(lines, r"unlinkat\(\d+<[^>]*/k>, \"x\"") < position(lines, r"fsync\(\d+<[^>]*/k>\)\s+= 0")


@pytest.mark.deep("it takes a second to trace a program")
def test_a_new_root_is_durable_too(tmp_path: Path) -> None:
    lines = traced(tmp_path, "LocalStore(sys.argv[1] + '/new/deeper')")
    assert position(lines, rf"fsync\(\d+<{re.escape(str(tmp_path / 'objects' / 'new'))}>\)\s+= 0") >= 0
