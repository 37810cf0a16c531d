"""An upload killed at any point leaves no object or a whole one, and never an object without its intent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analemma.blocks.local import LocalStore
from analemma.blocks.packs import pack_key, verify_pack
from analemma.blocks.uploads import AFTER_INTENT, AFTER_OBJECT, BEFORE_INTENT
from analemma.testing import failpoints

UPLOAD_ONE = """
import sys
from pathlib import Path
from analemma.blocks.local import LocalStore
from analemma.blocks.packs import StoredBlock, build_pack
from analemma.blocks.uploads import upload_pack
from analemma.canon.identity import block_id

root = Path(sys.argv[1])
body = bytes(range(256)) * 4000
pack = build_pack([StoredBlock(block_id(body), 0, body, len(body))])
upload_id = bytes.fromhex(sys.argv[2])
intent = root / f"intent-{upload_id.hex()}"
upload_pack(LocalStore(root / "objects"), upload_id, pack, open_intent=intent.touch, metadata={"usage": "temp"})
"""

UPLOAD_FOR_EVER = (
    UPLOAD_ONE.rsplit("upload_id =", 1)[0]
    + """
import os
store = LocalStore(root / "objects")
print("ready", flush=True)
while True:
    upload_id = os.urandom(16)
    intent = root / f"intent-{upload_id.hex()}"
    upload_pack(store, upload_id, pack, open_intent=intent.touch, metadata={"usage": "temp"})
    (root / f"done-{upload_id.hex()}").touch()
"""
)

UPLOAD_ID = bytes(range(16))


@pytest.mark.parametrize(
    ("failpoint", "intent_recorded", "object_stored"),
    [(BEFORE_INTENT, False, False), (AFTER_INTENT, True, False), (AFTER_OBJECT, True, True)],
)
def test_an_upload_killed_at_a_failpoint_leaves_only_what_the_intent_names(
    tmp_path: Path, failpoint: str, intent_recorded: bool, object_stored: bool
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", UPLOAD_ONE, str(tmp_path), UPLOAD_ID.hex()],
        env=os.environ | {failpoints.VARIABLE: failpoint},
        capture_output=True,
        text=True,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    store = LocalStore(tmp_path / "objects")
    assert (tmp_path / f"intent-{UPLOAD_ID.hex()}").exists() is intent_recorded
    assert (store.head(pack_key(UPLOAD_ID)) is not None) is object_stored
    if object_stored:
        verify_pack(store.get(pack_key(UPLOAD_ID)))
    # The collector's part, and the writer's next attempt under a new id, both work on what was left.
    store.delete(pack_key(UPLOAD_ID))
    assert list(store.list()) == []
    again = subprocess.run([sys.executable, "-c", UPLOAD_ONE, str(tmp_path), "ff" * 16], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert [info.key for info in store.list()] == [pack_key(b"\xff" * 16)]
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_uploads_killed_at_any_moment_never_show_a_torn_object(tmp_path: Path, seed: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", UPLOAD_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(random.Random(seed).uniform(0.02, 0.25))
        process.kill()
        process.wait()
    store = LocalStore(tmp_path / "objects")
    stored = {info.key for info in store.list()}
    for key in stored:
        verify_pack(store.get(key))
        assert (tmp_path / f"intent-{key.rsplit('/', 1)[1]}").exists()
    finished = {pack_key(bytes.fromhex(path.name.removeprefix("done-"))) for path in tmp_path.glob("done-*")}
    assert finished <= stored
    store.close()
