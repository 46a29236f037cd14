"""Running one task: from its lease to its receipt, or to nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_bench import Bench

from intermission import Chunk, Context, Pipeline, Source, step
from intermission.backends.source_files import identify
from intermission.backends.store.memory import MemoryStore
from intermission.engine.inputs import inputs_of, skipped_inputs
from intermission.engine.planning import make_job
from intermission.engine.receipt import receipt_key
from intermission.errors import Permanent, SourceChanged
from intermission.model import RESULT_INLINE_MAX_BYTES, FileRef, Job, JobState, Receipt
from intermission.pipeline import Deferred
from intermission.telemetry import listen
from intermission.testing.faults import Crashed, crashing
from intermission.testing.simulator.sample_pipeline import GAP

LIFE = ["before-step", "after-step", "after-artifacts", "before-receipt", "after-receipt"]


class Line(Chunk):
    no: int


@step(version=1)
def lines(ctx: Context, source: Source, count: int = 2) -> list[Line]:
    ctx.progress(0.5)
    return [Line(no=no) for no in range(count)]


@step(version=1)
def large(ctx: Context, line: Line, size: int = RESULT_INLINE_MAX_BYTES) -> str:
    ctx.progress(0.5)
    return str(line.no) * size


@step(version=1)
def total(ctx: Context, large: list[str]) -> int:
    ctx.progress(0.5)
    return sum(map(len, large))


@step(version=1)
def odd(ctx: Context, total: int, kind: str = "nothing") -> str:
    ctx.progress(0.5)
    out = ctx.out("odd.txt")
    if kind == "link":
        out.symlink_to("/etc/hostname")
    elif kind == "error":
        out.write_text("half")
        raise RuntimeError("it broke")
    elif kind == "defer":
        ctx.defer("token", timeout_s=5)
    return ctx.idempotency_key


LARGE = Pipeline("large", [lines, large, total, odd])


def bench_of(tmp_path: Path, source: Source | None = None, **params: object) -> Bench:
    job: Job = make_job(LARGE, source or Source("test:x", "f"), params)
    made = Bench(tmp_path / "scratch", LARGE, job)
    made.submit()
    return made


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.submit()
    return made


def test_a_finished_task_is_not_run_again(bench: Bench) -> None:
    lease = bench.take_until("hear")
    first = bench.run(lease)
    again = bench.run(lease)
    assert bench.ran.count("hear[0]") == 1
    assert (first.adopted, again.adopted) == (False, True)
    assert again.receipt == first.receipt


def test_of_two_attempts_at_once_one_stands(bench: Bench) -> None:
    """A second attempt is through before the first, which looked before there was a receipt."""
    lease = bench.take_until("hear")
    overtaken: list[object] = []
    create = bench.store.create

    def slowly(key: str, data: bytes | Path) -> object:
        if key.startswith("receipts/hear/") and not overtaken:
            overtaken.append(None)
            overtaken[0] = bench.run(lease)
        return create(key, data)

    bench.store.create = slowly  # type: ignore[assignment]
    late = bench.run(lease)
    (winner,) = overtaken
    assert bench.ran.count("hear[0]") == 2
    assert late.adopted
    assert late.receipt == winner.receipt  # type: ignore[attr-defined]
    assert len(bench.keys("receipts/hear/")) == 1


def test_a_light_task_stores_nothing(bench: Bench) -> None:
    lease = bench.take_until("level")
    before = bench.keys("")
    completion = bench.run(lease)
    assert (completion.result, completion.receipt) == ("0", None)
    assert bench.keys("") == before


@pytest.mark.parametrize("point", LIFE)
def test_a_crash_at_any_point_costs_one_attempt_at_most(bench: Bench, point: str) -> None:
    lease = bench.take_until("hear")
    with crashing(point), pytest.raises(Crashed):
        bench.run(lease)
    completion = bench.run(lease)
    assert completion.adopted is (point == "after-receipt")
    (key,) = bench.keys("receipts/hear/")
    assert completion.receipt is not None
    assert bench.store.read(key).decode() == completion.receipt.to_json()
    bench.finish(lease)
    bench.finish_all()
    assert bench.ledger.jobs()[0].state is JobState.DONE


def test_a_gap_is_named_by_its_parameter_and_place(bench: Bench) -> None:
    lease = bench.take_until("join")
    assert skipped_inputs(bench.job, "join", inputs_of(bench.ledger, bench.job, lease)) == [
        f"mark:{GAP}"
    ]
    completion = bench.run(lease)
    assert completion.receipt is not None
    assert completion.receipt.task_key != lease.key
    assert completion.key == lease.key


def test_a_receipt_tells_what_the_key_was_made_of(bench: Bench) -> None:
    bench.finish_all()
    made = bench.receipt("mark[1]")
    assert made.parts == {"version": "1", "input hear": bench.receipt("hear[1]").task_key}
    assert made.chunk == '{"no":1}'
    assert made.worker == "w"


def test_a_large_result_is_a_file_that_the_next_step_gets_whole(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.finish_all()
    made = bench.receipt("large[1]")
    assert made.result == ""
    assert [file.name for file in made.files] == ["result.json"]
    assert bench.receipt("total").result == str(2 * RESULT_INLINE_MAX_BYTES)


def test_a_result_that_just_fits_stays_in_the_receipt(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, size=RESULT_INLINE_MAX_BYTES - 2)  # its quotation marks count
    bench.finish_all()
    assert len(bench.receipt("large[0]").result) == RESULT_INLINE_MAX_BYTES
    assert bench.receipt("large[0]").files == ()


def test_what_a_failed_attempt_wrote_is_removed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, kind="error")
    lease = bench.take_until("odd")
    with pytest.raises(RuntimeError):
        bench.run(lease)
    assert not list((bench.scratch / "artifacts" / "odd").rglob("*.txt"))
    assert bench.keys("receipts/odd/") == []


def test_a_link_is_no_output(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, kind="link")
    lease = bench.take_until("odd")
    with pytest.raises(Permanent, match=r"odd\.txt"):
        bench.run(lease)
    assert bench.keys("artifacts/odd/") == []


def test_a_deferred_task_leaves_nothing_behind(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, kind="defer")
    lease = bench.take_until("odd")
    with pytest.raises(Deferred) as caught:
        bench.run(lease)
    assert (caught.value.token, caught.value.timeout_s) == ("token", 5)
    assert bench.keys("receipts/odd/") == []


def test_every_attempt_has_the_same_idempotency_key(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    lease = bench.take_until("odd")
    assert bench.run(lease).result == f'"{lease.key}"'


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_source_that_is_swapped_stops_the_task(tmp_path: Path, when: str) -> None:
    path = tmp_path / "talk.txt"
    path.write_text("one content")
    bench = bench_of(tmp_path, identify(path, MemoryStore()))
    (lease,) = bench.take()
    if when == "before":
        path.write_text("another content")
    else:
        bench.ran = _Swapping(path)
    with pytest.raises(SourceChanged):
        bench.run(lease)
    assert bench.keys("receipts/") == []


class _Swapping(list[str]):
    """Swaps the source while the step is running."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def append(self, name: str) -> None:
        super().append(name)
        self._path.write_text("another content")


def test_a_late_receipt_whose_files_are_gone_does_not_stand(tmp_path: Path) -> None:
    """A stopped attempt wakes after its files were collected, and is first with its receipt."""
    made = Bench(tmp_path)
    made.submit()
    (lease,) = made.take()
    gone = FileRef("sound.wav", "artifacts/audio/k/00000-late/sound.wav", 1, "0" * 64)
    late = Receipt(lease.key, "audio", 1, "00000-late", 0, "1", (gone,))

    def passing(point: str) -> None:
        if point == "before-receipt" and not made.keys("receipts/"):
            made.store.create(receipt_key("audio", lease.key), late.to_json().encode())

    with listen(passing):
        assert made.finish(lease)
    stands = made.receipt("audio")
    assert stands.attempt != late.attempt
    assert all(made.store.stat(file.key) is not None for file in stands.files)
