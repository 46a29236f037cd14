"""Tasks that belong together: how they are batched, and what their step is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from engine_bench import Bench

from intermission import Chunk, Context, File, Pipeline, Source, step
from intermission.engine.backlog import TOGETHER_MAX, Backlog
from intermission.engine.inputs import inputs_of
from intermission.engine.planning import make_job
from intermission.engine.run_task import Hooks, run_task
from intermission.engine.step_stats import StepStats
from intermission.errors import PipelineError
from intermission.model import Failure, Lease, StepSpec
from intermission.pipeline import Step
from intermission.ports.work_source import Claimed


class Cell(Chunk):
    row: int
    column: int


@step(version=1)
def cells(rows: int = 3, columns: int = 2) -> list[Cell]:
    return [Cell(row=row, column=column) for row in range(rows) for column in range(columns)]


@step(version=1, attempts=3, batch_by=("row",))
def fill(ctx: Context, cell: Cell) -> list[int]:
    return [one.column for one in ctx.batch if isinstance(one, Cell)]


SHEET = Pipeline("sheet", [cells, fill])


def bench_of(tmp_path: Path, **params: object) -> Bench:
    made = Bench(tmp_path, SHEET, make_job(SHEET, Source("test:x", "f"), params))
    made.submit()
    made.finish(made.take()[0])
    return made


def backlog_of(bench: Bench, leases: list[Lease], stats: StepStats | None = None) -> Backlog:
    job = cast("Any", SimpleNamespace(name="w", job=bench.job))
    backlog = Backlog(stats or StepStats())
    backlog.extend([Claimed(lease, job) for lease in leases])
    return backlog


def anywhere(_: StepSpec) -> bool:
    return True


def next_of(backlog: Backlog) -> list[Lease]:
    return [one.lease for one in backlog.next_batch(anywhere)]


def cell_of(lease: Lease) -> tuple[int, int]:
    cell = Cell.model_validate_json(lease.chunk or "")
    return cell.row, cell.column


def test_a_slot_is_given_what_belongs_together(tmp_path: Path) -> None:
    backlog = backlog_of(bench := bench_of(tmp_path), bench.take(10))
    batches = [next_of(backlog) for _ in range(3)]
    assert [[cell_of(lease) for lease in batch] for batch in batches] == [
        [(row, 0), (row, 1)] for row in range(3)
    ]
    assert not next_of(backlog)


def test_enough_is_claimed_for_the_first_of_them_to_be_whole(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    assert backlog_of(bench, bench.take(1)).room(2, anywhere) == 2 * TOGETHER_MAX - 1


def test_no_more_are_together_than_were_surely_claimed(tmp_path: Path) -> None:
    many = TOGETHER_MAX + 4
    bench = bench_of(tmp_path, rows=1, columns=many)
    backlog = backlog_of(bench, bench.take(many))
    assert len(next_of(backlog)) == TOGETHER_MAX
    assert len(next_of(backlog)) == 4


def test_at_the_last_attempt_each_is_alone(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, rows=1)
    for _ in range(2):  # two attempts of both end with their slot
        leases = bench.take(10)
        assert len(next_of(backlog_of(bench, leases))) == 2
        bench.ledger.fail([Failure(one.task_id, one.fence, "SlotDied", "") for one in leases])
    backlog = backlog_of(bench, bench.take(10))
    assert [len(next_of(backlog)) for _ in range(2)] == [1, 1]


@step(version=1)
def short(cell: Cell) -> int:
    return cell.column


@step(version=1, durable=False)
def light(cell: Cell) -> int:
    return cell.column


@pytest.mark.parametrize(("mapped", "sizes"), [(short, [1, 1]), (light, [6, 0])])
def test_only_what_is_not_durable_is_handed_over_in_batches(
    tmp_path: Path, mapped: Step, sizes: list[int]
) -> None:
    """Nothing waits in a slot behind a task that may turn out long."""
    table = Pipeline("table", [cells, mapped])
    bench = Bench(tmp_path, table, make_job(table, Source("test:x", "f"), {}))
    bench.submit()
    bench.finish(bench.take()[0])
    stats = StepStats()
    stats.finished(f"table/{mapped.name}", [0.001])
    backlog = backlog_of(bench, bench.take(10), stats)
    assert [len(next_of(backlog)) for _ in sizes] == sizes


def test_a_step_is_told_what_belongs_together(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, rows=1)
    hooks = Hooks(cast("Any", None), lambda _: None, lambda: False)
    leases = bench.take(2)
    done = run_task(
        bench.work, leases[0], inputs_of(bench.ledger, bench.job, leases[0]), hooks, leases
    )
    assert done.result == "[0,1]"


def test_only_fields_of_the_chunk_bring_tasks_together() -> None:
    @step(version=1, batch_by=("line",))
    def wrong(cell: Cell) -> int:
        return cell.row

    with pytest.raises(PipelineError, match="line"):
        _ = Pipeline("wrong", [cells, wrong]).specs


class Kept(Chunk):
    no: int


@step(version=1)
def nos() -> list[Kept]:
    return [Kept(no=0)]


@step(version=1)
def keep(ctx: Context, kept: Kept, named: bool = False) -> list[File]:
    large = ctx.out("large")
    large.write_text("not asked for")
    return [large] if named else []


@step(version=1)
def look(keep: list[list[File]]) -> int:
    return sum(len(files) for files in keep)


FILES = Pipeline("files", [nos, keep, look])


@pytest.mark.parametrize("named", [False, True])
def test_only_files_that_a_result_names_are_fetched(tmp_path: Path, named: bool) -> None:
    bench = Bench(tmp_path, FILES, make_job(FILES, Source("test:x", "f"), {"named": named}))
    bench.submit()
    lease = bench.take_until("look")
    for stat in list(bench.store.list("")):
        if stat.key.endswith("/large"):
            bench.store.delete(stat.key)
    if named:
        with pytest.raises(Exception, match="large"):
            bench.run(lease)
    else:
        assert bench.run(lease).result == "0"
