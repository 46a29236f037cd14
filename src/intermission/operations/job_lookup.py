"""Finding a job or a task by what a person types: a source, a key's beginning, a task's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from intermission.composition.app import App
from intermission.composition.event_log import first_number
from intermission.composition.locations import Location, as_location, location_of, uri_of
from intermission.engine.workspace import Workspace
from intermission.errors import LedgerError, UsageError
from intermission.model import JobRow, JobState, TaskRow
from intermission.ports.ledger import Ledger, every_task

PAGE = 1000
"""How many jobs are read at a time."""
INDEX_MAX = 2**31 - 1
"""No task has a higher one."""

_TASK = re.compile(r"(?P<step>\w+)(?:\[(?P<index>\d+)\])?")


@dataclass(frozen=True)
class Found:
    """A job in its ledger, open for as long as the caller looks at it."""

    source: Location
    workspace: Workspace
    ledger: Ledger
    row: JobRow
    app: App


def each_job(
    ledger: Ledger, *, states: Collection[JobState] = (), pipeline: str | None = None
) -> Iterator[JobRow]:
    """The jobs of a ledger, newest first, read a page at a time."""
    before = None
    while page := ledger.jobs(states=states, pipeline=pipeline, before=before, limit=PAGE):
        yield from page
        before = page[-1].id


def all_jobs(
    app: App,
    place: str,
    on_fault: Callable[[Location, LedgerError], None],
    read: Callable[[Ledger], Iterable[JobRow]] = each_job,
) -> Iterator[Found]:
    """What `read` finds at or below a place: every job. Its ledger is open until the next one.

    A ledger that cannot be read is told to `on_fault`, and hides no other. A shared ledger has
    them all, wherever their sources are.
    """
    if app.shared is not None:
        with closing(app.shared()) as ledger:
            for row in read(ledger):
                yield found_row(app, ledger, row)
        return
    for source, workspace in app.workspaces(as_location(place)):
        with ExitStack() as held:
            try:
                ledger = held.enter_context(app.reading(workspace))
            except LedgerError as e:
                on_fault(source, e)
                continue
            if ledger is not None:
                for row in read(ledger):
                    yield Found(source, workspace, ledger, row, app)


@contextmanager
def find_job(app: App, name: str, place: str, *, write: bool = False) -> Iterator[Found]:
    """The job of a source (its newest), or the one whose key begins with `name`.

    With `write`, its ledger may be changed.
    """
    if app.shared is not None:
        with closing(app.shared()) as ledger:
            yield _shared(app, ledger, name)
        return
    source, key = as_location(name), ""
    if isinstance(source, Path) and not (source.is_file() or app.workspace(source).folder.is_dir()):
        source, key = _by_key(app, name, place)
    workspace = app.workspace(source)
    with app.reading(workspace) as ledger:
        rows = [] if ledger is None else ledger.jobs(key, limit=1)
        if ledger is None or not rows:
            raise UsageError(f"{name} has no job.", remedy="Run a pipeline over it first.")
        if not write:
            yield Found(source, workspace, ledger, rows[0], app)
            return
    with app.writing(workspace) as ledger:
        (row,) = ledger.jobs(rows[0].job.key)
        yield Found(source, workspace, ledger, row, app)


def found_row(app: App, ledger: Ledger, row: JobRow) -> Found:
    """A job of a shared ledger."""
    workspace = app.workspace_of_job(row.job)
    return Found(location_of(row.job.source), workspace, ledger, row, app)


def _shared(app: App, ledger: Ledger, name: str) -> Found:
    """The newest job of a source, or the one whose key begins with `name`, in a shared ledger."""
    rows = ledger.jobs(source=uri_of(as_location(name)), limit=1) or ledger.jobs(name, limit=2)
    if len(rows) != 1:
        raise no_such_job(name, len(rows))
    return found_row(app, ledger, rows[0])


def no_such_job(name: str, count: int) -> UsageError:
    """A name means no job, or more than one."""
    what = "more than one job has" if count else "no job has"
    return UsageError(
        f"{what} a key that begins with {name!r}, and no job has a source of that name.",
        remedy="`intermission ls` lists the jobs.",
    )


def _by_key(app: App, name: str, place: str) -> tuple[Location, str]:
    """The source and the whole key of the one job whose key begins with `name`."""
    faults: list[LedgerError] = []
    named = all_jobs(app, place, lambda _, e: faults.append(e), lambda one: one.jobs(name, limit=2))
    matches = [(found.source, found.row.job.key) for found in named]
    if len(matches) == 1:
        return matches[0]
    if not matches and faults:
        raise faults[0]
    if len({key for _, key in matches}) == 1:
        raise UsageError(
            f"{len(matches)} sources have the job {name!r}, because their content is the same: "
            f"{', '.join(str(source) for source, _ in matches)}.",
            remedy="Name the source instead of the key.",
        )
    what = "more than one job has" if matches else "no job has"
    raise UsageError(
        f"{what} a key that begins with {name!r} at or below {as_location(place)}, "
        "and no source of that name has a workspace.",
        remedy="`intermission ls` lists the jobs; --in says where to look.",
    )


def find_task(found: Found, name: str) -> TaskRow:
    """A task by `step`, `step[7]`, or the beginning of its key, which no ledger has an index of."""
    ledger, job = found.ledger, found.row.job
    match = _TASK.fullmatch(name)
    if match is None or match["step"] not in {spec.name for spec in job.steps}:
        named = (row for row in every_task(ledger, job.key) if row.key.startswith(name))
        rows = list(islice(named, 2))
    elif match["index"] is None:
        rows = ledger.tasks(job.key, step=match["step"], limit=2)
    else:
        rows = _task_at(ledger, job.key, match["step"], int(match["index"]))
    if len(rows) != 1:
        what = "more than one task is" if rows else "no task is"
        raise UsageError(
            f"{what} named {name!r} in job {job.key[:10]}.",
            remedy="`intermission inspect JOB` lists them; a task of a mapped step is step[7].",
        )
    return rows[0]


def _task_at(ledger: Ledger, job_key: str, step: str, index: int) -> list[TaskRow]:
    """The task of a step with this index, if there is one: found by a few rows, however many."""
    made = ledger.outputs(job_key, step, after=index - 1, limit=1) if index <= INDEX_MAX else []
    if not made or made[0].index != index:
        return []

    def rows_after(id: int) -> list[TaskRow]:
        return ledger.tasks(job_key, step=step, after=id, limit=1)

    # A step's tasks are added in the order of their indexes. Where they were not, we have to walk.
    at = first_number(lambda id: all(row.index > index for row in rows_after(id)))
    found = rows_after(at - 1) if at else []
    if found and found[0].index == index:
        return found
    walk = every_task(ledger, job_key, step=step)
    return list(islice((row for row in walk if row.index == index), 1))
