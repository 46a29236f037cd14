"""How far a job is in each of its groups, by the states of their tasks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from engine_bench import Bench

from intermission import Chunk, Context, Groups, Permanent, Pipeline, Source, step
from intermission.engine.planning import make_job
from intermission.errors import PipelineError
from intermission.model import Event, Job
from intermission.operations.documents import GroupDocument, GroupState
from intermission.operations.rendition_progress import GroupNews, groups_of
from intermission.ports.ledger import Ledger
from intermission.web.api.event_broadcaster import EventBroadcaster, GroupFrames, _Groups

GROUP = GroupDocument(
    step="encode",
    by="quality",
    name="90p",
    state=GroupState.IN_PROGRESS,
    done=1,
    total=9,
    unit="parts",
    reason=None,
)


class Piece(Chunk):
    first: int
    parts: int
    quality: str


@step(version=1)
def rungs() -> dict[str, list[dict[str, str]]]:
    return {"skipped": [{"name": "1080p", "reason": "too large"}]}


@step(version=1)
def pieces() -> list[Piece]:
    return [Piece(first=n, parts=3 - n, quality=name) for n in (0, 1) for name in ("90p", "720p")]


@step(version=1, on_error="skip", groups=Groups("quality", "parts", "rungs"))
def encode(ctx: Context, piece: Piece, broken: str = "") -> int:
    if piece.quality == broken:
        raise Permanent("no encoder.")
    return piece.parts


FILM = Pipeline("film", [rungs, pieces, encode])


def bench_of(tmp_path: Path, **params: str) -> Bench:
    bench = Bench(tmp_path, FILM, make_job(FILM, Source("file:///a.mp4", "f"), params))
    bench.submit()
    return bench


def seen(bench: Bench) -> list[tuple[str, str, int, int]]:
    found = groups_of(bench.ledger, bench.job)
    return [(one.name, str(one.state), one.done, one.total) for one in found]


def test_groups_go_from_pending_to_completed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    assert seen(bench) == []
    lease = bench.take_until("encode")
    skipped = ("1080p", "skipped", 0, 0)
    first, other = sorted(
        ("90p", "720p"), key=lambda name: name != json.loads(lease.chunk or "")["quality"]
    )
    states = {name: (state, done, total) for name, state, done, total in seen(bench)}
    assert states == {
        first: ("in_progress", 0, 5),
        other: ("pending", 0, 5),
        "1080p": ("skipped", 0, 0),
    }
    bench.finish(lease)
    states = {name: (state, done, total) for name, state, done, total in seen(bench)}
    assert states[first] == ("in_progress", 3, 5)
    bench.finish_all()
    assert seen(bench) == [("90p", "completed", 5, 5), ("720p", "completed", 5, 5), skipped]


def test_a_failed_group_says_why_and_stops_no_other(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, broken="720p")
    bench.finish_all()
    failed = [one for one in groups_of(bench.ledger, bench.job) if one.state == "failed"]
    assert [(one.name, one.reason) for one in failed] == [("720p", "no encoder.")]
    assert ("90p", "completed", 5, 5) in seen(bench)


def test_a_cancelled_job_has_cancelled_groups(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.finish(bench.take_until("encode"))
    bench.ledger.cancel(bench.job.key, reason="nobody wants it")
    assert {state for _, state, _, _ in seen(bench)} == {"cancelled", "skipped"}


def test_news_are_what_has_changed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    news = GroupNews(bench.job)
    seq = 0

    def changed() -> list[GroupDocument]:
        nonlocal seq
        events = bench.ledger.events(seq)
        seq = events[-1].seq if events else seq
        return news.after(bench.ledger, events)

    lease = bench.take_until("encode")
    assert len(changed()) == 3
    assert changed() == []
    bench.finish(lease)
    assert [one.done for one in changed()] == [3]


def test_groups_are_told_to_who_watches(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.finish_all()

    async def watch() -> bytes:
        hub = EventBroadcaster()
        hub.open()
        hub.begin(0)
        await asyncio.sleep(0)
        watcher = hub.join(bench.job.key, 0)
        assert watcher is not None
        sent: list[bytes] = []

        async def send(message: Any) -> None:
            sent.append(message["body"])

        await watcher.go_live(send)
        hub.heard(bench.ledger, bench.ledger.events(0))
        while not sent:
            await asyncio.sleep(0)
        return b"".join(sent)

    frames = asyncio.run(watch()).decode().split("\n\n")
    groups = [
        json.loads(one.split("data: ")[1]) for one in frames if one.startswith("event: group")
    ]
    assert [(one["name"], one["state"], one["job"]) for one in groups] == [
        ("90p", "completed", bench.job.key),
        ("720p", "completed", bench.job.key),
        ("1080p", "skipped", bench.job.key),
    ]


def test_groups_are_read_seldom_and_only_for_who_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them reads every task, and a job may have events all the time."""
    bench = bench_of(tmp_path)
    bench.finish_all()
    changes = [one for one in bench.ledger.events(0) if one.task and "encode[" in one.task]
    read: list[str] = []

    def groups(_: object, job: Job) -> list[GroupDocument]:
        read.append(job.key)
        return [GROUP.model_copy(update={"done": len(read)})]

    monkeypatch.setattr("intermission.operations.rendition_progress.groups_of", groups)
    monkeypatch.setattr("intermission.web.api.event_broadcaster.GROUPS_EVERY_S", 3600.0)

    async def watch() -> None:
        hub = EventBroadcaster()
        hub.open()
        hub.begin(0)
        await asyncio.sleep(0)
        assert hub.join("another job", 0)
        hub.heard(bench.ledger, changes)
        assert read == []
        assert hub.join(bench.job.key, 0)
        for _ in range(50):
            hub.heard(bench.ledger, changes)
        assert len(read) == 1
        end = replace(changes[-1], task_id=None, task=None, now="done")
        hub.heard(bench.ledger, [end])
        assert len(read) == 2, "how it ended is told at once"

    asyncio.run(watch())


