"""`intermission plan`: what a run would do, without doing any of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intermission.cli import options
from intermission.cli.command import say
from intermission.cli.formatting import count, near, skipped_text
from intermission.cli.jsonout import emit
from intermission.cli.pipeline_commands import meaning, split_words, usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from intermission.model import Job, Task
    from intermission.pipeline import Pipeline


def plan(
    ctx: typer.Context,
    pipeline: options.PipelineName,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE", help="Files, folders, or quoted patterns; none shows the graph."
        ),
    ] = None,
    param: options.Params = None,
    include: options.Include = None,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="List every task, not only what has to run and why.")
    ] = False,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Say what `run` would do, and why, and run nothing.

    Without a source: the pipeline's steps and parameters.
    """
    from intermission.operations.forecast import forecast

    options.refuse_option(pipeline)
    app = options.open_app(ctx)
    loaded = app.catalog.add(pipeline)
    places, own = split_words(sources or (), loaded)
    params = options.parse_params(param) | own
    if not places:
        emit({"event": "pipeline", **_pipeline_fields(loaded)}) if as_json else _draw(loaded)
        return
    loaded.bind(params)
    documents: list[dict[str, Any]] = []
    found = app.sources(places, include or (), loaded)
    for path in found.sources:
        job, expected = forecast(app, loaded, path, params)
        document = _document(path, job, expected)
        documents.append(document)
        if not as_json:
            _print(document, tasks)
    if as_json:
        emit({"event": "plan", "sources": documents})
    elif found.skipped:
        say(skipped_text(found.skipped))


def _document(path: object, job: Job, forecast: Iterable[tuple[Task, bool, str]]) -> dict[str, Any]:
    tasks = [
        {
            "task": task.step if task.chunk is None else f"{task.step}[{task.index}]",
            "step": task.step,
            "key": task.key,
            "would": "reuse" if reused else "run",
            "why": why,
        }
        for task, reused, why in forecast
    ]
    order = {spec.name: place for place, spec in enumerate(job.steps)}
    tasks.sort(key=lambda task: order[task["step"]])
    named = {task["step"] for task in tasks}
    return {
        "source": str(path),
        "job": job.key,
        "run": sum(task["would"] == "run" for task in tasks),
        "reuse": sum(task["would"] == "reuse" for task in tasks),
        "tasks": tasks,
        "unknown": [spec.name for spec in job.steps if spec.name not in named],
    }


def _print(document: dict[str, Any], every_task: bool) -> None:
    from intermission.composition.locations import as_location

    print(
        f"{near(as_location(document['source']))}: would run {count(document['run'], 'task')}, "
        f"reuse {document['reuse']:,} (job {document['job'][:10]})"
    )
    if every_task:
        for task in document["tasks"]:
            print(f"  {task['would']:<5}  {task['task']}: {task['why']}")
    else:
        # Tasks of one step with one reason are one line, however many they are.
        groups = Counter(
            (task["would"], task["step"], task["why"] if task["would"] == "run" else "")
            for task in document["tasks"]
        )
        for (would, step, why), n in groups.items():
            times = f" x{n:,}" if n > 1 else ""
            print(f"  {would:<5}  {step}{times}{f': {why}' if why else ''}")
    for step in document["unknown"]:
        print(f"  later  {step}: its tasks are known once the plan before it has run")


def _pipeline_fields(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "output": pipeline.output,
        "steps": [
            {
                "step": spec.name,
                "kind": str(spec.kind),
                "version": spec.version,
                "needs": spec.needs,
            }
            for spec in pipeline.specs
        ],
        "parameters": _parameters(pipeline),
    }


def _parameters(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    import json

    from intermission.pipeline.hints import description, type_name
    from intermission.pipeline.step import encode_parameter

    return {
        name: {
            "type": type_name(hint),
            "description": description(hint),
            "required": default is ...,
            "default": None if default is ... else json.loads(encode_parameter(hint, default)),
        }
        for name, (hint, default) in pipeline.parameters.items()
    }


def _draw(pipeline: Pipeline) -> None:
    from intermission.pipeline.parameter import parameters_of

    print(pipeline.explain())
    for parameter in parameters_of(pipeline):
        print(f"  {usage(parameter)}  {meaning(parameter)}".rstrip())
