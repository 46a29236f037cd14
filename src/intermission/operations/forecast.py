"""What a run would do, told without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from intermission.composition.app import App
from intermission.composition.locations import Location, identify_location
from intermission.engine.completion import planned_chunks
from intermission.engine.planning import Plans, expand, make_job, plan_steps
from intermission.engine.receipt import peek
from intermission.errors import CorruptArtifact
from intermission.model import Job, Output, Task
from intermission.operations import explain
from intermission.pipeline import Pipeline
from intermission.ports.ledger import Ledger, every_output
from intermission.ports.store import Store
from intermission.scratch import holding


@holding()
def forecast(
    app: App, pipeline: Pipeline, path: Location, params: Mapping[str, Any]
) -> tuple[Job, Iterator[tuple[Task, bool, str]]]:
    """The job of a source, and what a run would do with the tasks that can be named now.

    Nothing is changed: a source that has no workspace gets none.
    """
    workspace = app.workspace(path)
    store = workspace.open_store()
    source = identify_location(path, store, app.settings, remember=False)
    job = make_job(pipeline, source, app.params_of(pipeline, path, params))
    in_ledger: dict[str, Output] = {}
    if any(not spec.durable for spec in job.steps):  # else there is nothing to open a ledger for
        with app.reading(workspace) as ledger:
            in_ledger = _ledger_outputs(ledger, job)
    plans = _known_plans(store, job, workspace.scratch, in_ledger)
    return job, explain.forecast(store, job, plans, in_ledger)


def _ledger_outputs(ledger: Ledger | None, job: Job) -> dict[str, Output]:
    """By key, the results of a job's tasks without receipts, which are in its ledger alone."""
    if ledger is None:
        return {}
    steps = [spec.name for spec in job.steps if not spec.durable]
    found = (one.output for step in steps for one in every_output(ledger, job.key, step))
    return {output.task_key: output for output in found if output is not None}


def _known_plans(store: Store, job: Job, scratch: Path, in_ledger: Mapping[str, Output]) -> Plans:
    """The chunks of every plan that is done, following plans that hang on plans."""
    plans: dict[str, Iterable[str]] = {}
    seen: set[str] = set()
    while True:
        named = {task.step: task.key for task in expand(job, plans)}
        new = [spec for spec in plan_steps(job) if spec.name in named and spec.name not in seen]
        if not new:
            return plans
        for spec in new:
            seen.add(spec.name)
            output = in_ledger.get(named[spec.name])
            receipt = None if not spec.durable else peek(store, spec.name, named[spec.name])
            if receipt is not None:
                output = Output(receipt.task_key, receipt.result, receipt.files)
            if output is not None:
                with suppress(CorruptArtifact):  # then the plan has to run again
                    plans[spec.name] = planned_chunks(store, output, scratch)