def test_changes_that_came_too_soon_are_told_later() -> None:
    told = GroupFrames()
    event = Event(1, 0, "job", 1, "encode[0]", None, "done")
    news = SimpleNamespace(concerning=list, after=lambda _, events: [GROUP] if events else [])
    told._jobs["job"] = _Groups(cast(GroupNews, news))
    ledger = cast(Ledger, None)
    assert told.after(ledger, "job", [event], 10.0)
    assert told.after(ledger, "job", [event], 10.1) == b""
    assert told.due(ledger, 11.0) == {}
    assert b"90p" in told.due(ledger, 13.0)["job"]
    assert told.due(ledger, 99.0) == {}


def test_what_a_job_is_survives_being_written_down(tmp_path: Path) -> None:
    job = bench_of(tmp_path).job
    assert Job.from_json(job.to_json()) == job


@pytest.mark.parametrize("groups", [Groups("colour"), Groups("quality", "length")])
def test_groups_name_fields_of_the_chunk(groups: Groups) -> None:
    @step(version=1, groups=groups)
    def paint(piece: Piece) -> int:
        return 1

    with pytest.raises(PipelineError, match="no fields of its chunk"):
        Pipeline("film", [pieces, paint])


def test_who_knows_what_is_skipped_is_a_step() -> None:
    @step(version=1, groups=Groups("quality", skipped="nobody"))
    def paint(piece: Piece) -> int:
        return 1

    with pytest.raises(PipelineError, match="'nobody' knows"):
        Pipeline("film", [pieces, paint])


def test_a_front_is_one_task() -> None:
    @step(version=1, entrypoints=True)
    def paint(piece: Piece) -> int:
        return 1

    with pytest.raises(PipelineError, match="has entrypoints but is a map"):
        Pipeline("film", [pieces, paint])
