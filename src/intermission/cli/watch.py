"""`intermission watch`: what happens to a job, as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from intermission.cli.options import (
    HERE,
    AsJsonLines,
    JobName,
    LedgerUrl,
    Location,
    ServerUrl,
    Verbose,
    open_app,
)
from intermission.cli.streams import reader_left

if TYPE_CHECKING:
    from intermission.model import Event, JobRow
    from intermission.operations import Found
    from intermission.operations.rendition_progress import Group

EVERY_S = 0.3
REMOTE_EVERY_S = 2.0


def watch(
    job: JobName,
    place: Location = HERE,
    after: Annotated[
        int | None,
        typer.Option(metavar="SEQ", help="Begin after this event; 0 tells everything."),
    ] = None,
    as_jsonl: AsJsonLines = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> int:
    """Follow a job until it ends.

    Every change of its tasks is told, whichever process made it. The exit code is the job's:
    0 done, 1 failed or cancelled.
    """
    from intermission.cli.jsonout import emit
    from intermission.cli.status import print_counts
    from intermission.composition.event_log import last_event, timestamp
    from intermission.model import JobState
    from intermission.operations import find_job
    from intermission.operations.documents import EventDocument, JobDocument
    from intermission.operations.rendition_progress import Group, group_fields

    app = open_app(verbose, ledger=ledger, server=server)

    def again() -> AbstractContextManager[Found]:
        """What is in a bucket is seen as it was uploaded last, so it has to be fetched again."""
        return find_job(app, job, place) if found.workspace.is_remote else nullcontext(found)

    with find_job(app, job, place) as found:
        seq = last_event(found.ledger) if after is None else after
        if as_jsonl:
            emit({"event": "watching", "seq": seq}, JobDocument.of(found.row, found.source))
        else:
            print_counts(found.row)
        for event in _follow(again, seq):
            if isinstance(event, Group):
                if as_jsonl:
                    at = timestamp(time.time_ns() // 1_000_000)
                    key = found.row.job.key
                    emit({"event": "group", "at": at, "job": key, **group_fields(event)})
                continue
            if as_jsonl:
                emit(EventDocument.of(event))
                continue
            why = f"  {event.message}" if event.message and event.now != "done" else ""
            how_far = "" if event.progress is None else f" {event.progress:.0%}"
            at = timestamp(event.at_ms)[11:19]
            print(f"{at}  {event.task or 'job'}  {event.now}{how_far}{why}", flush=True)
        with again() as last:
            row = _look(last)
        if as_jsonl:
            emit({"event": "ended", "job": row.job.key, "state": str(row.state)})
        else:
            print(row.state)
        return 0 if row.state is JobState.DONE else 1


def _follow(
    again: Callable[[], AbstractContextManager[Found]], seq: int
) -> Iterator[Event | Group]:
    """The job's events after a number, until it has ended and all of them are told.

    After those of a look, the groups that they changed.
    """
    from intermission.composition.event_log import events_after
    from intermission.model import JobState
    from intermission.operations.rendition_progress import GroupNews

    news: GroupNews | None = None
    while True:
        with again() as found:
            # The state is read first: what the ledger records before a job ends is told before.
            ended = _look(found).state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
            told: list[Event] = []
            for event in events_after(found.ledger, seq, found.row.job.key):
                seq = event.seq
                told.append(event)
                yield event
            news = news or GroupNews(found.row.job)
            yield from news.after(found.ledger, told)
            every_s = REMOTE_EVERY_S if found.workspace.is_remote else EVERY_S
        if ended or reader_left():
            return
        time.sleep(every_s)


def _look(found: Found) -> JobRow:
    from intermission.errors import UsageError

    rows = found.ledger.jobs(found.row.job.key)
    if not rows:
        raise UsageError("the job is gone.", remedy="Somebody started it afresh: watch it again.")
    return rows[0]
