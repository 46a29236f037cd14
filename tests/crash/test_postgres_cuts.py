"""A connection lost or silent at every statement of a change, before it or with its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import pytest

from intermission.backends.ledger.postgres import PostgresLedger, connection
from intermission.backends.ledger.postgres.connection import close_pools
from intermission.engine.lease_renewer import MARGIN
from intermission.errors import LedgerError
from intermission.model import Completion, Failure, Heartbeat, Job, JobState, Lease, TaskState
from intermission.ports.ledger import Ask
from intermission.testing.jobs import (
    chunks,
    completion,
    fan_job,
    line_job,
    states_of,
    submit,
    tasks_of,
)
from intermission.testing.ledger.history import check_history
from servers.postgres import Databases
from servers.postgres_proxy import Cut, PostgresProxy

TTL_S = 60.0
STATEMENTS_MAX = 30
SILENCE_S = 0.2


@pytest.fixture(scope="module")
def proxy(postgres: Databases) -> Iterator[PostgresProxy]:
    with PostgresProxy(postgres.emptied()).running() as proxy:
        yield proxy
        close_pools()


class Bench:
    """A ledger behind the proxy, one that goes past it, and a fresh job for every try."""

    def __init__(self, proxy: PostgresProxy, straight: PostgresLedger) -> None:
        self.proxy = proxy
        self.straight = straight
        self.ledger = PostgresLedger(proxy.url)
        self.turn = 0
        for key in ("known", "kept"):  # from the second on, it knows the classes of work
            submit(self.ledger, fan_job(key=key))

    def job(self, make: Callable[..., Job] = fan_job) -> Job:
        self.turn += 1
        return submit(self.straight, make(key=f"job{self.turn}"))

    def leases(self, count: int = 2) -> tuple[Job, list[Lease]]:
        """A job whose chunks are all leased."""
        made = self.job()
        (plan,) = self.claim(made)
        self.straight.complete([completion(self.straight, made, plan, chunks(count))])
        return made, self.claim(made)

    def claim(self, made: Job) -> list[Lease]:
        return self.straight.claim("w1", 10, lease_ttl_s=TTL_S, jobs=[made.key])

    def ends(self, made: Job) -> list[str]:
        """What became of a job's tasks, one word per event."""
        ids = {row.id for row in self.straight.tasks(made.key)}
        events = self.straight.events(limit=100_000)
        return sorted(event.now for event in events if event.task_id in ids)


Work = Callable[[Bench], tuple[Any, ...]]


def claiming(bench: Bench) -> tuple[Any, ...]:
    made = bench.job(line_job)
    leases = bench.ledger.claim("w1", 5, lease_ttl_s=TTL_S, jobs=[made.key])
    held = [row.id for row in bench.straight.tasks(made.key, states=[TaskState.LEASED])]
    return [lease.task_id for lease in leases] == held, bench.ends(made)


def completing_a_plan(bench: Bench) -> tuple[Any, ...]:
    made = bench.job()
    (plan,) = bench.claim(made)
    done = completion(bench.straight, made, plan, chunks(3))
    answer = bench.ledger.complete([done])
    return answer, bench.ends(made), states_of(bench.straight, made)


def completing_the_last_inputs(bench: Bench) -> tuple[Any, ...]:
    made, leases = bench.leases()
    answer = bench.ledger.complete(
        [Completion(lease.task_id, lease.fence, "1") for lease in leases]
    )
    return answer, bench.ends(made), states_of(bench.straight, made)


def failing(bench: Bench) -> tuple[Any, ...]:
    made, (one, other) = bench.leases()
    answer = bench.ledger.fail(
        [
            Failure(one.task_id, one.fence, "Broken", "it broke", delay_s=5),
            Failure(other.task_id, other.fence, "Broken", "it broke", permanent=True),
        ]
    )
    return answer, bench.ends(made), states_of(bench.straight, made)


def renewing(bench: Bench) -> tuple[Any, ...]:
    made, leases = bench.leases()
    heartbeats = [Heartbeat(lease.task_id, lease.fence, 0.5) for lease in leases]
    answer = bench.ledger.renew("w1", heartbeats, lease_ttl_s=TTL_S)
    return answer, bench.ends(made), states_of(bench.straight, made)


def releasing(bench: Bench) -> tuple[Any, ...]:
    made, leases = bench.leases()
    given = [(lease.task_id, lease.fence) for lease in leases]
    answer = bench.ledger.release(given, reason="drain")
    return answer, bench.ends(made), [row.attempts for row in bench.straight.tasks(made.key)]


