"""Counting the event log: every number from events alone, whenever the counting began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.model import Failure, Job, Reason, identity
from intermission.services.metrics import LOOK_EVERY_S, Metrics
from intermission.services.supervisor import Supervisor
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import chunks, completion, fan_job, job, step, submit
from intermission.web.api.metrics import metrics_router
from intermission.web.problems import install


class Counted:
    """A ledger, and metrics that follow it when told to."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.ledger = SqliteLedger(folder / "ledger.sqlite", clock=self.clock)
        self.metrics = Metrics(self.clock)
        self._seq = 0

    def follow(self) -> None:
        self.clock.advance(LOOK_EVERY_S)
        events = self.ledger.events(self._seq)
        self._seq = events[-1].seq if events else self._seq
        self.metrics.heard(self.ledger, events)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"intermission_{name}", labels)

    def step(self, name: str, step: str, **labels: str) -> float | None:
        return self.value(name, pipeline="pipeline", step=step, **labels)

    def age_s(self) -> float | None:
        return self.value("oldest_pending_seconds", pipeline="pipeline")

    def plan(self, made: Job) -> None:
        (lease,) = self.ledger.claim("w", 1, lease_ttl_s=60)
        self.ledger.complete([completion(self.ledger, made, lease, chunks(3))])


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def test_outcomes_durations_and_jobs(counted: Counted) -> None:
    made = submit(counted.ledger, fan_job(key=identity("a")))
    counted.plan(made)
    first, second = counted.ledger.claim("w", 2, lease_ttl_s=60)
    counted.clock.advance(3)
    counted.ledger.complete([completion(counted.ledger, made, first)])
    counted.ledger.fail([Failure(second.task_id, second.fence, "E", "no", permanent=True)])
    counted.follow()
    assert counted.step("tasks_total", "hear", outcome="done") == 1
    assert counted.step("tasks_total", "hear", outcome="failed") == 1
    assert counted.step("tasks_total", "join", outcome="cancelled") == 1
    assert counted.step("task_seconds_sum", "hear") == 6
    assert counted.step("task_seconds_bucket", "hear", le="5.0") == 2
    assert counted.step("task_seconds_bucket", "hear", le="2.5") == 0
    assert counted.value("jobs", pipeline="pipeline", state="pending") == 0
    assert counted.value("jobs", pipeline="pipeline", state="running") == 1


def test_a_job_is_counted_in_the_state_it_has(counted: Counted) -> None:
    made = submit(counted.ledger, fan_job(key=identity("a")))
    counted.ledger.cancel(made.key, reason="enough")
    counted.follow()
    assert counted.value("jobs", pipeline="pipeline", state="cancelled") == 1
    counted.ledger.retry(made.key)
    counted.follow()
    assert counted.value("jobs", pipeline="pipeline", state="cancelled") == 0
    assert counted.value("jobs", pipeline="pipeline", state="running") == 1


def test_vanished_workers_and_drains_lose_time_but_only_one_loses_a_lease(
    counted: Counted,
) -> None:
    made = submit(counted.ledger, fan_job(key=identity("a")))
    counted.plan(made)
    first, second = counted.ledger.claim("w", 2, lease_ttl_s=60)
    counted.clock.advance(20)
    counted.ledger.release([(first.task_id, first.fence)], reason="SIGTERM")
    counted.clock.advance(50)
    assert counted.ledger.rescue() == 1
    counted.follow()
    assert counted.step("leases_expired_total", "hear") == 1
    assert counted.step("lost_seconds_total", "hear") == 20 + 70
    assert counted.step("tasks_total", "hear", outcome="abandoned") == 2
    assert counted.step("task_seconds_count", "hear") is None
    assert second.attempt == 1


