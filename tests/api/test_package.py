"""What people meet first: the names of the package, its help, and an open store at a prompt."""

from __future__ import annotations

import pydoc
import subprocess
import sys

import analemma


def test_completion_and_help_find_what_nobody_has_used_yet() -> None:
    assert {*analemma.__all__, "aio"} <= set(dir(analemma))
    shown = pydoc.plain(pydoc.render_doc(analemma))
    assert all(name in shown for name in ("open = open_app", "class Store", "class Flow", "save_state_delta"))


def test_submodules_that_the_documentation_names_need_no_import_of_their_own() -> None:
    program = "import analemma; print(analemma.errors.HeadMoved.__name__, analemma.aio.open.__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "HeadMoved analemma.aio\n"


def test_an_open_store_says_which_it_is() -> None:
    with analemma.open("sqlite:///:memory:", settings=analemma.Settings(tenant="shop")) as app:
        assert repr(app) == "<analemma.Store on sqlite:///:memory:, tenant shop>"
