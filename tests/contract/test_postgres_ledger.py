"""The PostgreSQL ledger against the one contract, and what it promises beyond it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.backends.ledger.postgres import connection as postgres_connection
from intermission.backends.ledger.postgres.arrays import array_text
from intermission.backends.ledger.postgres.connection import close_pools, is_direct, pool_of
from intermission.errors import LedgerError, LedgerTooNew
from intermission.model import (
    JOB_TRANSITIONS,
    TRANSITIONS,
    Completion,
    Failure,
    Heartbeat,
    Job,
    JobState,
    Lease,
    Limit,
    TaskState,
)
from intermission.ports.ledger import Ask
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import (
    chain_job,
    chunks,
    completion,
    fan_job,
    line_job,
    submit,
    tasks_of,
)
from intermission.testing.ledger import LedgerContract
from intermission.testing.ledger.suite import outputs_of
from servers.postgres import Databases, PostgresServer

TTL_S = 60.0
FAN_INS = int(os.environ.get("INTERMISSION_TEST_FAN_INS", "200"))
DEADLINE_S = 60.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestPostgresLedger(LedgerContract):
    fan_ins = FAN_INS

    @pytest.fixture
    def open_ledger(self, postgres: Databases, clock: FakeClock) -> Callable[[], PostgresLedger]:
        url = postgres.emptied()
        return lambda: PostgresLedger(url, clock=clock)


@pytest.fixture
def url(postgres: Databases) -> str:
    return postgres.emptied()


@pytest.fixture
def ledger(url: str) -> PostgresLedger:
    return PostgresLedger(url)


TEXTS = [
    "",
    " ",
    "null",
    "NULL",
    '"',
    "\\",
    '\\"',
    "{}",
    "a,b",
    '{"a": [1, "é"]}',
    "\n\t",
    "\U0001f3ac",
]


def test_texts_of_a_batch_come_back_as_they_were(ledger: PostgresLedger) -> None:
    made = submit(ledger, fan_job())
    (first,) = ledger.claim("w", 1, lease_ttl_s=TTL_S)
    ledger.complete([completion(ledger, made, first, chunks(len(TEXTS)))])
    leases = ledger.claim("w", len(TEXTS), lease_ttl_s=TTL_S)
    done = [
        Completion(lease.task_id, lease.fence, text)
        for lease, text in zip(leases, TEXTS, strict=True)
    ]
    assert ledger.complete(done) == [True] * len(TEXTS)
    assert [one.result for one in outputs_of(ledger, made, "hear") if one] == TEXTS


def test_a_nul_in_a_text_is_refused_and_shifts_nothing(ledger: PostgresLedger) -> None:
    made = submit(ledger, fan_job())
    (first,) = ledger.claim("w", 1, lease_ttl_s=TTL_S)
    ledger.complete([completion(ledger, made, first, chunks(2))])
    leases = ledger.claim("w", 2, lease_ttl_s=TTL_S)
    done = [Completion(lease.task_id, lease.fence, "a\0b") for lease in leases]
    with pytest.raises(LedgerError, match="NUL"):
        ledger.complete(done)
    assert ledger.jobs()[0].total(TaskState.LEASED) == 2


def test_columns_of_a_batch_are_written_as_arrays() -> None:
    assert array_text([]) == "{}"
    assert array_text([1, 2.5, True, None]) == "{1,2.5,True,NULL}"
    assert array_text(['a"b', None, "c\\d", ""]) == '{"a\\"b",NULL,"c\\\\d",""}'
    assert array_text(["a", "b"]) == '{"a","b"}'


@contextmanager
def direct(url: str) -> Iterator[psycopg.Connection]:
    """A connection of somebody else's, in a transaction that is rolled back."""
    connection = psycopg.connect(url)
    try:
        yield connection
    finally:
        connection.close()


def planned(ledger: PostgresLedger, key: str, count: int) -> tuple[str, list[tuple[int, int]]]:
    """A job whose chunks are all leased, as (task, fence)."""
    made = submit(ledger, fan_job(key=key))
    (plan,) = ledger.claim("w1", 1, lease_ttl_s=TTL_S, jobs=[key])
    ledger.complete([completion(ledger, made, plan, chunks(count))])
    leases = ledger.claim("w1", count, lease_ttl_s=TTL_S, jobs=[key])
    return made.key, [(lease.task_id, lease.fence) for lease in leases]


