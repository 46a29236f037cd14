"""Outputs for people: in place under their names, and done again only when they must be."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from intermission.backends.edited_outputs import keep_edited
from intermission.backends.store.memory import MemoryStore
from intermission.engine.publish import publish, published_name
from intermission.engine.receipt import fetched_files
from intermission.errors import CorruptArtifact
from intermission.model import FileRef, Output, Source, StepKind, StepSpec
from intermission.telemetry import listen
from intermission.testing.faults import Crashed, crashing
from intermission.testing.jobs import line_job

SPEC = StepSpec("join", 1, StepKind.REDUCE, publish="")
JOB = replace(line_job(), source=Source("file:///media/My%20talk.final.mp4", "f"))
CHUNK = replace(SPEC, publish="chunks/chunk_{index:04d}.txt")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def outputs() -> MemoryStore:
    return MemoryStore()


def file(store: MemoryStore, data: bytes, name: str = "talk.txt") -> FileRef:
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"artifacts/join/k/{sha256[:8]}/{name}"
    store.create(key, data)
    return FileRef(name, key, len(data), sha256)


def passes(*args: object) -> list[str]:
    """The fault points that a publication passes: none, if everything was in place."""
    points: list[str] = []
    with listen(points.append):
        publish(*args)  # type: ignore[arg-type]
    return points


def test_files_appear_under_their_names(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    files = [file(store, b"text"), file(store, b"times", "sub/talk.srt")]
    assert publish(store, outputs, JOB, SPEC, 0, files, tmp_path) == ["talk.txt", "sub/talk.srt"]
    assert outputs.read("talk.txt") == b"text"
    assert outputs.read("sub/talk.srt") == b"times"


def test_a_template_names_the_file_of_a_chunk(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    assert publish(store, outputs, JOB, CHUNK, 12, [file(store, b"text")], tmp_path) == [
        "chunks/chunk_0012.txt"
    ]
    with_name = replace(SPEC, publish="{index}/{name}")
    assert published_name(JOB, with_name, 3, FileRef("a.txt", "k", 0, "")) == "3/a.txt"
    with_stem = replace(SPEC, publish="{stem}.{ext}")
    named = published_name(JOB, with_stem, 0, FileRef("transcript.srt", "k", 0, ""))
    assert named == "My talk.final.srt"


def test_a_large_result_is_no_output(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    result = file(store, b"[]", "result.json")
    assert publish(store, outputs, JOB, SPEC, 0, [result], tmp_path) == []
    assert list(outputs.list("")) == []


def test_what_is_in_place_is_left_alone(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    files = [file(store, b"text")]
    assert passes(store, outputs, JOB, SPEC, 0, files, tmp_path) == [
        "before-publish",
        "after-publish",
    ]
    assert passes(store, outputs, JOB, SPEC, 0, files, tmp_path) == []


@pytest.mark.parametrize("change", ["gone", "altered", "forgotten", "garbled"])
def test_what_is_not_in_place_is_put_there_again(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path, change: str
) -> None:
    files = [file(store, b"text")]
    publish(store, outputs, JOB, SPEC, 0, files, tmp_path)
    if change == "gone":
        outputs.delete("talk.txt")
    elif change == "altered":
        outputs.replace("talk.txt", b"TEXT")
    elif change == "forgotten":
        store.delete("published/talk.txt.json")
    else:
        store.replace("published/talk.txt.json", b"{")
    assert passes(store, outputs, JOB, SPEC, 0, files, tmp_path)
    assert outputs.read("talk.txt") == b"text"
    assert passes(store, outputs, JOB, SPEC, 0, files, tmp_path) == []


def test_what_a_person_edited_is_kept_once(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    told: list[str] = []
    keep = partial(keep_edited, warn=told.append)
    old, new = [file(store, b"old")], [file(store, b"new")]
    publish(store, outputs, JOB, SPEC, 0, old, tmp_path, keep)
    outputs.replace("talk.txt", b"by hand")
    publish(store, outputs, JOB, SPEC, 0, new, tmp_path, keep)
    (kept,) = (stat.key for stat in outputs.list("talk.edited-"))
    assert (outputs.read(kept), outputs.read("talk.txt")) == (b"by hand", b"new")
    assert len(told) == 1
    publish(store, outputs, JOB, SPEC, 0, old, tmp_path, keep)
    assert len(list(outputs.list(""))) == 2


@pytest.mark.parametrize("data", [b"old", b"new"])
def test_what_is_ours_was_not_edited_however_it_came_there(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path, data: bytes
) -> None:
    """Restored from a backup, or put there by a run that died before it could remember it."""
    keep = partial(keep_edited, warn=pytest.fail)
    publish(store, outputs, JOB, SPEC, 0, [file(store, b"old")], tmp_path, keep)
    outputs.replace("talk.txt", data)
    publish(store, outputs, JOB, SPEC, 0, [file(store, b"new")], tmp_path, keep)
    assert [stat.key for stat in outputs.list("")] == ["talk.txt"]


def test_another_jobs_output_is_replaced_in_one_step(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    old, new = [file(store, b"old")], [file(store, b"new")]
    publish(store, outputs, JOB, SPEC, 0, old, tmp_path)
    publish(store, outputs, JOB, SPEC, 0, new, tmp_path)
    assert outputs.read("talk.txt") == b"new"
    publish(store, outputs, JOB, SPEC, 0, old, tmp_path)
    assert outputs.read("talk.txt") == b"old"


def test_a_crash_on_the_way_is_made_good(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    files = [file(store, b"text"), file(store, b"times", "talk.srt")]
    for point in ("before-publish", "after-publish"):
        with crashing(point), pytest.raises(Crashed):
            publish(store, outputs, JOB, SPEC, 0, files, tmp_path)
    publish(store, outputs, JOB, SPEC, 0, files, tmp_path)
    assert {stat.key for stat in outputs.list("")} == {"talk.txt", "talk.srt"}


def test_altered_bytes_are_never_published(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    made = file(store, b"text")
    store.replace(made.key, b"TEXT")
    with pytest.raises(CorruptArtifact):
        publish(store, outputs, JOB, SPEC, 0, [made], tmp_path)
    assert list(outputs.list("")) == []


def test_a_file_that_was_an_input_can_be_published(
    store: MemoryStore, outputs: MemoryStore, tmp_path: Path
) -> None:
    """Inputs and outputs are fetched to the same place, under the same names."""
    made = file(store, b"text")
    dict(fetched_files(store, Output("k", "1", (made,)), tmp_path))
    publish(store, outputs, JOB, SPEC, 0, [made], tmp_path)
    dict(fetched_files(store, Output("k", "1", (made,)), tmp_path))
    assert outputs.read("talk.txt") == b"text"
