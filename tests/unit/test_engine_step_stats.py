"""The tally: what this run did, and how long a task of a step takes."""

from __future__ import annotations

import pytest

from intermission.engine.step_stats import StepStats


def test_executed_and_adopted_work_are_counted_apart() -> None:
    stats = StepStats()
    stats.finished("hear", [1.0])
    stats.finished("hear", [], adopted=1)
    assert (stats.executed["hear"], stats.adopted["hear"]) == (1, 1)
    assert stats.mean_s("hear") == 1.0, "what was adopted tells nothing about the work"


def test_the_mean_follows_the_newest_tasks() -> None:
    stats = StepStats()
    for _ in range(50):
        stats.finished("hear", [1.0])
    for _ in range(50):
        stats.finished("hear", [3.0])
    assert stats.mean_s("hear") == pytest.approx(3.0, abs=0.01)
    stats.finished("hear", [30.0])
    mean_s = stats.mean_s("hear")
    assert mean_s is not None
    assert mean_s < 10, "one slow task does not decide"


def test_a_batch_counts_like_its_tasks_one_by_one() -> None:
    alone, together = StepStats(), StepStats()
    for stats in (alone, together):
        stats.finished("hear", [1.0])
    for _ in range(5):
        alone.finished("hear", [3.0])
    together.finished("hear", [3.0] * 5, adopted=2)
    assert together.mean_s("hear") == pytest.approx(alone.mean_s("hear"))
    assert together.recent_s == pytest.approx(alone.recent_s)
    assert (together.executed["hear"], together.adopted["hear"]) == (6, 2)


def test_one_short_task_does_not_make_those_of_late_short() -> None:
    stats = StepStats()
    assert stats.recent_s is None
    assert stats.mean_s("hear") is None
    stats.finished("cut", [0.5])
    stats.finished("detect", [0.001])
    assert stats.recent_s is not None
    assert stats.recent_s > 0.3, "whoever claims for a slot now would hoard long tasks"
    for _ in range(50):
        stats.finished("light", [0.00001])
    assert stats.recent_s < 0.0001


def test_a_task_that_is_one_of_a_kind_tells_nothing_of_those_to_come() -> None:
    stats = StepStats()
    stats.finished("plan", [60.0], mapped=False)
    assert stats.recent_s is None
    stats.finished("light", [0.00001])
    stats.finished("join", [60.0], mapped=False)
    assert stats.recent_s == pytest.approx(0.00001)
    assert stats.mean_s("join") == 60.0


def test_failures_are_counted_and_the_last_is_kept() -> None:
    stats = StepStats()
    stats.failed("hear", "it broke")
    stats.failed("hear", "it broke again")
    assert stats.failures["hear"] == 2
    assert stats.last_failure == "hear: it broke again"
