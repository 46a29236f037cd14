"""What a job that failed put beside the version in use: collected, and back when it is tried again.

Every test has a first job that is done and in front, and a second one, another way of the same.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from engine_bench import Bench

from intermission import Chunk, Context, Pipeline, Source, step
from intermission.engine.planning import make_job
from intermission.errors import Permanent
from intermission.maintenance.gc import Swept, collect
from intermission.maintenance.superseded_outputs import bring_back, given_up_ms
from intermission.model import JobState, TaskState

GRACE_S = 100.0
PARTS = 3
BROKEN: set[str] = set()
"""The steps, and the parts, that fail."""


class Part(Chunk):
    number: int


@step(version=1)
def parts(way: str = "") -> list[Part]:
    return [Part(number=n) for n in range(PARTS)]


@step(version=1, publish="{version}{name}", on_error="skip")
def make(ctx: Context, part: Part, way: str = "") -> int:
    if f"make {part.number}" in BROKEN:
        raise Permanent("this part cannot be made.")
    ctx.progress(1)
    ctx.out(f"{part.number}.txt").write_text(f"{way} {part.number}")
    return part.number


@step(version=1, entrypoints=True)
def lead(ctx: Context, make: list[int | None]) -> int:
    if None in make or "lead" in BROKEN:
        raise Permanent("it is not whole.")
    ctx.out("list.txt").write_text("".join(f"{{version}}{n}.txt\n" for n in make))
    return len(make)


STAGES = Pipeline("stages", [parts, make, lead], output="out")


class Two(Bench):
    """Two jobs over one source, the second of which is at hand."""

    def __init__(self, scratch: Path) -> None:
        source = Source("file:///media/film.mp4", "f" * 64, 1)
        first, second = (make_job(STAGES, source, {"way": way}) for way in ("old", "new"))
        super().__init__(scratch, STAGES, first)
        self.submit()
        self.finish_all()
        assert self.leads_to() == ["old 0", "old 1", "old 2"]
        self.job = second
        self.work = self.work_on(second, STAGES)

    def leads_to(self) -> list[str]:
        """What somebody sees who begins at the front."""
        names = self.outputs.read("list.txt").decode().split()
        return [self.outputs.read(name).decode() for name in names]

    def staged(self) -> list[str]:
        return [stat.key for stat in self.outputs.list(f"{self.job.key[:10]}/")]

    def fail(self, *broken: str) -> None:
        BROKEN.update(broken)
        self.submit()
        self.finish_all()
        BROKEN.clear()
        assert self.state() is JobState.FAILED

    def state(self) -> JobState:
        return self.ledger.jobs(self.job.key)[0].state

    def sweep(self, *, dry_run: bool = False) -> Swept:
        return collect(
            self.store,
            self.clock,
            grace_s=GRACE_S,
            dry_run=dry_run,
            outputs_of=lambda _: self.outputs,
            given_up_ms=partial(given_up_ms, self.ledger),
        )

    def sweep_for_long(self) -> None:
        for _ in range(3):
            self.sweep()
            self.clock.advance(GRACE_S)
        self.sweep()


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def test_it_goes_in_the_second_pass_a_grace_later(two: Two) -> None:
    two.fail("make 1")
    staged = two.staged()
    assert len(staged) == PARTS - 1
    assert two.sweep() == Swept(0, 0, 2)
    two.clock.advance(GRACE_S - 1)
    assert two.sweep() == Swept(0, 0, 2)
    two.clock.advance(1)
    assert two.sweep(dry_run=True).removed == 2
    assert two.staged() == staged
    assert two.sweep().removed == 2
    assert two.staged() == []
    assert two.leads_to() == ["old 0", "old 1", "old 2"]
    assert two.sweep() == Swept(0, 0, 0)


def test_so_does_what_was_cancelled(two: Two) -> None:
    two.submit()
    two.finish(two.take_until("make"))
    two.ledger.cancel(two.job.key, reason="enough")
    assert len(two.staged()) == 1
    two.sweep_for_long()
    assert two.staged() == []


def test_what_was_interrupted_stays(two: Two) -> None:
    two.submit()
    two.finish(two.take_until("make"))
    two.sweep_for_long()
    assert len(two.staged()) == 1
    two.finish_all()
    assert two.leads_to() == ["new 0", "new 1", "new 2"]


def test_the_grace_begins_when_it_failed_last(two: Two) -> None:
    two.fail("make 1")
    two.sweep()
    two.clock.advance(GRACE_S * 2)
    two.ledger.retry(two.job.key)
    two.fail("make 1")
    two.sweep()
    assert len(two.staged()) == PARTS - 1
    two.clock.advance(GRACE_S)
    two.sweep()
    assert two.staged() == []


def test_what_is_tried_again_is_not_taken(two: Two) -> None:
    two.fail("make 1")
    two.sweep()
    two.clock.advance(GRACE_S * 2)
    two.ledger.retry(two.job.key)
    two.sweep_for_long()
    assert len(two.staged()) == PARTS - 1
    two.finish_all()
    assert two.leads_to() == ["new 0", "new 1", "new 2"]


def test_a_job_that_begins_again_during_a_pass_loses_no_more(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it lost comes back."""
    two.fail("make 2")
    two.sweep()
    two.clock.advance(GRACE_S)
    delete = two.outputs.delete

    def begin_again(key: str) -> None:
        delete(key)
        two.ledger.retry(two.job.key)

    monkeypatch.setattr(two.outputs, "delete", begin_again)
    assert two.sweep().removed == 1
    assert len(two.staged()) == 1
    bring_back(two.ledger, two.store, two.job)
    two.finish_all()
    assert two.leads_to() == ["new 0", "new 1", "new 2"]


def test_what_was_collected_is_put_back_before_anything_leads_there(two: Two) -> None:
    two.fail("make 1")
    two.sweep_for_long()
    two.ledger.retry(two.job.key)
    assert bring_back(two.ledger, two.store, two.job) == PARTS - 1
    assert bring_back(two.ledger, two.store, two.job) == 0, "once is enough"
    assert two.states()["lead"] is TaskState.BLOCKED
    assert two.finish_all() == ["make[1]"], "the others have their receipts"
    assert two.leads_to() == ["new 0", "new 1", "new 2"]
    assert two.state() is JobState.DONE


def test_it_is_collected_again_if_it_fails_again(two: Two) -> None:
    two.fail("make 1")
    two.sweep_for_long()
    two.ledger.retry(two.job.key)
    bring_back(two.ledger, two.store, two.job)
    two.fail("make 1")
    assert len(two.staged()) == PARTS - 1
    two.sweep_for_long()
    assert two.staged() == []


def test_what_lacks_its_front_alone_stays(two: Two) -> None:
    two.fail("lead")
    two.sweep_for_long()
    assert len(two.staged()) == PARTS


def test_nothing_goes_while_nothing_is_in_front(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.store.delete("published/.versions/stages.json")
    two.fail("make 1")  # it is taken for the first
    before = [stat.key for stat in two.outputs.list("")]
    two.sweep_for_long()
    assert [stat.key for stat in two.outputs.list("")] == before


def test_jobs_of_other_pipelines_and_unknown_ones_are_not_given_up(two: Two) -> None:
    two.fail("make 1")
    assert given_up_ms(two.ledger, "stages", two.job.key) is not None
    assert given_up_ms(two.ledger, "other", two.job.key) is None
    assert given_up_ms(two.ledger, "stages", "0" * 40) is None
    assert given_up_ms(None, "stages", two.job.key) is None
