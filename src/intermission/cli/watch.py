"""`intermission watch`: what happens to a job, as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from intermission.cli import options
from intermission.cli.jsonout import emit
from intermission.cli.streams import reader_left

if TYPE_CHECKING:
    from intermission.operations import JobHandle
    from intermission.operations.documents import EventDocument, GroupDocument


def watch(
    ctx: typer.Context,
    job: options.JobName,
    place: options.Location = options.HERE,
    after: Annotated[
        int | None,
        typer.Option(metavar="SEQ", help="Begin after this event; 0 tells everything."),
    ] = None,
    as_jsonl: options.AsJsonLines = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> int:
    """Follow a job until it ends.

    Every change of its tasks is told, whichever process made it. The exit code is the job's:
    0 done, 1 failed or cancelled.
    """
    from intermission.cli.status import print_counts
    from intermission.composition.event_log import timestamp
    from intermission.model import JobState
    from intermission.operations import open_job
    from intermission.operations.documents import GroupDocument

    app = options.open_app(ctx)

    def again() -> AbstractContextManager[JobHandle]:
        """What is in a bucket is seen as it was uploaded last, so it has to be fetched again."""
        return open_job(app, job, place) if found.is_copy else nullcontext(found)

    with open_job(app, job, place) as found:
        began = found.document()
        seq = found.last_event() if after is None else after
        emit({"event": "watching", "seq": seq}, began) if as_jsonl else print_counts(began)
        for news in _follow(again, seq):
            if isinstance(news, GroupDocument):
                if as_jsonl:
                    at = timestamp(time.time_ns() // 1_000_000)
                    emit({"event": "group", "at": at, "job": began.job}, news)
                continue
            if as_jsonl:
                emit(news)
                continue
            why = f"  {news.message}" if news.message and news.now != "done" else ""
            how_far = "" if news.progress is None else f" {news.progress:.0%}"
            print(f"{news.at[11:19]}  {news.task or 'job'}  {news.now}{how_far}{why}", flush=True)
        with again() as last:
            ended = last.document()
        if as_jsonl:
            emit({"event": "ended", "job": ended.job, "state": str(ended.state)})
        else:
            print(ended.state)
        return 0 if ended.state is JobState.DONE else 1


def _follow(
    again: Callable[[], AbstractContextManager[JobHandle]], seq: int
) -> Iterator[EventDocument | GroupDocument]:
    """The job's events after a number, until it has ended and all of them are told.

    After those of a look, the groups that they may have changed and that are not what they were.
    """
    from intermission.model import JobState

    known: list[GroupDocument] = []
    while True:
        with again() as found:
            # The state is read first: what the ledger records before a job ends is told before.
            state = found.document().state
            may_differ = False
            for event in found.events(seq):
                seq = event.seq
                may_differ |= event.task is not None
                yield event
            if may_differ:
                groups = found.groups()
                yield from (group for group in groups if group not in known)
                known = groups
            every_s = found.look_every_s
        if state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED) or reader_left():
            return
        time.sleep(every_s)