def completing_and_claiming(bench: Bench) -> tuple[Any, ...]:
    bench.turn += 1
    made = submit(bench.straight, line_job(key=f"job{bench.turn}"))
    (lease,) = bench.straight.claim("w1", 1, lease_ttl_s=TTL_S, jobs=[made.key])
    done = completion(bench.straight, made, lease)
    ask = Ask("w1", 1, TTL_S, jobs=[made.key])
    accepted, leases = bench.ledger.complete_and_claim([done], ask)
    return accepted, [(one.step, one.fence) for one in leases], states_of(bench.straight, made)


def submitting(bench: Bench) -> tuple[Any, ...]:
    bench.turn += 1
    made = fan_job(key=f"job{bench.turn}")
    answer = bench.ledger.submit(made, iter(tasks_of(made, {})))
    return answer, states_of(bench.straight, made)


def cancelling_and_retrying(bench: Bench) -> tuple[Any, ...]:
    made, _ = bench.leases()
    answers = (
        bench.ledger.cancel(made.key, reason="no"),
        bench.ledger.retry(made.key),
        bench.ledger.mark(made.key, JobState.DRAINING),
    )
    return answers, states_of(bench.straight, made)


def forgetting(bench: Bench) -> tuple[Any, ...]:
    made = bench.job()
    return bench.ledger.delete(made.key), bench.straight.jobs(made.key)


HARD = [claiming, completing_a_plan, completing_the_last_inputs, completing_and_claiming, failing]
EASY = [
    renewing,
    releasing,
    submitting,
    cancelling_and_retrying,
    forgetting,
]


def at_each_statement(
    work: Work,
    cut: Cut,
    postgres: Databases,
    proxy: PostgresProxy,
    which: Callable[[int], Iterable[int]] = range,
) -> None:
    """Harm the line at one statement after another: the answer is always the same."""
    bench = Bench(proxy, PostgresLedger(postgres.emptied()))
    work(bench)  # what a ledger reads once, and what a connection begins with, is not counted
    bench.proxy.arm()
    expected = work(bench)
    statements = proxy.statements
    assert 1 < statements < STATEMENTS_MAX
    for nth in which(statements):
        bench.ledger.limits()  # so that there is a connection
        bench.proxy.arm(nth, cut)
        assert work(bench) == expected, f"statement {nth} of {statements}: {cut.value}"
        assert proxy.cuts == 1
    bench.proxy.arm()
    check_history(bench.straight)


# The server has done as much when a line is cut before a statement as when it is cut after the one
# before that; so both are only tried where the most happens at once.
@pytest.mark.parametrize(
    ("work", "cut"),
    [*product(HARD, [Cut.BEFORE, Cut.AFTER]), *product(EASY, [Cut.AFTER])],
)
def test_a_cut_line_changes_no_answer_and_nothing_twice(
    work: Work, cut: Cut, postgres: Databases, proxy: PostgresProxy
) -> None:
    at_each_statement(work, cut, postgres, proxy)


@pytest.mark.parametrize("work", [claiming, completing_the_last_inputs, failing])
def test_nor_does_a_line_that_falls_silent(
    work: Work, postgres: Databases, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its beginning, on its way and at its end."""
    monkeypatch.setattr(connection, "SILENCE_S", SILENCE_S)
    at_each_statement(work, Cut.SILENT, postgres, proxy, lambda n: (0, n // 2, n - 1))


def test_a_line_that_is_silent_from_the_beginning_is_given_up(
    postgres: Databases, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENCE_S", SILENCE_S)
    bench = Bench(proxy, PostgresLedger(postgres.emptied()))
    close_pools()
    bench.proxy.arm(0, Cut.SILENT, with_setup=True)
    assert bench.ledger.limits() == []
    assert proxy.cuts == 1


def test_a_renewal_on_a_silent_line_fails_long_before_its_lease_ends(
    postgres: Databases, proxy: PostgresProxy
) -> None:
    """Its keeper can then still end the work in time; and the next one gets a line that talks."""
    bench = Bench(proxy, PostgresLedger(postgres.emptied()))
    _, leases = bench.leases()
    heartbeats = [Heartbeat(lease.task_id, lease.fence) for lease in leases]
    lease_ttl_s = 9.0
    for nth in (0, 2):  # its beginning and its end
        bench.ledger.limits()  # so that there is a connection to fall silent
        bench.proxy.arm(nth, Cut.SILENT)
        began_s = time.monotonic()
        with pytest.raises(LedgerError, match=r"silent for 0\.75 s"):
            bench.ledger.renew("w1", heartbeats, lease_ttl_s=lease_ttl_s)
        assert time.monotonic() - began_s < lease_ttl_s * MARGIN
        assert proxy.cuts == 1
    bench.proxy.arm()
    assert not bench.ledger.renew("w1", heartbeats, lease_ttl_s=lease_ttl_s).lost
