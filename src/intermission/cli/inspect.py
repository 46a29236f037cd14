"""`intermission inspect`, `why`, `logs`: what is known of a job or a task."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from intermission.cli import options
from intermission.cli.command import say
from intermission.cli.formatting import near, size, table
from intermission.cli.jsonout import emit, fields
from intermission.cli.streams import reader_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from intermission.operations.documents import JobDocument, TaskDetails, TaskDocument

PAGE = 1000


def inspect(
    ctx: typer.Context,
    job: options.JobName,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="A step, a chunk such as count[7], or a key."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only tasks in this state. Repeatable."),
    ] = None,
    place: options.Location = options.HERE,
    as_json: options.AsJson = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> None:
    """Show all there is to know of a job or a task.

    A job's tasks with their states and errors; a task's receipt, files, logs and history.
    """
    from intermission.model import TaskState
    from intermission.operations import open_job

    states = options.parse_states(TaskState, "task state", state)
    with open_job(options.open_app(ctx), job, place) as found:
        if task is not None:
            details = found.details(task)
            emit({"event": "details"}, details) if as_json else _print_task(details)
            return
        now, rows = found.document(), found.tasks(states)
        if as_json:
            emit({"event": "tasks"}, now, {"tasks": [fields(row) for row in rows]})
        else:
            _print_job(now)
            print_tasks(rows)


def why(
    ctx: typer.Context,
    job: options.JobName,
    task: options.TaskName,
    place: options.Location = options.HERE,
    as_json: options.AsJson = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> None:
    """Say in one line why a task ran, was reused, or has not run."""
    from intermission.operations import open_job

    with open_job(options.open_app(ctx), job, place) as found:
        said = found.why(task)
    emit({"event": "why"}, said) if as_json else print(f"{said.task} {said.why}")


def logs(
    ctx: typer.Context,
    job: options.JobName,
    task: options.TaskName,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="Which attempt; the latest unless given.")
    ] = None,
    place: options.Location = options.HERE,
    as_json: options.AsJson = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> None:
    """Print what a task wrote.

    Its output, its log lines, and the traceback it failed with.
    """
    from intermission.operations import open_job

    with open_job(options.open_app(ctx), job, place) as found:
        log = found.log(task, attempt)
    if as_json:
        emit({"event": "log"}, log)
    elif log.elsewhere is not None:
        say(f"{log.task} ran on another machine, as worker {log.elsewhere}: its log is there.")
    elif log.attempt is None:
        said = f" It {log.state}: {log.message}" if log.message else ""
        say(f"{log.task} wrote nothing.{said}")
    else:
        say(f"attempt {log.attempt}: {log.path}")
        sys.stdout.write(log.text)


def _print_job(job: JobDocument) -> None:
    import json

    from intermission.composition.locations import as_location

    print(f"job       {job.job}")
    print(f"pipeline  {job.pipeline} ({job.code})")
    print(f"source    {near(as_location(job.source))}")
    print(f"params    {json.dumps(job.params, separators=(',', ':'))}")
    print(f"state     {job.state}")
    print()


def print_tasks(tasks: Iterator[TaskDocument]) -> None:
    """A page at a time: a job may have a million, and its reader may have seen enough."""
    from itertools import islice

    printed = 0
    while (page := list(islice(tasks, PAGE))) or not printed:
        cells = [
            (row.task, row.state, row.attempts, row.key[:10], " ".join((row.message or "").split()))
            for row in page
        ]
        lines = table(("TASK", "STATE", "ATTEMPTS", "KEY", "MESSAGE"), cells).splitlines()
        print("\n".join(lines[printed:]))
        printed = 1
        if reader_left():
            return


def _print_task(details: TaskDetails) -> None:
    import json

    document = details.model_dump()
    for name in ("task", "key", "state", "attempts", "started", "ended", "why", "error", "message"):
        if document[name] is not None:
            print(f"{name:<9} {document[name]}")
    if document["chunk"] is not None:
        print(f"chunk     {json.dumps(document['chunk'], ensure_ascii=False)}")
    receipt = document["receipt"]
    if receipt is not None:
        print(f"receipt   {receipt['path']}")
        print(f"attempt   {receipt['attempt']} by {receipt['worker']}")
        for name, value in receipt["parts"].items():
            print(f"depends   {name} = {value}")
        result = receipt["result"]
        print(f"result    {result if len(result) <= 200 else result[:197] + '...'}")
        for file in receipt["files"]:
            print(f"file      {file['name']}  {size(file['size_bytes'])}  sha256 {file['sha256']}")
    for attempt, path in document["logs"].items():
        print(f"log       attempt {attempt}: {path}")
    if details.history_after:
        print("event     earlier ones: intermission watch JOB --after 0")
    for event in document["history"]:
        worker = f"  {event['worker']}" if event["worker"] else ""
        message = f"  {event['message']}" if event["message"] else ""
        print(f"event     {event['at']}  {event['was']} -> {event['now']}{worker}{message}")