def test_a_reader_of_events_passes_none_by_that_is_not_committed_yet(
    url: str, ledger: PostgresLedger
) -> None:
    _, leases = planned(ledger, "job", 2)
    (seen,) = ledger.events(limit=100)[-1:]
    with direct(url) as slow:
        sql = "UPDATE intermission.tasks SET state = 'running' WHERE id = %s"
        slow.execute(sql, (leases[0][0],))
        assert ledger.complete([Completion(*leases[1], "1")]) == [True]
        assert ledger.events(seen.seq) == [], "the one before it may still come"
        slow.commit()
    assert [(e.task_id, e.now) for e in ledger.events(seen.seq)] == [
        (leases[0][0], "running"),
        (leases[1][0], "done"),
    ]


def test_events_of_a_change_that_was_undone_are_not_waited_for(
    url: str, ledger: PostgresLedger
) -> None:
    _, leases = planned(ledger, "job", 2)
    (seen,) = ledger.events(limit=100)[-1:]
    with direct(url) as slow:
        sql = "UPDATE intermission.tasks SET state = 'running' WHERE id = %s"
        slow.execute(sql, (leases[0][0],))
        ledger.complete([Completion(*leases[1], "1")])
        slow.rollback()
    assert [e.now for e in ledger.events(seen.seq)] == ["done"]


def test_the_database_knows_the_transitions_of_the_model(url: str) -> None:
    sql = "INSERT INTO intermission.events (at_ms, job_id, task_id, was, now) VALUES (0,1,%s,%s,%s)"
    with psycopg.connect(url, autocommit=True) as connection:

        def legal(task: int | None, was: str | None, now: str) -> bool:
            try:
                connection.execute(sql, (task, was, now))
            except psycopg.errors.CheckViolation:
                return False
            return True

        for was in TaskState:
            assert {now for now in TaskState if legal(1, was, now)} == TRANSITIONS[was]
        for was in JobState:
            assert {now for now in JobState if legal(None, was, now)} == JOB_TRANSITIONS[was]
        assert [now for now in JobState if legal(None, None, now)] == [JobState.PENDING]


def test_an_illegal_change_is_refused_whoever_makes_it(url: str, ledger: PostgresLedger) -> None:
    submit(ledger, line_job())
    with direct(url) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("UPDATE intermission.tasks SET state = 'done' WHERE state = 'blocked'")


def test_work_rings_the_bell_once_for_each_transaction(url: str, ledger: PostgresLedger) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN intermission")

        def rings() -> int:
            connection.execute("NOTIFY intermission, 'end'")  # they come in order
            told = connection.notifies(timeout=DEADLINE_S)
            heard = list(iter(lambda: next(told).payload, "end"))
            told.close()
            return len(heard)

        made = submit(ledger, fan_job())
        assert rings() == 1
        (plan,) = ledger.claim("w1", 5, lease_ttl_s=TTL_S)
        assert rings() == 0
        ledger.complete([completion(ledger, made, plan, chunks(300))])
        assert rings() == 1
        leases = ledger.claim("w1", 300, lease_ttl_s=TTL_S)
        ledger.renew("w1", [Heartbeat(one.task_id, one.fence) for one in leases], lease_ttl_s=TTL_S)
        ledger.complete([Completion(one.task_id, one.fence, "1") for one in leases[2:]])
        assert rings() == 0
        ledger.release([(one.task_id, one.fence) for one in leases[:2]], reason="drain")
        assert rings() == 1


def test_renewals_leave_nothing_for_a_vacuum(url: str, ledger: PostgresLedger) -> None:
    _, leases = planned(ledger, "job", 50)
    heartbeats = [Heartbeat(*lease) for lease in leases]
    ledger.renew("w1", heartbeats, lease_ttl_s=TTL_S)  # which makes them running
    with psycopg.connect(url, autocommit=True) as connection:  # so that there is room on a page
        connection.execute("VACUUM intermission.tasks")
    sql = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables "
        "WHERE schemaname = 'intermission' AND relname = 'tasks'"
    )
    with direct(url) as connection:
        connection.execute(
            "UPDATE intermission.tasks SET lease_s = 1, progress = 0.5, worker = 'w'"
        )
        row = connection.execute(sql).fetchone()
    assert row is not None
    updated, hot = row
    assert updated == 52
    assert hot > 0.9 * updated


MANY = 4000


