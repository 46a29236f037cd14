"""Which alerts follow from events: the same ones whenever and from wherever they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from intermission.model import LOST_MAX, Event, Failure, Reason, identity
from intermission.ports.ledger import Ledger
from intermission.services.alerts import (
    COOLDOWN_MS,
    KINDS,
    PATTERN_MS,
    Alert,
    Alerts,
    Situation,
)
from intermission.services.metrics import Metrics
from intermission.testing.clock import START_MS, FakeClock
from intermission.testing.jobs import chunks, completion, fan_job, line_job, submit
from intermission.testing.scratch_ledger import scratch_ledger

TTL_S = 60.0


@pytest.fixture
def ledger(clock: FakeClock) -> Iterator[Ledger]:
    found = scratch_ledger(clock)
    yield found
    found.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def event(
    seq: int, now: str, *, at_s: float = 0, job: str = "j", was: str = "running", **more: object
) -> Event:
    fields = {"task": "hear[1]", "message": "ValueError: no", **more}
    step = str(fields.get("task") or "").partition("[")[0]
    at_ms = START_MS + round(at_s * 1000)
    return Event(seq, at_ms, job, 1, was=was, now=now, step=step, **fields)  # type: ignore[arg-type]


def failing(seq: int, at_s: float, **more: object) -> Event:
    return event(seq, "retrying", at_s=at_s, **more)  # type: ignore[arg-type]


def derived(events: Sequence[Event], kinds: Sequence[str] = KINDS) -> list[Alert]:
    alerts = Alerts(kinds)
    return [alert for one in events for alert in alerts.after(one, "film")]


def kinds(alerts: Sequence[Alert]) -> list[str]:
    return [alert.kind for alert in alerts]


def test_a_lost_lease_is_told_and_a_drain_is_not(ledger: Ledger, clock: FakeClock) -> None:
    made = submit(ledger, fan_job(key=identity("a")))
    (lease,) = ledger.claim("w", 1, lease_ttl_s=TTL_S)
    ledger.complete([completion(ledger, made, lease, chunks(2))])
    first, second = ledger.claim("host-1", 2, lease_ttl_s=TTL_S)
    ledger.release([(first.task_id, first.fence)], reason="SIGTERM")
    assert derived(ledger.events()) == []
    clock.advance(TTL_S + 1)
    ledger.rescue()
    (alert,) = derived(ledger.events())
    assert (alert.kind, alert.at_ms) == ("task.recovered", clock.now_ms())
    assert alert.subject["task"] == f"hear[{second.index}]"
    assert (alert.subject["job"], alert.subject["pipeline"]) == (made.key, "film")
    assert "host-1 vanished" in alert.message
    assert alert.remedy == f"intermission inspect {made.key[:10]} 'hear[{second.index}]'"


def test_exhausted_attempts_are_told_however_the_last_one_ended(
    ledger: Ledger, clock: FakeClock
) -> None:
    failed = submit(ledger, line_job(key=identity("failed")))
    (lease,) = ledger.claim("w", 1, lease_ttl_s=TTL_S)
    ledger.fail([Failure(lease.task_id, lease.fence, "E", "no luck", permanent=True)])
    vanished = submit(ledger, fan_job(key=identity("vanished")))
    for _ in range(LOST_MAX):
        assert ledger.claim("w", 1, lease_ttl_s=TTL_S)
        clock.advance(TTL_S + 1)
        ledger.rescue()
    alerts = [one for one in derived(ledger.events()) if one.kind == "task.exhausted"]
    assert [one.subject["job"] for one in alerts] == [failed.key, vanished.key]
    assert "no luck" in alerts[0].message
    assert "vanished" in alerts[1].message
    assert f"intermission retry {failed.key[:10]}" in alerts[0].remedy


def test_five_failures_with_one_code_are_a_pattern_whatever_their_messages_say() -> None:
    messages = ["no luck", "out of memory", "KeyError: 'a'", "3 of 4", "nichts da"]
    events = [
        failing(n, 60 * n, message=said, code=Reason.FAILED) for n, said in enumerate(messages)
    ]
    assert derived(events[:4]) == []
    (alert,) = derived(events)
    assert alert.kind == "failures.pattern"
    assert alert.subject["code"] == "failed"
    assert "nichts da" in alert.message
    assert alert.remedy == "intermission failures --pipeline film --step hear"


@pytest.mark.parametrize("words", ["lost", "the lease expired", "host fault: no device", ""])
def test_the_words_of_a_message_change_no_alert_and_no_metric(ledger: Ledger, words: str) -> None:
    made = submit(ledger, line_job(key="j"))

    def told(message: str) -> tuple[list[tuple[object, ...]], list[str]]:
        alerts, metrics, seq = Alerts(KINDS), Metrics(FakeClock()), 0
        found: list[tuple[object, ...]] = []
        for now in ("abandoned", "retrying", "failed", "done", "cancelled"):
            for code in Reason:
                leased = event(seq + 1, "leased", was="pending", at_s=600 * seq, task="fetch")
                more = {"code": code, "message": message, "task": "fetch"}
                ended = event(seq + 2, now, at_s=600 * seq + 1, **more)  # type: ignore[arg-type]
                metrics.heard(ledger, [leased, ended])
                for one in alerts.after(ended, made.pipeline, refusals=3):
                    found.append((one.id, one.kind, one.subject, one.remedy))
                seq += 2
        counted = [line for line in metrics.text().decode().splitlines() if "_created" not in line]
        return found, counted

    assert told(words) == told("ValueError: no")
    assert {kind for _, kind, *_ in told(words)[0]} >= {"task.stuck", "task.recovered"}


def test_other_failures_and_older_ones_do_not_count() -> None:
    slow = [failing(n, 151 * n) for n in range(8)]
    assert (slow[4].at_ms - slow[0].at_ms) > PATTERN_MS
    assert derived(slow) == []
    codes = (Reason.FAILED, Reason.TIMED_OUT, Reason.CRASHED, Reason.INVALID, Reason.LOST)
    assert derived([failing(n, n, code=code) for n, code in enumerate(codes)]) == []
    steps = [failing(n, n, task=f"step{'abcde'[n]}[1]") for n in range(5)]
    assert derived(steps) == []


def test_what_comes_within_the_cooldown_is_counted_in_the_next() -> None:
    cooldown_s = COOLDOWN_MS / 1000
    times = [0, 1, 2, cooldown_s - 0.001, cooldown_s, cooldown_s + 5, 3 * cooldown_s]
    events = [event(n, "failed", at_s=at_s) for n, at_s in enumerate(times)]
    alerts = derived(events, ["task.exhausted"])
    assert [one.subject["seq"] for one in alerts] == [0, 4, 6]
    assert [one.held_back for one in alerts] == [0, 3, 1]


def test_a_cooldown_is_of_one_kind_and_one_subject() -> None:
    events = [event(1, "failed", job="a"), event(2, "failed", job="b")]
    events.append(event(3, "abandoned", job="a", code=Reason.LOST))
    assert kinds(derived(events)) == ["task.exhausted", "task.exhausted", "task.recovered"]


def test_a_clock_that_is_set_back_does_not_silence() -> None:
    events = [event(1, "failed", at_s=7200), event(2, "failed", at_s=0)]
    assert len(derived(events)) == 2


def test_ids_are_of_the_event_and_of_the_ledger_it_is_in() -> None:
    one, again, elsewhere = (event(7, "failed", at_s=at_s) for at_s in (0, 0, 1))
    ids = [derived([found])[0].id for found in (one, again, elsewhere)]
    assert ids[0] == ids[1] != ids[2]


def test_only_wanted_kinds_are_derived() -> None:
    events = [event(n, "failed", at_s=n) for n in range(5)]
    assert kinds(derived(events)) == ["task.exhausted", "failures.pattern"]
    assert kinds(derived(events, ["failures.pattern"])) == ["failures.pattern"]
    assert derived(events, []) == []


def test_whoever_goes_on_from_a_cursor_tells_the_same() -> None:
    events = [
        event(n, "failed" if n % 3 else "retrying", at_s=n * 37.7, job=f"job{n % 4}")
        for n in range(200)
    ]
    whole = derived(events)
    assert {"task.exhausted", "failures.pattern"} == set(kinds(whole))
    assert any(one.held_back for one in whole)
    for cut in range(0, 200, 7):
        first = Alerts(KINDS)
        before = [alert for one in events[:cut] for alert in first.after(one, "film")]
        second = Alerts(KINDS, first.state())
        after = [alert for one in events[cut:] for alert in second.after(one, "film")]
        assert before + after == whole, cut


def test_what_is_remembered_stays_small() -> None:
    alerts = Alerts(KINDS)
    for n in range(5000):
        message = f"{'abcdefghij'[n % 10]} {'klmnopqrst'[n // 10 % 10] * (n // 100)}"
        alerts.after(event(n, "failed", at_s=n, job=f"job{n}", message=message), "film")
    assert len(alerts.state()) < 200_000
    json.loads(alerts.state())


def test_a_long_message_is_cut() -> None:
    (alert,) = derived([event(1, "failed", message="x" * 100_000)])
    assert len(alert.message) <= 1000


def situation(key: str = "here", kind: str = "disk.low") -> Situation:
    return Situation(kind, key, {"folder": key}, "it is full", "empty it")


def test_a_situation_that_lasts_is_told_once_per_cooldown() -> None:
    alerts = Alerts(KINDS)
    told = [
        (at_s, alert.held_back)
        for at_s in range(0, 900, 60)
        for alert in alerts.about([situation()], START_MS + at_s * 1000)
    ]
    assert told == [(0, 0), (300, 4), (600, 4)]


def test_a_situation_has_the_same_id_for_a_while_and_only_there() -> None:
    start_ms = START_MS - START_MS % COOLDOWN_MS

    def id(one: Situation, at_ms: int) -> str:
        (alert,) = Alerts(KINDS).about([one], at_ms)
        return alert.id

    first = id(situation(), start_ms)
    assert id(situation(), start_ms + COOLDOWN_MS - 1) == first
    assert id(situation(), start_ms + COOLDOWN_MS) != first
    assert id(situation("there"), start_ms) != first
    assert Alerts(["queue.old"]).about([situation()], start_ms) == []
