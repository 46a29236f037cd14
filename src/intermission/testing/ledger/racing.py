"""The contract: several threads at once, each with a connection of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from intermission.errors import StalePlans
from intermission.model import Completion, Job, JobState, Lease
from intermission.ports.ledger import every_task
from intermission.testing.jobs import (
    chunks,
    completion,
    fan_job,
    job,
    line_job,
    mapped,
    pair_job,
    plan,
    reduce,
    submit,
    tasks_of,
)
from intermission.testing.ledger.history import all_events
from intermission.testing.ledger.suite import (
    TTL_S,
    FakeClock,
    Ledger,
    OpenLedger,
    Suite,
    events_of,
    finish,
    job_row,
    planned,
    run,
    take,
    take_named,
    take_one,
)

T = TypeVar("T")
FAN_INS_EACH = 100
"""In one job; a job of thousands of steps is no job that anybody has."""
DEADLINE_S = 60.0


def at_once(open_ledger: OpenLedger, *work: Callable[[Ledger], T]) -> list[T]:
    """Run each function in a thread with its own connection, all let go at the same instant."""
    gate = threading.Barrier(len(work))
    results: list[T | BaseException] = [RuntimeError("the thread did not end")] * len(work)

    def play(n: int) -> None:
        try:
            ledger = open_ledger()
            gate.wait(DEADLINE_S)
            results[n] = work[n](ledger)
            ledger.close()
        except BaseException as e:
            results[n] = e

    threads = [threading.Thread(target=play, args=(n,), daemon=True) for n in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


class Racing(Suite):
    fan_ins = 20
    """How many times the last two inputs of a fan-in end at the same instant."""
    rounds = 15
    """How many times any other two meet."""

    def test_no_task_is_handed_out_twice(self, ledger: Ledger, open_ledger: OpenLedger) -> None:
        planned(ledger, fan_job(), 120)

        def grab(own: Ledger) -> list[Lease]:
            got: list[Lease] = []
            while leases := take(own, 7, worker=threading.current_thread().name):
                got += leases
            return got

        got = [lease for leases in at_once(open_ledger, *[grab] * 6) for lease in leases]
        assert len({(lease.task_id, lease.fence) for lease in got}) == len(got) == 120

    def test_a_limit_holds_against_a_race(self, ledger: Ledger, open_ledger: OpenLedger) -> None:
        planned(ledger, job(plan("cut"), mapped("call", "cut", concurrency=5)), 40)
        got = at_once(open_ledger, *[lambda own: take(own, 3)] * 6)
        assert sum(len(leases) for leases in got) == 5

    def test_one_of_many_submissions_wins(self, ledger: Ledger, open_ledger: OpenLedger) -> None:
        made = line_job()
        won = at_once(open_ledger, *[lambda own: own.submit(made, tasks_of(made, {}))] * 6)
        assert sorted(won) == [False] * 5 + [True]
        assert job_row(ledger, made).total() == 2

    def test_the_last_two_inputs_end_at_the_same_instant(
        self, ledger: Ledger, open_ledger: OpenLedger
    ) -> None:
        joins: list[int] = []
        for first in range(0, self.fan_ins, FAN_INS_EACH):
            many = range(first, min(first + FAN_INS_EACH, self.fan_ins))
            maps = [mapped(f"hear{n}", "cut") for n in many]
            reduces = [reduce(f"join{n}", f"hear{n}") for n in many]
            made = planned(ledger, job(plan("cut"), *maps, *reduces, key=f"job{first}"), 2)
            leases = take(ledger, 2 * len(many), jobs=[made.key])
            ends = {(one.step, one.index): (one.task_id, one.fence) for one in leases}
            gate = threading.Barrier(2)

            def end(
                own: Ledger,
                index: int,
                many: range = many,
                ends: dict[tuple[str, int], tuple[int, int]] = ends,
                gate: threading.Barrier = gate,
            ) -> list[bool]:
                answers: list[bool] = []
                for n in many:
                    gate.wait(DEADLINE_S)
                    answers += own.complete([Completion(*ends[f"hear{n}", index], "1")])
                return answers

            answers = at_once(open_ledger, *[partial(end, index=index) for index in (0, 1)])
            assert answers == [[True] * len(many)] * 2
            joins += [row.id for row in every_task(ledger, made.key) if row.step.startswith("join")]
            assert len(take(ledger, len(many) + 1, jobs=[made.key])) == len(many)
        fired = Counter(
            (event.task_id, event.was, event.now)
            for event in all_events(ledger)
            if event.task_id in set(joins) and event.now == "pending"
        )
        assert fired == {(id, "blocked", "pending"): 1 for id in joins}

    def test_the_same_completion_at_the_same_instant(
        self, ledger: Ledger, open_ledger: OpenLedger
    ) -> None:
        made = planned(ledger, fan_job(), 2)
        first, second = take(ledger)
        answers = at_once(open_ledger, *[lambda own: finish(own, made, first)] * 4)
        assert answers == [[True]] * 4
        assert events_of(ledger, first.task_id).count(("leased", "done")) == 1
        assert take(ledger) == []
        finish(ledger, made, second)
        assert take_one(ledger).step == "join"

    def test_a_late_completion_against_its_successor(
        self, ledger: Ledger, open_ledger: OpenLedger, clock: FakeClock
    ) -> None:
        for n in range(self.rounds):
            made = submit(ledger, line_job(key=f"job{n}"))
            old = take_one(ledger, jobs=[made.key])
            clock.advance(TTL_S)
            taken: list[Lease] = []

            def take_over(
                own: Ledger, made: Job = made, taken: list[Lease] = taken
            ) -> Sequence[object]:
                own.rescue()
                leases = take(own, jobs=[made.key])
                taken += [lease for lease in leases if lease.step == "fetch"]
                return leases

            def complete(own: Ledger, made: Job = made, old: Lease = old) -> Sequence[object]:
                return finish(own, made, old)

            _, (accepted,) = at_once(open_ledger, take_over, complete)
            assert bool(taken) != accepted, "one of the two owns the task, and one alone"
            for lease in taken:
                assert finish(ledger, made, lease) == [True]

    def test_two_plans_end_at_the_same_instant(
        self, ledger: Ledger, open_ledger: OpenLedger
    ) -> None:
        for n in range(self.rounds):
            made = submit(ledger, pair_job(key=f"job{n}"))
            plans = take_named(ledger, jobs=[made.key])

            def end(own: Ledger, lease: Lease, made: Job = made) -> int:
                for tries in range(10):
                    try:
                        own.complete([completion(own, made, lease, chunks(2))])
                    except StalePlans:
                        continue
                    return tries
                raise AssertionError("the plan never ended")

            at_once(
                open_ledger,
                lambda own, lease=plans["cut"]: end(own, lease),
                lambda own, lease=plans["split"]: end(own, lease),
            )
            assert len(run(ledger, made)) == 5
            assert job_row(ledger, made).state is JobState.DONE