@pytest.mark.parametrize("analyzed", [False, True])
def test_plans_made_beside_little_are_good_beside_much(
    url: str, ledger: PostgresLedger, analyzed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session keeps its plans: each call is made beside few tasks, then beside many.

    Where the server has counted the few, plans are good again as soon as they are made anew.
    """
    for n in range(6):
        for call in calls_of(ledger, running(ledger, f"small-{n}", 3, n)).values():
            call()
        if analyzed and n == 2:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
    for n in range(MANY // 5):
        submit(ledger, line_job(key=f"other-{n}", priority=-1))
    read: dict[str, int] = {}
    calls = calls_of(ledger, running(ledger, "large", MANY, 9))
    if analyzed:
        monkeypatch.setattr(postgres_connection, "_REPLAN_S", 0.0)
    for name, call in calls.items():
        before = entries_read(url)
        call()
        read[name] = entries_read(url) - before
    assert {name: count for name, count in read.items() if count > MANY // 5} == {}


def running(ledger: PostgresLedger, key: str, count: int, priority: int) -> Job:
    """A job whose chunks are there: half of its tasks can be claimed, half are blocked."""
    made = submit(ledger, chain_job(key=key, priority=priority))
    (plan,) = ledger.claim("w1", 1, lease_ttl_s=TTL_S, jobs=[key])
    ledger.complete([completion(ledger, made, plan, chunks(count))])
    return made


def calls_of(ledger: PostgresLedger, made: Job) -> dict[str, Callable[[], object]]:
    """What workers ask all the time, to be called in this order."""
    held: list[Lease] = []
    ask = Ask("w1", 1, TTL_S)

    def claim() -> None:
        held.extend(ledger.claim("w1", 1, lease_ttl_s=TTL_S))
        assert held

    def complete_and_claim() -> None:
        _, leases = ledger.complete_and_claim([completion(ledger, made, held.pop())], ask)
        held.extend(leases)
        assert held

    def renew() -> None:
        ledger.renew("w1", [Heartbeat(held[0].task_id, held[0].fence, 0.5)], lease_ttl_s=TTL_S)

    def fail() -> None:
        lease = held.pop()
        assert ledger.fail([Failure(lease.task_id, lease.fence, "E", "no")]) != [None]

    return {
        "claim": claim,
        "renew": renew,
        "complete and claim": complete_and_claim,
        "fail": fail,
        "claim again": claim,
        "release": lambda: ledger.release(
            [(one.task_id, one.fence) for one in held], reason="no-slot"
        ),
        "claim nothing": lambda: ledger.claim("w1", 1, lease_ttl_s=TTL_S, runs=[]),
        "claim of a job": lambda: ledger.claim("w2", 1, lease_ttl_s=TTL_S, jobs=[made.key]),
        "rescue": lambda: ledger.rescue(["w2"]),
        "job": lambda: ledger.job(made.key),
        "tasks": lambda: ledger.tasks(made.key, limit=10),
        "tasks in a state": lambda: ledger.tasks(made.key, states=[TaskState.FAILED], limit=10),
        "outputs": lambda: ledger.outputs(made.key, "cut", limit=1),
        "receipts": lambda: ledger.receipts(made.key, limit=10),
        "events": lambda: ledger.events(ledger.events(limit=5)[-1].seq, limit=5),
        "events of a job": lambda: ledger.events(0, job=made.key, limit=5),
        "jobs": lambda: ledger.jobs(limit=10),
        "jobs in a state": lambda: ledger.jobs(states=[JobState.RUNNING], limit=10),
        "submit": lambda: submit(ledger, line_job(key=f"{made.key}-more", priority=-1)),
        "cancel": lambda: ledger.cancel(f"{made.key}-more", reason="no"),
        "retry": lambda: ledger.retry(f"{made.key}-more"),
    }


def entries_read(url: str) -> int:
    """How many entries of indexes and rows of tables were read so far, over the one connection."""
    sql = (
        "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)"
        " + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)"
    )
    with pool_of(url).connection() as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def test_little_of_a_session_is_used(url: str, ledger: PostgresLedger) -> None:
    """Only what makes statements faster, and only where no pooler stands in between."""
    _, leases = planned(ledger, "job", 2)
    ledger.complete([Completion(*leases[0], "1")])
    with pool_of(url).connection() as connection:
        settings = [
            connection.execute(f"SHOW {name}".encode()).fetchone()
            for name in ("lock_timeout", "idle_in_transaction_session_timeout", "search_path")
        ]
        assert settings == [("0",), ("0",), ('"$user", public',)]
        assert is_direct(connection)
        locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.execute(locks).fetchall() == []


def test_a_pooler_that_did_not_show_is_found_out(
    url: str, ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session may be another's by now, without what was prepared in it."""
    monkeypatch.setattr("intermission.backends.ledger.postgres.connection._pooled", set())
    close_pools()  # so that there is one connection
    for turn in range(4):
        submit(ledger, line_job(key=f"job{turn}"))
    with pool_of(url).connection() as connection:
        assert is_direct(connection)
        connection.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    made = line_job(key="next")
    assert ledger.submit(made, tasks_of(made, {}))
    assert [row.job.key for row in ledger.jobs(limit=1)] == ["next"]
    with pool_of(url).connection() as connection:
        assert not is_direct(connection)
    close_pools()


def test_an_idle_claim_writes_nothing(url: str, ledger: PostgresLedger) -> None:
    sql = "SELECT token, at_s FROM intermission.changes"
    with psycopg.connect(url, autocommit=True) as connection:
        submit(ledger, line_job())
        ledger.claim("w1", 5, lease_ttl_s=TTL_S)
        assert ledger.claim("w1", 5, lease_ttl_s=TTL_S) == [], "finds out that nothing is left"
        before = connection.execute(sql).fetchall()
        assert len(before) == 1, "the last change of this ledger alone"
        assert ledger.claim("w1", 5, lease_ttl_s=TTL_S) == []
        assert ledger.rescue() == 0
        assert connection.execute(sql).fetchall() == before


def test_a_claim_that_finds_nothing_hides_no_task_that_comes_back(
    url: str, ledger: PostgresLedger
) -> None:
    _, [(task, _), _] = planned(ledger, "job", 2)
    give_back = "UPDATE intermission.tasks SET state = 'abandoned', worker = NULL WHERE id = %s"
    with direct(url) as connection:
        connection.execute(give_back, (task,))
        assert ledger.claim("w2", 1, lease_ttl_s=TTL_S) == [], "it is not committed"
        connection.commit()
    assert [one.task_id for one in ledger.claim("w2", 1, lease_ttl_s=TTL_S)] == [task]


def test_a_task_that_comes_back_waits_for_a_claim_that_closes_its_step(
    url: str, ledger: PostgresLedger
) -> None:
    _, [(task, fence), _] = planned(ledger, "job", 2)
    close = "DELETE FROM intermission.ready RETURNING job_id"
    with direct(url) as connection, ThreadPoolExecutor(1) as thread:
        assert connection.execute(close).fetchall(), "as a claim does that found nothing"
        given = thread.submit(ledger.release, [(task, fence)], reason="drained")
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        deadline_s = time.monotonic() + DEADLINE_S
        with psycopg.connect(url, autocommit=True) as watcher:
            while not watcher.execute(waits).fetchall():
                assert time.monotonic() < deadline_s, "nobody waits"
                time.sleep(0.01)
        connection.commit()
        assert given.result(DEADLINE_S) == 1
    assert [one.task_id for one in ledger.claim("w2", 1, lease_ttl_s=TTL_S)] == [task]


def test_a_fork_never_uses_its_parents_connections(url: str, ledger: PostgresLedger) -> None:
    submit(ledger, line_job())
    read, write = os.pipe()
    with pool_of(url).connection() as connection:
        parent = connection.info.backend_pid
        pid = os.fork()
        if pid == 0:
            try:
                shown = PostgresLedger(url).jobs()
                with pool_of(url).connection() as own:
                    os.write(write, b"%d %d" % (own.info.backend_pid, len(shown)))
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(pid, 0)
        with os.fdopen(read) as told:
            child, shown = map(int, told.read().split())
        assert (child != parent, shown) == (True, 1)
        assert connection.execute("SELECT pg_backend_pid()").fetchone() == (parent,)
    assert [row.job.key for row in ledger.jobs()] == ["job"]


def test_an_empty_database_becomes_a_ledger_once(postgres: Databases) -> None:
    url = postgres.empty()
    gate = threading.Barrier(4)

    def open_at_once(_: int) -> int:
        gate.wait(DEADLINE_S)
        return len(PostgresLedger(url).jobs())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(open_at_once, range(4))) == [0] * 4
    close_pools()


