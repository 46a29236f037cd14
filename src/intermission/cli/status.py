"""`intermission status`: how far a job is."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from intermission.model import JobRow, TaskRow
    from intermission.operations.rendition_progress import Group


def status(
    job: JobName,
    place: Location = HERE,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> None:
    """Show how far a job is.

    Its tasks by step and state, its groups (such as the renditions of a video), the tasks that are
    running, and those that no worker could run so far, with the reason.
    """
    from intermission.cli.formatting import near
    from intermission.cli.jsonout import emit, fields
    from intermission.composition.event_log import timestamp
    from intermission.model import HELD, JobState
    from intermission.operations import find_job
    from intermission.operations.documents import JobDocument, TaskDocument
    from intermission.operations.inspect import refusal, refused_tasks
    from intermission.operations.rendition_progress import group_fields, groups_of

    with find_job(open_app(verbose, ledger=ledger, server=server), job, place) as found:
        row = found.row
        running: list[TaskRow] = []
        if row.total(*HELD):
            running = found.ledger.tasks(row.job.key, states=HELD)
        refused = refused_tasks(found)
        groups = groups_of(found.ledger, row.job)
        if as_json:
            tasks = [fields(TaskDocument.of(task)) for task in running]
            now = {
                "groups": [group_fields(group) for group in groups],
                "running": tasks,
                "refused": [fields(TaskDocument.of(task)) for task in refused],
            }
            emit({"event": "status"}, JobDocument.of(row, found.source), now)
            return
        print(f"{row.job.key[:10]}  {row.job.pipeline}  {near(found.source)}")
        since = f" since {timestamp(row.updated_ms)}" if row.state is JobState.DRAINING else ""
        print(f"{row.state}{since}: {row.reason}" if row.reason else row.state)
        print_counts(row)
        print_groups(groups)
        for task in running:
            where = "waits for an outside event" if task.worker is None else f"on {task.worker}"
            print(f"{task.name}  {task.progress:.0%}  attempt {task.tries}  {where}")
        for task in refused:
            print(f"{task.name}  {refusal(task)}")


def print_counts(row: JobRow) -> None:
    """One line a step, one column a state that occurs."""
    from intermission.cli.formatting import table
    from intermission.model import TaskState

    states = [state for state in TaskState if row.total(state)]
    rows: list[tuple[object, ...]] = []
    for spec in row.job.steps:
        counts = row.counts.get(spec.name, {})
        total = sum(counts.values())
        rows.append((spec.name, total, *(counts.get(state, 0) for state in states)))
    print(table(("STEP", "TASKS", *(state.upper() for state in states)), rows))


def print_groups(groups: list[Group]) -> None:
    """One line a group: its state, how much of it is done, and why it is as it is."""
    from intermission.cli.formatting import table

    for by, unit in dict.fromkeys((group.by, group.unit) for group in groups):
        rows = [
            (one.name, one.state.replace("_", " "), f"{one.done}/{one.total}", one.reason or "")
            for one in groups
            if (one.by, one.unit) == (by, unit)
        ]
        print(table((by.upper(), "STATE", unit.upper(), ""), rows))
