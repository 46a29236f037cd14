"""Finding a job or a task by what a person types: a source, a key's beginning, a task's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from intermission.app.composition import LEDGER_NAME, App
from intermission.engine.workspace import Workspace
from intermission.errors import UsageError
from intermission.model import JobRow, TaskRow
from intermission.ports.ledger import Ledger

_TASK = re.compile(r"(?P<step>\w+)(?:\[(?P<index>\d+)\])?")


@dataclass(frozen=True)
class Found:
    """A job in its ledger, open for as long as the caller looks at it."""

    source: Path
    workspace: Workspace
    ledger: Ledger
    row: JobRow


def all_jobs(app: App, place: Path) -> Iterator[Found]:
    """Every job at or below a place. Each one's ledger is open until the next is asked for."""
    for source, workspace in app.workspaces(place):
        if not (workspace.folder / LEDGER_NAME).exists():
            continue
        ledger = workspace.open_ledger()
        try:
            for row in ledger.jobs():
                yield Found(source, workspace, ledger, row)
        finally:
            ledger.close()


@contextmanager
def find_job(app: App, name: str, place: Path) -> Iterator[Found]:
    """The job of a source (its newest), or the one whose key begins with `name`."""
    path = Path(name)
    if path.is_file():
        workspace = app.workspace(path.resolve())
        if (workspace.folder / LEDGER_NAME).exists():
            ledger = workspace.open_ledger()
            try:
                rows = ledger.jobs()
                if rows:
                    yield Found(path.resolve(), workspace, ledger, rows[0])
                    return
            finally:
                ledger.close()
        raise UsageError(f"{name} has no job.", remedy="Run a pipeline over it first.")
    matches = {
        found.row.job.key: found.source
        for found in all_jobs(app, place)
        if found.row.job.key.startswith(name)
    }
    if len(matches) != 1:
        what = f"{len(matches)} jobs have" if matches else "no job has"
        raise UsageError(
            f"{what} a key that begins with {name!r} below {place}.",
            remedy="`intermission ls` lists the jobs; a source's path names its newest.",
        )
    ((key, source),) = matches.items()
    workspace = app.workspace(source)
    ledger = workspace.open_ledger()
    try:
        (row,) = ledger.jobs(key)
        yield Found(source, workspace, ledger, row)
    finally:
        ledger.close()


def find_task(found: Found, name: str) -> TaskRow:
    """A task by `step`, `step[7]`, or the beginning of its key."""
    match = _TASK.fullmatch(name)
    steps = {spec.name for spec in found.row.job.steps}
    if match is not None and match["step"] in steps:
        rows = list(found.ledger.tasks(found.row.job.key, step=match["step"]))
        if match["index"] is not None:
            rows = [row for row in rows if row.index == int(match["index"])]
    else:
        rows = [row for row in found.ledger.tasks(found.row.job.key) if row.key.startswith(name)]
    if len(rows) != 1:
        what = f"{len(rows)} tasks are" if rows else "no task is"
        raise UsageError(
            f"{what} named {name!r} in job {found.row.job.key[:10]}.",
            remedy="`intermission inspect JOB` lists them; a task of a mapped step is step[7].",
        )
    return rows[0]
