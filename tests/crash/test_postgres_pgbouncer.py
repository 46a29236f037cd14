"""A ledger behind PgBouncer in transaction mode: every transaction may get another connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

import pytest
from launcher import until

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.backends.ledger.postgres.connection import is_direct, pool_of
from intermission.backends.notifier.postgres import PostgresNotifier
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import line_job, submit
from intermission.testing.ledger.completing import Completing
from intermission.testing.ledger.completing_and_claiming import CompletingAndClaiming
from intermission.testing.ledger.racing import Racing
from servers.postgres import Databases

DEADLINE_S = 30.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestThroughPgBouncer(Completing, CompletingAndClaiming, Racing):
    """The parts of the contract that change the most at once."""

    rounds = 5

    @pytest.fixture
    def open_ledger(
        self, postgres: Databases, pgbouncer: Callable[[str], str], clock: FakeClock
    ) -> Callable[[], PostgresLedger]:
        url = pgbouncer(postgres.emptied())
        return lambda: PostgresLedger(url, clock=clock)


def test_a_session_keeps_nothing_that_another_would_miss(
    postgres: Databases, pgbouncer: Callable[[str], str], clock: FakeClock
) -> None:
    url = pgbouncer(postgres.emptied())
    ledger = PostgresLedger(url, clock=clock)
    for turn in range(5):  # as often as it takes to prepare a statement where that is right
        submit(ledger, line_job(key=f"job{turn}"))
        assert ledger.claim("w1", 1, lease_ttl_s=60.0)
    with pool_of(url).connection() as connection:
        assert not is_direct(connection)
        assert connection.execute("SELECT * FROM pg_prepared_statements").fetchall() == []
        assert connection.execute("SHOW enable_seqscan").fetchone() == ("on",)


def test_a_notifier_behind_it_says_that_no_notices_arrive(
    postgres: Databases, pgbouncer: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        closing(PostgresNotifier(pgbouncer(postgres.emptied()), probe_within_s=0.2)) as notifier,
    ):
        notifier.fileno()
        until(lambda: notifier.failures > 0, "the notifier notices", DEADLINE_S)
    assert "a pooler in transaction mode does that" in caplog.text
