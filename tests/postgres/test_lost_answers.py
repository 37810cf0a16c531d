"""PostgreSQL that ends connections, loses answers or takes long: what happened is found out, or it is said that not."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from analemma import App
from analemma.errors import HeadMoved, OutcomeUnknown, Timeout, Unavailable
from analemma.testing import failpoints
from tests.postgres.postgres_proxy import LossyProxy
from tests.raw_rows import connect
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
TOLD = "the save whose answer is lost"


def save(app: App, n: int, **more: Any) -> int:
    return app.kernel.save_state_delta({"n": n}, **AT, **more).version


def head(app: App) -> Any:
    return next(iter(app.kernel.history(**AT)))


def tag(app: App, name: str) -> None:
    app.kernel.tag(head(app).manifest_id, name, owner_id="ann")


def tags(app: App) -> list[str]:
    return [each.name for each in app.kernel.tags(**AT)]


@pytest.fixture
def app(migrated_url: str) -> Iterator[App]:
    with Store(migrated_url).open() as app:
        save(app, 1)
        yield app


@pytest.fixture
def proxy(migrated_url: str) -> Iterator[LossyProxy]:
    proxy = LossyProxy(migrated_url)
    yield proxy
    proxy.close()


@pytest.fixture
def distant(app: App, proxy: LossyProxy) -> Iterator[App]:
    """The same store, seen through the proxy by one connection."""
    with Store(proxy.url).open(postgres_pool_max=1, connect_timeout_s=2) as distant:
        distant.kernel.load_latest_state(**AT)
        yield distant


def disconnect_everyone(url: str) -> None:
    query = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with connect(url) as connection:
        connection.execute(query)


def test_reads_writes_and_commits_outlive_a_restart_of_the_server(migrated_url: str, app: App) -> None:
    disconnect_everyone(migrated_url)
    assert app.kernel.load_latest_state(**AT) == {"n": 1}
    disconnect_everyone(migrated_url)
    tag(app, "kept")
    disconnect_everyone(migrated_url)
    assert save(app, 2) == 2
    assert tags(app) == ["kept"]


def test_a_commit_whose_answer_was_lost_is_found_to_have_happened(proxy: LossyProxy, distant: App) -> None:
    proxy.lose_answer_to(TOLD.encode())
    assert save(distant, 2, message=TOLD) == 2
    assert proxy.lost == 1
    assert [each.version for each in distant.kernel.history(**AT)] == [2, 1]


def test_a_refused_commit_whose_answer_was_lost_is_still_refused(app: App, proxy: LossyProxy, distant: App) -> None:
    parent = head(distant).manifest_id
    proxy.lose_answer_to(TOLD.encode())
    with failpoints.call("commit.before_transaction", lambda: save(app, 2)), pytest.raises(HeadMoved):
        save(distant, 3, message=TOLD, previous_manifest_id=parent)
    assert proxy.lost == 1
    assert app.kernel.load_latest_state(**AT) == {"n": 2}


def test_a_commit_that_cannot_be_read_back_has_an_unknown_outcome(app: App, proxy: LossyProxy, distant: App) -> None:
    proxy.lose_answer_to(TOLD.encode(), then_refuse=True)
    with pytest.raises(OutcomeUnknown, match="read back"):
        save(distant, 2, message=TOLD)
    assert app.kernel.load_latest_state(**AT) == {"n": 2}


def test_a_commit_that_times_out_while_it_is_settled_has_an_unknown_outcome(
    migrated_url: str, app: App, proxy: LossyProxy, distant: App
) -> None:
    with connect(migrated_url, autocommit=True) as connection:
        # The first attempt takes until we let it go on, and whoever waits for it is soon told to give up.
        connection.execute("SELECT pg_advisory_lock(1)")
        connection.execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$"
        )
        connection.execute("CREATE TRIGGER dawdle BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION dawdle()")
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET lock_timeout = '200ms'")
        proxy.lose_connection_at(TOLD.encode())
        with pytest.raises(OutcomeUnknown, match="read back"):
            save(distant, 2, message=TOLD)
        connection.execute("SELECT pg_advisory_unlock(1)")
    deadline = time.monotonic() + 60
    while head(app).version == 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert app.kernel.load_latest_state(**AT) == {"n": 2}


@pytest.mark.parametrize("away", [False, True], ids=["found out", "unknown"])
def test_a_transaction_whose_commit_went_unanswered_is_found_out_or_unknown(
    app: App, proxy: LossyProxy, distant: App, away: bool
) -> None:
    def lose() -> None:
        proxy.lose_answer_to(b"COMMIT\0", then_refuse=away)

    manifest = head(distant).manifest_id
    with failpoints.call("record.before_commit", lose):
        if away:
            with pytest.raises(OutcomeUnknown):
                distant.kernel.tag(manifest, "perhaps", owner_id="ann")
        else:
            distant.kernel.tag(manifest, "perhaps", owner_id="ann")
    assert proxy.lost == 1 and tags(app) == ["perhaps"]


def test_a_transaction_that_broke_before_its_commit_changed_nothing_and_is_done_again(
    migrated_url: str, app: App
) -> None:
    with failpoints.call("record.before_commit", lambda: disconnect_everyone(migrated_url)):
        tag(app, "kept")
    assert tags(app) == ["kept"]
    assert app.kernel.verify(**AT).problems == []


def test_what_the_server_asks_to_try_again_is_tried_again(migrated_url: str, app: App) -> None:
    with connect(migrated_url, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE tries")
        connection.execute(
            "CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('analemma.tries') IN (1, 3) THEN"
            " RAISE EXCEPTION USING ERRCODE = '40001'; END IF; RETURN new; END $$"
        )
        connection.execute("CREATE TRIGGER collide BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION collide()")
        assert save(app, 2) == 2
        tag(app, "kept")
        assert connection.execute("SELECT last_value FROM tries").fetchone() == (4,)
    assert tags(app) == ["kept"]


def test_a_statement_that_takes_too_long_is_cut_off(migrated_url: str, app: App) -> None:
    with Store(migrated_url).open(statement_timeout_s=0.2) as hasty, connect(migrated_url) as connection:
        connection.execute("SELECT 1 FROM head FOR UPDATE")
        with pytest.raises(Timeout):
            save(hasty, 2)
    assert save(app, 2) == 2


def test_an_exhausted_pool_says_so(migrated_url: str, app: App) -> None:
    with Store(migrated_url).open(postgres_pool_max=1, connect_timeout_s=0.3) as narrow:
        with failpoints.paused("record.before_commit", lambda: tag(narrow, "slow")) as held:
            with pytest.raises(Unavailable, match="pool"):
                narrow.kernel.load_latest_state(**AT)
            held.go_on()
        assert narrow.kernel.load_latest_state(**AT) == {"n": 1}


def test_more_threads_than_connections_take_turns(migrated_url: str, app: App) -> None:
    with Store(migrated_url).open(postgres_pool_max=2) as narrow, ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: narrow.kernel.load_latest_state(**AT), range(120)))
        with connect(migrated_url) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND backend_type = 'client backend'"
            ).fetchone()
        # Those of the other store and of this test are there, too.
        assert found == [{"n": 1}] * 120 and row is not None and row[0] <= 5


def fork(work: Callable[[], object]) -> int:
    """Run it in a child; what the child ended with."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_opens_its_own(migrated_url: str, app: App) -> None:
    def work() -> None:
        for use in (lambda: save(app, 2), lambda: tag(app, "child"), app.stats):
            with pytest.raises(Unavailable, match=r"forked.*spawn"):
                use()
        app.close()
        with Store(migrated_url).open() as own:
            assert save(own, 2) == 2

    assert fork(work) == 0
    assert save(app, 3) == 3


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_forked_inside_a_transaction_neither_commits_nor_ends_it(app: App) -> None:
    parent = os.getpid()
    codes: list[int] = []

    def split() -> None:
        child = os.fork()
        if child:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with failpoints.call("record.before_commit", split):
        try:
            tag(app, "parent")
        except BaseException as exc:
            if os.getpid() != parent:
                os._exit(0 if isinstance(exc, Unavailable | OutcomeUnknown) else 2)
            raise
        finally:
            if os.getpid() != parent:
                os._exit(1)
    assert codes == [0] and tags(app) == ["parent"]


def test_a_transaction_that_nobody_goes_on_with_keeps_no_locks(migrated_url: str, app: App) -> None:
    """Whoever is frozen inside of one does it again when it comes back."""
    with Store(migrated_url).open(statement_timeout_s=0.3) as frozen:
        with failpoints.paused("record.before_commit", lambda: tag(frozen, "late")) as held:
            # Waits for the lock on the head, which nobody gives back.
            assert save(app, 2) == 2
            held.go_on()
        assert tags(app) == ["late"]
        assert app.kernel.verify(**AT).problems == []