def test_a_newer_schema_is_refused(postgres: Databases) -> None:
    url = postgres.fresh()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO intermission.migrations (version) VALUES (9999)")
    with pytest.raises(LedgerTooNew, match=r"schema 9999.*knows up to.*upgrade"):
        PostgresLedger(url)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"dbname": "nothing"}, 'database "nothing" does not exist'),
        ({"user": "joe", "password": "secret"}, "password authentication failed"),
        ({"port": "1"}, "cannot be reached"),
        ({"host": "no-such-host.invalid", "hostaddr": None}, "is not known"),
    ],
)
def test_a_wrong_address_is_told_at_once(
    part: dict[str, str], says: str, postgres: Databases, url: str
) -> None:
    _require_password(url)
    wrong = make_conninfo(**{**conninfo_to_dict(url), **part})
    with pytest.raises(LedgerError, match=says) as caught:
        PostgresLedger(wrong)
    assert caught.value.remedy
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def _require_password(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'joe'").fetchall():
            connection.execute("CREATE ROLE joe LOGIN PASSWORD 'other'")


@pytest.mark.parametrize("wrong", ["postgresql://%zz", "nonsense"])
def test_what_is_no_address_is_told_at_once(wrong: str) -> None:
    with pytest.raises(LedgerError, match="not the address of a database"):
        PostgresLedger(wrong)


def test_a_server_that_stays_away_is_an_error(
    postgres_server: Callable[..., PostgresServer],
) -> None:
    server = postgres_server()
    ledger = PostgresLedger(server.url, patience_s=0.5)
    submit(ledger, line_job())
    server.stop()
    for call in (ledger.jobs, lambda: ledger.claim("w1", 1, lease_ttl_s=TTL_S), ledger.workers):
        with pytest.raises(LedgerError, match=r"cannot be reached.*refused"):
            call()
    with pytest.raises(LedgerError, match="cannot be reached"):
        ledger.release([(1, 1)], reason="drain")
    server.start()
    assert [lease.step for lease in ledger.claim("w1", 1, lease_ttl_s=TTL_S)] == ["fetch"]


def test_words_the_database_cannot_keep_are_replaced(ledger: PostgresLedger) -> None:
    from intermission.model import Failure

    made = submit(ledger, line_job())
    (lease,) = ledger.claim("w1", 1, lease_ttl_s=TTL_S)
    ledger.fail([Failure(lease.task_id, lease.fence, "E", "a\0b \udcff c", True)])
    (row,) = ledger.tasks(made.key, step="fetch")
    assert row.message == "a\ufffdb ? c"


def test_long_lists_come_in_pages(ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intermission.backends.ledger.sql.reads.PAGE", 7)
    made = submit(ledger, fan_job())
    (plan,) = ledger.claim("w1", 1, lease_ttl_s=TTL_S)
    ledger.complete([completion(ledger, made, plan, chunks(30))])
    leases = ledger.claim("w1", 30, lease_ttl_s=TTL_S)
    ledger.complete([completion(ledger, made, lease, files=1) for lease in leases[3:]])
    assert [row.index for row in ledger.tasks(made.key, step="hear")] == list(range(30))
    assert len(list(ledger.tasks(made.key))) == 32
    held = ledger.tasks(made.key, states=[TaskState.LEASED])
    assert [row.index for row in held] == [0, 1, 2]
    assert [row.index for row, _ in ledger.receipts(made.key)] == list(range(3, 30))


def test_counts_are_folded_and_stay_right(
    url: str, ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intermission.backends.ledger.postgres.database._UNFOLDED_MAX", 3)
    _, leases = planned(ledger, "job", 5)
    for lease in leases[:3]:
        ledger.complete([Completion(*lease, "1")])
    before = ledger.jobs()
    with psycopg.connect(url, autocommit=True) as connection:

        def rows() -> int:
            found = connection.execute("SELECT count(*) FROM intermission.counts").fetchone()
            assert found is not None
            return found[0]

        many = rows()
        assert ledger.rescue() == 0
        assert rows() == 4 < many, "one each for cut, hear leased, hear done, join"
    assert ledger.jobs() == before


def test_a_named_limit_holds_against_a_race(url: str, ledger: PostgresLedger) -> None:
    made = submit(ledger, fan_job())
    (cut,) = ledger.claim("w1", 1, lease_ttl_s=TTL_S)
    ledger.complete([completion(ledger, made, cut, chunks(40))])
    ledger.limit(Limit("pipeline:pipeline", running=5, per_minute=600))
    gate = threading.Barrier(6)

    def take(_: int) -> int:
        own = PostgresLedger(url)
        gate.wait(DEADLINE_S)
        return len(own.claim("w1", 3, lease_ttl_s=TTL_S))

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(take, range(6))) == 5
