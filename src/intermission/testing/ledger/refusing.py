"""The contract: hosts that cannot run a task give it back, and other hosts get it."""

from __future__ import annotations

from intermission.model import Lease, Reason, TaskState
from intermission.ports.ledger import Refusal
from intermission.testing.jobs import fan_job, job, line_job, step, submit
from intermission.testing.ledger.suite import (
    TTL_S,
    FakeClock,
    Ledger,
    Suite,
    fail,
    finish,
    planned,
    row,
    take,
    take_one,
)

BACK_OFF_S = 300.0


def refuse(ledger: Ledger, *leases: Lease, host: str = "h1", until_s: float = BACK_OFF_S) -> int:
    return ledger.release(
        [(lease.task_id, lease.fence) for lease in leases],
        reason=Reason.NO_DEVICE,
        message=f"{host} has no camera",
        host=host,
        until_s=until_s,
    )


class Refusing(Suite):
    def test_a_host_that_refused_a_task_does_not_get_it_for_a_while(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        assert refuse(ledger, take_one(ledger, host="h1")) == 1
        shown = row(ledger, made, "fetch")
        assert (shown.state, shown.attempts, shown.lost) == (TaskState.ABANDONED, 0, 0)
        assert (shown.refusals, shown.code) == (1, Reason.NO_DEVICE)
        assert shown.message == "h1 has no camera"
        assert take(ledger, host="h1") == []
        clock.advance(BACK_OFF_S - 1)
        assert take(ledger, host="h1") == []
        clock.advance(1)
        assert take_one(ledger, host="h1").attempt == 1

    def test_other_hosts_get_it_at_once(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        refuse(ledger, take_one(ledger, host="h1"))
        lease = take_one(ledger, host="h2")
        assert lease.step == "fetch"
        assert finish(ledger, made, lease) == [True]
        assert row(ledger, made, "fetch").refusals == 0

    def test_a_refusal_is_of_one_task(self, ledger: Ledger) -> None:
        planned(ledger, fan_job(), 3)
        first, second, third = take(ledger, host="h1")
        refuse(ledger, first, third)
        ledger.release([(second.task_id, second.fence)], reason=Reason.DRAINED)
        assert [lease.index for lease in take(ledger, host="h1")] == [1]
        assert [lease.index for lease in take(ledger, host="h2")] == [0, 2]

    def test_hosts_that_refuse_are_counted_once_each(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        for host in ("h1", "h2", "h1", "h3"):
            clock.advance(BACK_OFF_S)
            refuse(ledger, take_one(ledger, host=host), host=host)
        shown = row(ledger, made, "fetch")
        assert (shown.refusals, shown.message) == (3, "h3 has no camera")
        assert take_one(ledger, host="new").attempt == 1

    def test_what_hosts_refuse_is_told_until_it_is_over(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        planned(ledger, fan_job(), 3)
        first, second = take_one(ledger, host="h1"), take_one(ledger, host="h1")
        refuse(ledger, first, second)
        refuse(ledger, take_one(ledger, host="h2"), host="h2", until_s=2 * BACK_OFF_S)
        one, other = ledger.refusals()
        until_ms = clock.now_ms() + 1000 * BACK_OFF_S
        assert one == Refusal("h1", Reason.NO_DEVICE, "h1 has no camera", 2, int(until_ms))
        assert (other.host, other.tasks) == ("h2", 1)
        clock.advance(BACK_OFF_S)
        assert [one.host for one in ledger.refusals()] == ["h2"]

    def test_whoever_does_not_hold_a_lease_refuses_nothing(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        late = take_one(ledger, host="h1")
        clock.advance(TTL_S)
        ledger.rescue()
        take_one(ledger, host="h2")
        assert refuse(ledger, late) == 0
        assert row(ledger, made, "fetch").refusals == 0

    def test_refusals_end_with_the_task_and_when_it_is_retried_by_hand(
        self, ledger: Ledger
    ) -> None:
        made = submit(ledger, job(step("a", attempts=2)))
        refuse(ledger, take_one(ledger, host="h1"))
        assert fail(ledger, take_one(ledger, host="h2")) is TaskState.RETRYING
        assert row(ledger, made, "a").refusals == 1
        assert fail(ledger, take_one(ledger, host="h2"), permanent=True) is TaskState.FAILED
        assert row(ledger, made, "a").refusals == 0
        ledger.retry(made.key)
        lease = take_one(ledger, host="h1")
        refuse(ledger, lease, host="h9")
        assert row(ledger, made, "a").refusals == 1, "that of h1 was forgotten"

    def test_a_refused_task_of_a_deleted_job_leaves_nothing(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        refuse(ledger, take_one(ledger, host="h1"))
        assert ledger.delete(made.key)
        submit(ledger, made)
        assert take_one(ledger, host="h1").step == "fetch"
