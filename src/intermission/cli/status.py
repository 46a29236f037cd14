"""`intermission status`: how far a job is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from intermission.cli import options
from intermission.cli.formatting import near, table
from intermission.cli.jsonout import emit, fields

if TYPE_CHECKING:
    from intermission.operations.documents import GroupDocument, JobDocument

RUNNING_MAX = 1000
"""So many running tasks are shown."""


def status(
    ctx: typer.Context,
    job: options.JobName,
    place: options.Location = options.HERE,
    as_json: options.AsJson = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> None:
    """Show how far a job is.

    Its tasks by step and state, its groups (such as the renditions of a video), the tasks that are
    running, what keeps the others from starting, and those that no worker could run so far, with
    the reason.
    """
    from itertools import islice

    from intermission.composition.locations import as_location
    from intermission.model import HELD, JobState
    from intermission.operations import open_job
    from intermission.operations.inspect import refusal
    from intermission.operations.job_handle import refused_tasks

    with open_job(options.open_app(ctx), job, place) as found:
        now = found.document().brief()
        held = found.tasks(HELD) if now.total(*HELD) else ()
        running = list(islice(held, RUNNING_MAX))
        refused = refused_tasks(found)
        groups = found.groups()
        waiting = found.waiting()
    if as_json:
        more = {"groups": groups, "running": running, "refused": refused, "waiting": waiting}
        lists = {name: [fields(one) for one in some] for name, some in more.items()}
        emit({"event": "status"}, now, lists)
        return
    print(f"{now.job[:10]}  {now.pipeline}  {near(as_location(now.source))}")
    since = f" since {now.updated}" if now.state is JobState.DRAINING else ""
    print(f"{now.state}{since}: {now.reason}" if now.reason else now.state)
    print_counts(now)
    print_groups(groups)
    for task in running:
        where = "waits for an outside event" if task.worker is None else f"on {task.worker}"
        print(f"{task.task}  {task.progress:.0%}  attempt {task.attempts}  {where}")
    for wait in waiting:
        waits = "waits" if len(wait.steps) == 1 else "wait"
        print(f"{', '.join(wait.steps)} {waits}: {wait.reason}. {wait.remedy}")
    for task in refused:
        print(f"{task.task}  {refusal(task.refusals, task.message)}")


def print_counts(job: JobDocument) -> None:
    """One line a step, one column a state that occurs."""
    from intermission.model import TaskState

    states = [state for state in TaskState if job.total(state)]
    rows: list[tuple[object, ...]] = [
        (step, sum(counts.values()), *(counts.get(state, 0) for state in states))
        for step, counts in job.steps.items()
    ]
    print(table(("STEP", "TASKS", *(state.upper() for state in states)), rows))


def print_groups(groups: list[GroupDocument]) -> None:
    """One line a group: its state, how much of it is done, and why it is as it is."""

    for by, unit in dict.fromkeys((group.by, group.unit) for group in groups):
        rows = [
            (one.name, one.state.replace("_", " "), f"{one.done}/{one.total}", one.reason or "")
            for one in groups
            if (one.by, one.unit) == (by, unit)
        ]
        print(table((by.upper(), "STATE", unit.upper(), ""), rows))
