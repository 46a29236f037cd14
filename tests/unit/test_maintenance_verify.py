"""Looking again: untouched files cost a stat, touched ones a hash, lost ones their task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_bench import Bench

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
    return verify(
        bench.ledger, bench.store, bench.job, bench.scratch, bench.clock, thorough=thorough
    )


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
@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("stamp", {"stamp"}),
        ("hear[1]", {"hear[1]", "mark[1]", "join", "stamp"}),
        ("hear[2]", {"hear[2]", "join", "stamp"}),
    ],
)
def test_a_lost_file_sends_its_task_back_and_what_hangs_on_it(
    bench: Bench, name: str, again: set[str], gone: bool
) -> None:
    key = bench.spoil_file(name)
    if gone:
        bench.store.delete(key)
    assert look(bench) == len(again)
    assert bench.states()[name] is TaskState.CORRUPT
    # A gap is no result that could be lost: its attempts are over.
    assert set(bench.finish_all()) == again
    assert bench.ledger.jobs()[0].state is JobState.DONE
    assert look(bench, thorough=True) == 0
    assert (key in bench.quarantined()) is not gone


def test_several_losses_are_one_look(bench: Bench) -> None:
    for name in ("hear[0]", "hear[1]", "stamp"):
        bench.spoil_file(name)
    look(bench)
    again = {"hear[0]", "mark[0]", "hear[1]", "mark[1]", "join", "stamp"}
    assert set(bench.finish_all()) == again


@pytest.mark.parametrize("memory", [b"", b"{}", b"[]", b'{"at_ms": null}'])
def test_a_look_that_cannot_be_remembered_never_happened(
    bench: Bench, fetched: list[str], memory: bytes
) -> None:
    bench.store.create(f"looks/{bench.job.key}.json", memory)
    assert look(bench) == 0
    assert fetched == []
    bench.spoil_file("stamp")
    assert look(bench) == 1
