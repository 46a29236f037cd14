"""Forgetting: what is left of a job that nobody needs to know of any more. Nothing is."""

from __future__ import annotations

from intermission.ports.ledger import Ledger
from intermission.testing.jobs import chunks, fan_job, line_job, submit
from intermission.testing.ledger.suite import (
    OpenLedger,
    Suite,
    fail,
    finish,
    heartbeat,
    planned,
    run,
    take,
)


class Deletion(Suite):
    def test_the_log_shrinks_with_the_jobs(self, ledger: Ledger) -> None:
        kept, made = (submit(ledger, fan_job(key=key)) for key in ("kept", "gone"))
        run(ledger, made, found=chunks(6))
        run(ledger, kept)
        own = [event for event in ledger.events() if event.job_key == kept.key]
        assert len(own) < len(ledger.events())
        assert ledger.delete(made.key)
        assert ledger.events() == own
        assert [shown.job for shown in ledger.jobs()] == [kept]

    def test_numbers_of_events_are_never_used_again(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        run(ledger, made, found=chunks(3))
        last = ledger.events()[-1].seq
        assert ledger.delete(made.key)
        assert ledger.events() == []
        submit(ledger, made)
        assert all(event.seq > last for event in ledger.events())
        assert ledger.events(last) == ledger.events()
        assert len(run(ledger, made, found=chunks(3))) == 5

    def test_nobody_finds_a_task_of_a_forgotten_job(
        self, ledger: Ledger, open_ledger: OpenLedger
    ) -> None:
        made = planned(ledger, fan_job(), 4)
        late, ended, failed, left = take(ledger)
        assert finish(ledger, made, ended) == [True]
        fail(ledger, failed, permanent=True)
        ledger.release([(one.task_id, one.fence) for one in (late, left)], reason="drain")
        other = open_ledger()
        assert len(list(other.tasks(made.key))) == 6
        assert ledger.delete(made.key)
        for one in (ledger, other):
            assert one.invalidate([ended.task_id], reason="gone") == []
            assert finish(one, made, ended, late) == [False, False]
            assert fail(one, left) is None
            assert heartbeat(one, late, ended).lost == {late.task_id, ended.task_id}
            assert one.retry(made.key) == one.rescue() == 0
            assert take(one) == []
            assert one.workers() == []
            assert one.events() == []
        other.close()

    def test_a_job_that_has_not_begun_is_forgotten(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        assert ledger.delete(made.key)
        assert take(ledger) == []
        assert submit(ledger, made) == made
        assert len(take(ledger)) == 1
