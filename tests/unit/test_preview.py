"""What is published of a job while it runs: in order, never less than before, never too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from engine_bench import Bench

from intermission import Chunk, Context, Pipeline, Source, step
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.memory import MemoryStore
from intermission.backends.work_source.open_job import OpenJob
from intermission.engine.planning import make_job
from intermission.engine.workspace import Workspace
from intermission.errors import PipelineError
from intermission.maintenance.preview import Previews, _Watched
from intermission.ports.store import Store
from intermission.settings import Settings

NAME = "list.txt"


class Piece(Chunk):
    number: int


@step(version=1)
def pieces(many: int = 4) -> list[Piece]:
    return [Piece(number=number) for number in range(many)]


@step(version=1)
def made(ctx: Context, piece: Piece) -> int:
    ctx.progress(1)
    return piece.number


@step(version=1, publish="{version}{name}")
def gather(ctx: Context, made: list[int]) -> int:
    ctx.out(NAME).write_text("".join(map(str, made)) + ".")
    return len(made)


def following(made: list[int | None], many: int) -> dict[str, str]:
    return {NAME: "".join(str(one) for one in made if one is not None)}


ROW = Pipeline("row", [pieces, made, gather], preview=following)


class Hooked(MemoryStore):
    """Calls `hook` before everything that is asked of it."""

    hook: Callable[[], None] = staticmethod(lambda: None)

    def __getattribute__(self, name: str) -> Any:
        if name in ("stat", "read", "create", "replace"):
            MemoryStore.__getattribute__(self, "hook")()
        return MemoryStore.__getattribute__(self, name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, ROW, make_job(ROW, Source("file:///a.mp4", "f"), {}))
    bench.submit()
    return bench


def opened(bench: Bench, store: Store | None = None, outputs: Store | None = None) -> Any:
    workspace = Workspace(
        bench.scratch,
        lambda: store or bench.store,
        lambda: outputs or bench.outputs,
        lambda: SqliteLedger(bench.ledger.path, clock=bench.clock),
    )
    return OpenJob(workspace, bench.job, bench.ledger, bench.store, "w", Settings())


def watching(bench: Bench, pipeline: Pipeline = ROW, **stores: Store) -> _Watched:
    return _Watched(opened(bench, **stores), pipeline)


def finish(bench: Bench, *numbers: int) -> None:
    """Do the tasks of these chunks, and put the others back."""
    leases = bench.take(100)
    wanted = [one for one in leases if one.step != "made" or one.index in numbers]
    bench.ledger.release(
        [(one.task_id, one.fence) for one in leases if one not in wanted], reason=""
    )
    for lease in wanted:
        assert bench.finish(lease)


def text(bench: Bench) -> str | None:
    return bench.outputs.read(NAME).decode() if bench.outputs.stat(NAME) else None


def test_it_grows_with_what_is_done(bench: Bench) -> None:
    watched = watching(bench)
    watched.look()
    assert text(bench) is None, "which pieces there are is not known yet"
    finish(bench)
    for numbers, wanted in (((1,), "1"), ((0,), "01"), ((2, 3), "01")):
        finish(bench, *numbers)
        if numbers == (2, 3):
            bench.finish_all()
            wanted = "0123."
        watched.look()
        assert text(bench) == wanted


class Counting(SqliteLedger):
    """Counts the outputs and events that are read from it."""

    read = 0

    def outputs(self, *asked: Any, **how: Any) -> list[Any]:
        return self._tally(super().outputs(*asked, **how))

    def events(self, *asked: Any, **how: Any) -> list[Any]:
        return self._tally(super().events(*asked, **how))

    def _tally(self, rows: list[Any]) -> list[Any]:
        self.read += len(rows)
        return rows


def test_a_look_reads_what_is_new_since_the_last_one(tmp_path: Path) -> None:
    many = 40
    bench = Bench(tmp_path, ROW, make_job(ROW, Source("file:///a.mp4", "f"), {"many": many}))
    bench.submit()
    finish(bench)
    watched = watching(bench)
    watched._ledger = counting = Counting(bench.ledger.path, clock=bench.clock)
    watched.look()
    costs = []
    for number in range(many):
        (lease,) = bench.take()
        assert (lease.index, bench.finish(lease)) == (number, True)
        before = counting.read
        watched.look()
        costs.append(counting.read - before)
        before = counting.read
        watched.look()
        assert counting.read == before, "nothing is new"
    assert text(bench) == "".join(map(str, range(many - 1))), "the last one is for the step itself"
    assert max(costs) <= 8, "a look costs the same, however much is done"
    counting.close()


def test_a_result_that_is_lost_is_left_out_and_comes_back(bench: Bench) -> None:
    watched = watching(bench)
    finish(bench)
    finish(bench, 0, 1)
    watched.look()
    assert text(bench) == "01"
    (row,) = [row for row in bench.ledger.tasks(bench.job.key, step="made") if row.index == 0]
    bench.ledger.invalidate([row.id], reason="lost")
    finish(bench, 2, 3)
    watched.look()
    assert text(bench) == "123"


def test_the_end_is_the_steps_own(bench: Bench) -> None:
    """Whoever looked before the last results came is too late, whenever it goes on."""
    late = watching(bench)
    finish(bench)
    finish(bench, 0)
    texts = {NAME: "0"}
    bench.finish_all()
    assert text(bench) == "0123."
    assert late._publish(bench.ledger, texts, 1)
    assert text(bench) == "0123."


def benches(tmp_path: Path) -> Iterator[Bench]:
    for number in count():
        bench = Bench(tmp_path / str(number), ROW, make_job(ROW, Source("file:///a.mp4", "f"), {}))
        bench.submit()
        finish(bench)
        finish(bench, 0)
        yield bench


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("what", ["a newer look", "the end"])
def test_it_never_shrinks_whatever_happens_meanwhile(
    tmp_path: Path, what: str, is_begun: bool
) -> None:
    """Everything that another worker does, between any two calls of one that has seen less."""
    tried = 0
    for nth, bench in enumerate(benches(tmp_path), 1):
        if is_begun:
            watching(bench).look()
        happened = False

        def act(bench: Bench = bench) -> None:
            nonlocal happened
            happened = True
            if what == "the end":
                bench.finish_all()
            else:
                finish(bench, 1, 2)
                watching(bench).look()

        slow_down(bench, nth, act)
        if not happened:
            break
        tried += 1
        assert text(bench) == ("0123." if what == "the end" else "012")
    assert tried > 4


def slow_down(bench: Bench, nth: int, act: Callable[[], None]) -> None:
    """One that has seen one result publishes it; before its nth call to a store, `act` happens."""
    calls = count(1)

    def hook() -> None:
        if next(calls) == nth:
            act()

    stores = [Hooked(bench.clock), Hooked(bench.clock)]
    for hooked, real in zip(stores, (bench.store, bench.outputs), strict=True):
        hooked.__dict__ |= {**real.__dict__, "hook": hook}
    slow = watching(bench, store=stores[0], outputs=stores[1])
    slow._publish(bench.ledger, {NAME: "0"}, 1)


def test_broken_code_is_left_out(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def broken(made: list[int | None]) -> dict[str, str]:
        raise ZeroDivisionError("by zero")

    finish(bench)
    finish(bench, 0)
    watched = watching(bench, Pipeline("row", [pieces, made, gather], preview=broken))
    watched.look()
    watched.look()
    assert [record.message for record in caplog.records] == [
        "the preview of row is broken (ZeroDivisionError: by zero): left out"
    ]


def test_a_last_look_is_taken_at_the_end(bench: Bench) -> None:
    finish(bench)
    finish(bench, 0)
    previews = Previews()
    watched = opened(bench)
    previews.watch(watched, ROW)
    finish(bench, 1)
    watched.resources.close()
    previews.close()
    assert text(bench) == "01"


def test_a_preview_takes_what_there_is() -> None:
    with pytest.raises(PipelineError, match="its preview takes 'sound'"):
        Pipeline("row", [pieces, made, gather], preview=lambda sound: {})
