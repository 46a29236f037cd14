"""Looking again: untouched files cost a stat, touched ones a hash, lost ones their task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_bench import Bench

from intermission.engine.publish import published_name
from intermission.maintenance.verify import verify
from intermission.model import JobState, TaskState

FILES = {"audio", "hear[0]", "hear[1]", "hear[2]", "join", "stamp"}
"""The tasks that have a file."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.submit()
    made.finish_all()
    made.clock.advance(60)
    return made


@pytest.fixture
def fetched(bench: Bench) -> list[str]:
    """The keys of the files that are hashed from here on."""
    keys: list[str] = []
    fetch: Callable[..., Path] = bench.store.fetch

    def spy(key: str, *args: object, **options: object) -> Path:
        keys.append(key)
        return fetch(key, *args, **options)

    bench.store.fetch = spy  # type: ignore[method-assign]
    return keys


def look(bench: Bench, *, thorough: bool = False) -> int:
    made = bench.ledger, bench.store, bench.job, bench.scratch, bench.clock
    return verify(*made, outputs=bench.outputs, thorough=thorough)


def published(bench: Bench, name: str) -> str:
    """Where among the outputs a done task's first file is."""
    row, file = bench.row(name), bench.receipt(name).files[0]
    return published_name(bench.job, bench.job.step(row.step), row.index, file)


def test_untouched_files_are_not_read(bench: Bench, fetched: list[str]) -> None:
    assert look(bench) == 0
    assert fetched == []
    assert bench.ledger.jobs()[0].state is JobState.DONE


def test_thorough_reads_everything(bench: Bench, fetched: list[str]) -> None:
    assert look(bench, thorough=True) == 0
    assert len(fetched) == len(FILES)


def test_a_file_that_was_only_touched_is_read_once(bench: Bench, fetched: list[str]) -> None:
    key = bench.receipt("audio").files[0].key
    bench.store.replace(key, bench.store.read(key))
    bench.clock.advance(1)
    assert look(bench) == 0
    assert fetched == [key]
    assert look(bench) == 0
    assert fetched == [key], "the look is remembered"
    bench.clock.advance(1)
    bench.store.replace(key, bench.store.read(key))
    assert look(bench) == 0
    assert fetched == [key, key], "but not beyond the next touch"


def test_a_touch_during_a_look_is_not_covered_by_it(bench: Bench, fetched: list[str]) -> None:
    key = bench.receipt("audio").files[0].key
    bench.store.replace(key, bench.store.read(key))
    fetch = bench.store.fetch

    def slow(*args: object, **options: object) -> Path:
        path = fetch(*args, **options)  # type: ignore[arg-type]
        bench.clock.advance(5)
        bench.store.replace(key, bench.store.read(key))
        return path

    bench.store.fetch = slow  # type: ignore[method-assign]
    look(bench)
    bench.store.fetch = fetch  # type: ignore[method-assign]
    look(bench)
    assert fetched == [key, key]


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_lost_file_that_nothing_needs_costs_nothing(
    bench: Bench, name: str, thorough: bool, gone: bool
) -> None:
    key = bench.spoil_file(name)
    if gone:
        bench.store.delete(key)
    for _ in range(2):
        assert look(bench, thorough=thorough) == 0
        assert bench.finish_all() == []
    assert bench.ledger.jobs()[0].state is JobState.DONE


def test_an_output_that_is_gone_too_is_made_again(bench: Bench) -> None:
    """From nothing but what it needs: the file before it is lost as well."""
    bench.outputs.delete(published(bench, "stamp"))
    assert look(bench) == 0, "its artifact is there to be copied"
    bench.spoil_file("hear[1]")
    bench.spoil_file("stamp")
    bench.outputs.delete(published(bench, "stamp"))
    assert look(bench) == 1
    assert bench.states()["stamp"] is TaskState.CORRUPT
    assert bench.finish_all() == ["stamp"]
    assert bench.ledger.jobs()[0].state is JobState.DONE
    assert bench.outputs.stat(published(bench, "stamp")) is not None


def test_a_lost_file_is_made_again_for_what_has_to_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.submit()
    lease = bench.take_until("mark")
    bench.ledger.release([(lease.task_id, lease.fence)], reason="drained")
    bench.clock.advance(1)
    bench.spoil_file("hear[0]")
    look(bench)
    assert bench.states()["hear[0]"] is TaskState.CORRUPT
    ran = bench.finish_all()
    assert ran[:2] == ["hear[0]", "mark[0]"]
    assert ran.count("hear[0]") == 1
    assert bench.ledger.jobs()[0].state is JobState.DONE


@pytest.mark.parametrize("memory", [b"", b"{}", b"[]", b'{"at_ms": null}'])
def test_a_look_that_cannot_be_remembered_never_happened(
    bench: Bench, fetched: list[str], memory: bytes
) -> None:
    bench.store.create(f"looks/{bench.job.key}.json", memory)
    assert look(bench) == 0
    assert fetched == []
    bench.spoil_file("stamp")
    bench.outputs.delete(published(bench, "stamp"))
    assert look(bench) == 1
