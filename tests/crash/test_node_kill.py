"""kill -9 while nodes reach out of their run: an ingest happens once, a view stays as it was seen, a host that honours
keys does what it does once, and an archive is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analemma.testing import failpoints
from tests import programs
from tests.api.pipeline.shop import book, open_shop, put_book
from tests.crash.node_worker import BOOK, PLACE
from tests.crash.points import kills
from tests.model_server import Answering, ModelServer
from tests.raw_rows import select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
POINTS = [
    "ingest.before_commit",
    "ingest.after_commit",
    "ingest.after_commit:2",
    "effect.after_intent",
    "effect.before_result",
    "effect.before_result:2",
    "effect.after_result:2",
    "run.after_segment",
    "archive.after_commit",
]
"""The second ingest is a deletion; of the effects, the first is the host's, the second the model's."""
CHOSEN = ["ingest.before_commit", "ingest.after_commit", "effect.before_result", "archive.after_commit"]


@pytest.fixture
def host() -> Iterator[ModelServer]:
    """Pays once per key, and answers as a model does."""
    paid: dict[str, int] = {}

    def answer(to: Answering) -> None:
        key = to.headers["idempotency-key"]
        number = paid.setdefault(key, len(paid))
        to.whole(200, {"payment": number, "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]})

    server = ModelServer(answer)
    yield server
    server.stop()


def launch(store: Store, host: ModelServer, failpoint: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != failpoints.VARIABLE}
    environment["ANALEMMA_FLOW_API"] = host.url
    if failpoint is not None:
        environment[failpoints.VARIABLE] = failpoint
    return programs.run(
        [sys.executable, "-m", "tests.crash.node_worker", store.url, store.objects or ""],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def prepare(store: Store, volume: Path) -> None:
    with open_shop(store) as shop:
        put_book(shop, "0")
        put_book(shop, "2")
        shop.archives.create("ws1", owner_id="me", volume=volume)
        (volume / "file").write_text("hello")


@pytest.mark.parametrize("point", kills(POINTS, test=CHOSEN))
def test_what_nodes_do_survives_being_killed(store: Store, host: ModelServer, tmp_path: Path, point: str) -> None:
    volume = tmp_path / "volume"
    prepare(store, volume)
    done = launch(store, host, point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # Somebody else is at it meanwhile.
    with open_shop(store) as shop:
        shop.ingest("BOOK", "1", book("1", price=5))
        put_book(shop, "0", price=7)
    done = launch(store, host, None)
    assert done.returncode == 0, done.stderr
    with open_shop(store) as shop:
        (run,) = shop.flows.runs()
        assert run.status == "COMPLETED"
        state = run.state
        # Exactly one version is the run's, beside the one that was ingested meanwhile.
        rows = select(store, "SELECT count(*) FROM raw JOIN entity ON raw.entity = entity.id WHERE entity.key = '1'")
        assert rows == [(2,)]
        assert shop.ingest("BOOK", "1", BOOK, version=state["put"]).created is False
        assert state["ask"] == "yes"
        assert state["away"]["op_id"] == shop.archives.unit("ws1").op_id
        assert not volume.exists()
        assert shop.kernel.verify(**PLACE).problems == []
    paid = [asked for asked in host.asked if asked.path == "/pay"]
    assert len({asked.headers["idempotency-key"] for asked in paid}) == 1
    assert len({asked.body for asked in paid}) == 1
    assert len(host.asked) <= 3
    assert state["call"]["payment"] == 0
