"""`intermission inspect`: everything that is known of a job or a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from intermission.cli.options import (
    HERE,
    AsJson,
    JobName,
    LedgerUrl,
    Location,
    ServerUrl,
    Verbose,
    open_app,
)

if TYPE_CHECKING:
    from intermission.model import TaskRow, TaskState
    from intermission.operations import Found


def inspect(
    job: JobName,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="A step, a chunk such as count[7], or a key."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only tasks in this state. Repeatable."),
    ] = None,
    place: Location = HERE,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> None:
    """Show all there is to know of a job or a task.

    A job's tasks with their states and errors; a task's receipt, files, logs and history.
    """
    from intermission.cli.jsonout import emit, fields
    from intermission.operations import find_job, find_task
    from intermission.operations.documents import JobDocument, TaskDocument
    from intermission.operations.inspect import tasks_of

    states = _states(state or [])
    with find_job(open_app(verbose, ledger=ledger, server=server), job, place) as found:
        if task is not None:
            document = _task_document(found, find_task(found, task))
            emit({"event": "details", **document}) if as_json else _print_task(document)
            return
        rows = tasks_of(found, states)
        if as_json:
            tasks = [fields(TaskDocument.of(row)) for row in rows]
            job_document = JobDocument.of(found.row, found.source)
            emit({"event": "tasks"}, job_document, {"tasks": tasks})
        else:
            _print_job(found, list(rows))


def _states(names: list[str]) -> list[TaskState]:
    from intermission.errors import UsageError
    from intermission.model import TaskState

    for name in names:
        if name not in list(TaskState):
            raise UsageError(
                f"there is no task state {name!r}.",
                remedy=f"The states are {', '.join(TaskState)}.",
            )
    return [TaskState(name) for name in names]


def _print_job(found: Found, rows: list[TaskRow]) -> None:
    from intermission.cli.formatting import near, table

    job = found.row.job
    print(f"job       {job.key}")
    print(f"pipeline  {job.pipeline} ({job.code})")
    print(f"source    {near(found.source)}")
    print(f"params    {job.params}")
    print(f"state     {found.row.state}")
    print()
    cells = [
        (row.name, row.state, row.tries, row.key[:10], " ".join((row.message or "").split()))
        for row in rows
    ]
    print(table(("TASK", "STATE", "ATTEMPTS", "KEY", "MESSAGE"), cells))


def _task_document(found: Found, row: TaskRow) -> dict[str, Any]:
    from dataclasses import asdict

    from intermission.cli.jsonout import fields
    from intermission.operations.documents import EventDocument, TaskDocument
    from intermission.operations.inspect import history_of, logs_of, receipt_of, why

    known = receipt_of(found, row)
    receipt: dict[str, Any] | None = None
    if known is not None:
        path, stands = known
        receipt = {"path": None if path is None else str(path), **asdict(stands)}
    return {
        **fields(TaskDocument.of(row)),
        "why": why(found, row),
        "receipt": receipt,
        "logs": {str(attempt): str(path) for attempt, path in logs_of(found, row).items()},
        "history": [fields(EventDocument.of(event)) for event in history_of(found, row)],
    }


def _print_task(document: dict[str, Any]) -> None:
    import json

    from intermission.cli.formatting import size

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
    for event in document["history"]:
        worker = f"  {event['worker']}" if event["worker"] else ""
        message = f"  {event['message']}" if event["message"] else ""
        print(f"event     {event['at']}  {event['was']} -> {event['now']}{worker}{message}")
