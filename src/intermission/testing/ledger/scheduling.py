"""The contract: whose turn it is, what waits for a better worker, and what limits hold back."""

from __future__ import annotations

from intermission.model import Job, Limit
from intermission.testing.jobs import fan_job, job, line_job, step, submit
from intermission.testing.ledger.suite import (
    FakeClock,
    Ledger,
    Suite,
    finish,
    planned,
    take,
    take_one,
)


class Scheduling(Suite):
    def test_a_huge_job_does_not_starve_a_small_one(self, ledger: Ledger) -> None:
        planned(ledger, fan_job(key="huge"), 50)
        take(ledger, 2)
        submit(ledger, line_job(key="small"))
        assert take_one(ledger).job_key == "small"
        planned(ledger, fan_job(key="other"), 50)
        keys = [take_one(ledger).job_key for _ in range(6)]
        assert keys == ["huge", "other"] * 3

    def test_priority_beats_whose_turn_it_is(self, ledger: Ledger) -> None:
        for key, priority in (("urgent", 1), ("other", 0)):
            submit(ledger, job(step("a"), step("b"), key=key, priority=priority))
        assert [take_one(ledger).job_key for _ in range(3)] == ["urgent", "urgent", "other"]

    def test_a_job_is_not_begun_before_its_time(self, ledger: Ledger, clock: FakeClock) -> None:
        submit(ledger, job(step("a"), not_before_ms=clock.now_ms() + 5000))
        clock.advance(4.9)
        assert take(ledger) == []
        clock.advance(0.2)
        assert take_one(ledger).step == "a"

    def test_a_preference_gives_way_after_a_minute(self, ledger: Ledger, clock: FakeClock) -> None:
        submit(ledger, job(step("a", prefers="gpu"), step("b"), step("c", prefers="gpu")))
        assert [lease.step for lease in take(ledger)] == ["b"]
        assert take_one(ledger, offers=["gpu"]).step == "a"
        clock.advance(59)
        assert take(ledger) == []
        clock.advance(1)
        assert take_one(ledger).step == "c"

    def test_a_need_never_gives_way(self, ledger: Ledger, clock: FakeClock) -> None:
        submit(ledger, job(step("a", needs="gpu")))
        clock.advance(3600)
        assert take(ledger) == []

    def test_a_limit_on_a_pipeline(self, ledger: Ledger) -> None:
        ledger.limit(Limit("pipeline:p", running=2))
        made = _parallel(ledger, "one", "p")
        _parallel(ledger, "two", "p")
        _parallel(ledger, "three", "q")
        leases = take(ledger)
        assert sorted(lease.job_key for lease in leases) == [
            "one",
            "one",
            "three",
            "three",
            "three",
        ]
        finish(ledger, made, leases[0])
        assert len(take(ledger)) == 1

    def test_a_limit_on_a_label(self, ledger: Ledger) -> None:
        ledger.limit(Limit("label:gpu", running=1))
        submit(ledger, job(step("a", needs="gpu"), step("b", prefers="gpu"), step("c")))
        assert [lease.step for lease in take(ledger, offers=["gpu"])] == ["a", "c"]

    def test_a_paused_job_goes_on_when_the_limit_is_gone(self, ledger: Ledger) -> None:
        _parallel(ledger, "one", "p")
        _parallel(ledger, "two", "p")
        ledger.limit(Limit("job:one", running=2, paused=True))
        assert {lease.job_key for lease in take(ledger)} == {"two"}
        ledger.limit(Limit("job:one", running=2))
        assert len(take(ledger)) == 2
        ledger.limit(Limit("job:one"))
        assert ledger.limits() == []
        assert {lease.job_key for lease in take(ledger)} == {"one"}

    def test_a_rate_lets_few_start_and_then_one_after_the_other(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        ledger.limit(Limit("pipeline:p", per_minute=30))
        submit(ledger, job(*(step(f"s{n}") for n in range(9)), key="one", pipeline="p"))
        assert len(take(ledger)) == 3
        clock.advance(1)
        assert take(ledger) == []
        clock.advance(1)
        assert len(take(ledger)) == 1
        clock.advance(600)
        assert len(take(ledger)) == 3

    def test_what_runs_under_a_name_is_counted(self, ledger: Ledger) -> None:
        for key, pipeline in (("one", "p"), ("two", "p"), ("three", "q")):
            submit(ledger, job(step("a", needs="gpu"), step("b"), key=key, pipeline=pipeline))
        take(ledger, offers=["gpu"])
        names = ("job:one", "pipeline:p", "label:gpu", "step:p/a", "step:p/c", "job:none")
        assert [ledger.held_under(name) for name in names] == [2, 4, 3, 2, 0, 0]

    def test_limits_are_kept_by_name(self, ledger: Ledger) -> None:
        ledger.limit(Limit("pipeline:p", 3, 10.0))
        ledger.limit(Limit("label:gpu", running=1))
        ledger.limit(Limit("pipeline:p", running=4))
        assert ledger.limits() == [Limit("label:gpu", 1), Limit("pipeline:p", 4)]


def _parallel(ledger: Ledger, key: str, pipeline: str) -> Job:
    return submit(ledger, job(step("a"), step("b"), step("c"), key=key, pipeline=pipeline))
