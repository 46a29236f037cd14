"""A plan that is added a page at a time, with a crash between any two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_bench import Bench

from intermission import Chunk, Pipeline, Source, step
from intermission.engine import completion
from intermission.engine.planning import make_job
from intermission.model import JobState, TaskState
from intermission.ports.ledger import every_task
from intermission.telemetry import listen
from intermission.testing.faults import Crashed, crashing

PAGE = 7
COUNT = 25
PAGES = -(-(2 * COUNT + 1) // PAGE)


class Number(Chunk):
    n: int


@step(version=1)
def numbers(count: int = COUNT) -> Iterator[Number]:
    for n in range(count):
        yield Number(n=n)


@step(version=1)
def doubled(number: Number) -> int:
    return 2 * number.n


@step(version=1, durable=False)
def shown(number: Number, doubled: int) -> str:
    return f"{number.n}: {doubled}"


@step(version=1)
def total(shown: list[str]) -> list[str]:
    return shown


PIPELINE = Pipeline("paged", [numbers, doubled, shown, total])


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "PAGE_TASKS", PAGE)


def paged(folder: Path) -> Bench:
    bench = Bench(folder, PIPELINE, make_job(PIPELINE, Source("file:///a.mp4", "f"), {}))
    bench.submit()
    return bench


def test_no_transaction_adds_more_than_a_page(tmp_path: Path) -> None:
    bench = paged(tmp_path)
    passed: list[int] = []

    def passing(point: str) -> None:
        if point == "before-expand":
            passed.append(bench.ledger.jobs()[0].total() - 1)

    with listen(passing):
        bench.finish(bench.take()[0])
    assert passed == [n * PAGE for n in range(PAGES)]
    assert bench.ledger.jobs()[0].total() == 2 + 2 * COUNT


def test_what_was_added_runs_before_the_last_page_and_a_fan_in_does_not(tmp_path: Path) -> None:
    bench = paged(tmp_path)
    (plan,) = bench.take()
    done = bench.run(plan)
    with pytest.raises(Crashed), crashing("before-expand", PAGES):
        completion.complete(bench.ledger, bench.store, bench.job, [(plan, done)], bench.scratch)
    ran = 0
    while leases := [one for one in bench.take(9) if one.step != "numbers"]:
        for lease in leases:
            assert bench.finish(lease)
            ran += 1
    assert ran == (PAGES - 1) * PAGE
    states = {row.name: row.state for row in every_task(bench.ledger, bench.job.key)}
    assert states.get("total", TaskState.BLOCKED) is TaskState.BLOCKED
    assert bench.ledger.jobs()[0].state is JobState.RUNNING


@pytest.mark.parametrize("nth", range(1, PAGES + 1))
def test_a_crash_between_two_pages_changes_no_byte(nth: int, tmp_path: Path) -> None:
    whole = paged(tmp_path / "whole")
    whole.finish_all()
    bench = paged(tmp_path / "crashed")
    with pytest.raises(Crashed), crashing("before-expand", nth):
        bench.finish(bench.take()[0])
    bench.ledger.rescue(["w"])
    bench.finish_all()
    assert bench.ledger.jobs()[0].state is JobState.DONE
    assert bench.states() == whole.states()
    assert bench.receipt("total").result == whole.receipt("total").result
    keys = [{row.name: row.key for row in one.ledger.tasks(one.job.key)} for one in (bench, whole)]
    assert keys[0] == keys[1]