def test_an_interrupted_attempt_is_lost_whatever_becomes_of_its_task(counted: Counted) -> None:
    once = job(step("a", attempts=1), key=identity("a"))
    submit(counted.ledger, once)
    counted.ledger.claim("w", 1, lease_ttl_s=60)
    counted.clock.advance(61)
    assert counted.ledger.rescue() == 1
    assert counted.ledger.cancel(once.key, reason="seen enough")
    submit(counted.ledger, job(step("a", attempts=2), key=identity("b")))
    for took_s in (5, 7):
        (lease,) = counted.ledger.claim("w", 1, lease_ttl_s=60)
        counted.clock.advance(took_s)
        died = Failure(lease.task_id, lease.fence, "SlotDied", "gone", code=Reason.CRASHED)
        counted.ledger.fail([died])
    submit(counted.ledger, job(step("a"), key=identity("c")))
    (lease,) = counted.ledger.claim("w", 1, lease_ttl_s=60)
    counted.clock.advance(11)
    counted.ledger.fail(
        [Failure(lease.task_id, lease.fence, "E", "the slot was killed", permanent=True)]
    )
    counted.follow()
    assert counted.step("lost_seconds_total", "a") == 61 + 5 + 7
    assert counted.step("leases_expired_total", "a") == 1
    assert counted.step("task_seconds_sum", "a") == 11


def test_the_length_of_what_is_done_is_what_a_step_that_reads_the_source_says(
    counted: Counted,
) -> None:
    results = {
        "told": '{"duration_ms": 61500, "sound": "x"}',
        "silent": '{"sound": "x"}',
        "odd": '["duration_ms"]',
        "stored": "",
    }
    for name, result in results.items():
        reader, other = step("audio", reads_source=True), step("mix", one=["audio"])
        made = submit(counted.ledger, job(reader, other, key=identity(name)))
        for said in (result, '{"duration_ms": 5000}'):
            (lease,) = counted.ledger.claim("w", 1, lease_ttl_s=60)
            counted.follow()
            done = completion(counted.ledger, made, lease)
            counted.ledger.complete([replace(done, result=said)])
    counted.follow()
    assert counted.value("jobs", pipeline="pipeline", state="done") == 4
    assert counted.value("media_seconds_total", pipeline="pipeline") == 61.5


def test_nothing_is_shown_before_the_log_was_read_to_its_end(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intermission.services.metrics.PAGE", 2)
    submit(counted.ledger, fan_job(key=identity("a")))
    submit(counted.ledger, fan_job(key=identity("b")))
    app = FastAPI()
    app.include_router(metrics_router(counted.metrics, Supervisor()))
    install(app)
    with TestClient(app) as client:
        counted.metrics.heard(counted.ledger, counted.ledger.events(limit=2))
        early = client.get("/metrics")
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert early.headers["content-type"] == "application/problem+json"
        counted.metrics.heard(counted.ledger, [])
        assert (
            'intermission_jobs{pipeline="pipeline",state="pending"} 2.0'
            in client.get("/metrics").text
        )


def test_the_age_of_the_queue_is_that_of_the_next_in_line(counted: Counted) -> None:
    made = submit(counted.ledger, fan_job(key=identity("a")))
    counted.clock.advance(100)
    counted.follow()
    assert counted.age_s() == 100 + LOOK_EVERY_S  # since the job came
    counted.plan(made)
    counted.clock.advance(30)
    counted.follow()
    assert counted.age_s() == 30 + LOOK_EVERY_S  # since the plan was done
    leases = counted.ledger.claim("w", 3, lease_ttl_s=1000)
    counted.follow()
    assert counted.age_s() == 0
    counted.ledger.release([(leases[2].task_id, leases[2].fence)], reason="drain")
    counted.clock.advance(7)
    counted.follow()
    assert counted.age_s() == 7 + LOOK_EVERY_S  # since it was given back


def test_whoever_begins_later_counts_the_same(counted: Counted) -> None:
    made = submit(counted.ledger, fan_job(key=identity("a")))
    counted.follow()
    counted.plan(made)
    counted.follow()
    later = Metrics(counted.clock)
    later.heard(counted.ledger, counted.ledger.events())

    def totals(metrics: Metrics) -> list[str]:
        lines = metrics.text().decode().splitlines()
        return [line for line in lines if "_created" not in line]

    assert totals(later) == totals(counted.metrics)
    assert "intermission_tasks_total" in later.text().decode()


def test_a_forgotten_job_is_no_trouble(counted: Counted) -> None:
    made = submit(counted.ledger, fan_job(key=identity("a")))
    events = counted.ledger.events()
    counted.ledger.delete(made.key)
    counted.metrics.heard(counted.ledger, events)
    assert counted.value("jobs", pipeline="pipeline", state="pending") is None
