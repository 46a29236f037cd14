"""Why a task runs or is reused: one line that names what changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_bench import Bench

from intermission.engine.planning import Plans, plan_steps
from intermission.model import Job, Receipt
from intermission.operations.explain import forecast, lost_file, reason, receipts_of
from intermission.pipeline.chunk import parted


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.submit()
    made.finish_all()
    return made


def plans(bench: Bench) -> Plans:
    return {spec.name: parted(bench.receipt(spec.name).result) for spec in plan_steps(bench.job)}


def lines(bench: Bench, job: Job | None = None) -> dict[str, tuple[bool, str]]:
    found = forecast(bench.store, job or bench.job, plans(bench))
    return {
        task.step if task.chunk is None else f"{task.step}[{task.index}]": (reused, why)
        for task, reused, why in found
    }


def test_what_has_a_receipt_is_reused(bench: Bench) -> None:
    attempt = bench.receipt("hear[1]").attempt
    assert lines(bench)["hear[1]"] == (True, f"the receipt of attempt {attempt} has the same key")
    assert lines(bench)["parts"][0]


def test_a_light_step_is_reused_from_the_ledger_alone(bench: Bench) -> None:
    assert lines(bench)["level[0]"] == (False, "not done yet; no receipt")
    key = bench.row("level[0]").key
    found = forecast(bench.store, bench.job, plans(bench), [key])
    (line,) = [why for task, reused, why in found if task.key == key and reused]
    assert line == "the ledger has its result"


def test_a_lost_file_is_told(bench: Bench) -> None:
    file = bench.receipt("hear[0]").files[0]
    bench.store.delete(file.key)
    assert lines(bench)["hear[0]"] == (False, "its artifact words.txt is missing or altered")
    bench.store.create(file.key, b"shorter")
    assert lines(bench)["hear[0]"][1] == "its artifact words.txt is missing or altered"
    assert lost_file(bench.store, bench.receipt("hear[1]")) is None


def test_a_new_version_and_what_is_downstream_of_it(bench: Bench) -> None:
    steps = tuple(replace(s, version=2) if s.name == "hear" else s for s in bench.job.steps)
    found = lines(bench, replace(bench.job, steps=steps))
    assert found["audio"][0]
    assert found["hear[0]"] == (False, "version was 1, is 2")
    assert found["mark[0]"] == (False, "input hear changed")


def test_another_content_of_the_source(bench: Bench) -> None:
    source = replace(bench.job.source, fingerprint="another")
    found = lines(bench, replace(bench.job, source=source))
    assert found["audio"] == (False, "the source's content changed")
    assert found["parts"] == (False, "input audio changed")


def test_nothing_is_changed_by_looking(bench: Bench) -> None:
    bench.store.replace(bench.receipt_key("hear[0]"), b"no receipt")
    before = {stat.key: stat.version for stat in bench.store.list("")}
    lines(bench)
    assert {stat.key: stat.version for stat in bench.store.list("")} == before


def receipt(chunk: str | None, **parts: str) -> Receipt:
    return Receipt("k", "hear", 1, "00001-a", 1, "1", chunk=chunk, parts=parts)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], "it never ran before"),
        ([receipt("c2", a="1")], "no earlier run has this chunk"),
        ([receipt("c1", a="1", b="2")], "its earlier receipt is gone"),
        ([receipt("c1", a="0", b="2")], "a was 0, is 1"),
        ([receipt("c1", a="0", b="0"), receipt("c1", a="1", b="0")], "b was 0, is 2"),
        ([receipt("c1", a="1")], "b was not there, is 2"),
        ([receipt("c1", a="1", b="2", c="3")], "c was 3, is not there"),
        ([receipt("c1", a="0", b="0")], "a was 0, is 1; b was 0, is 2"),
    ],
)
def test_the_nearest_earlier_run_tells_what_changed(known: list[Receipt], expected: str) -> None:
    assert reason("c1", {"a": "1", "b": "2"}, known) == expected


def test_receipts_of_other_jobs_come_newest_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = bench.store.read
    monkeypatch.setattr(bench.store, "read", lambda key: (read.append(key), real(key))[1])
    own = {row.key for row in bench.ledger.tasks(bench.job.key)}
    for attempt, ended_ms in (("old", 1), ("new", 2)):
        made = replace(receipt("c"), task_key=attempt, attempt=attempt, ended_ms=ended_ms)
        bench.store.create(f"receipts/hear/{attempt}.json", made.to_json().encode())
    bench.store.create("receipts/hear/garbage.json", b"garbage")
    found = receipts_of(bench.store, "hear", besides=own)
    assert [one.attempt for one in found] == ["new", "old"]
    assert len(read) == 3, "the job's own are not read, however many it has"
