"""Outputs for people: finished artifacts, copied under the names a pipeline gives them.

Each file is replaced in one step, so a reader sees the old or the new one, whole. What was
published is remembered, and done again when the file is gone, altered or from another job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from intermission.engine.receipt import fetch_file
from intermission.errors import NotFound
from intermission.model import FileRef, Job, StepSpec
from intermission.pipeline.context import RESULT_NAME
from intermission.ports.store import Store
from intermission.telemetry import reached


def published_name(job: Job, spec: StepSpec, index: int, file: FileRef) -> str:
    """The name of a task's file among the outputs."""
    return (spec.publish or "{name}").format(
        index=index,
        name=file.name,
        ext=PurePosixPath(file.name).suffix.removeprefix("."),
        stem=PurePosixPath(job.source.name).stem,
    )


def publish(
    store: Store,
    outputs: Store,
    job: Job,
    spec: StepSpec,
    index: int,
    files: Iterable[FileRef],
    scratch: Path,
) -> list[str]:
    """Copy a task's files to the outputs, where they are not already. Their names."""
    names: list[str] = []
    for file in files:
        if file.name == RESULT_NAME:
            continue
        name = published_name(job, spec, index, file)
        names.append(name)
        memory = f"published/{name}.json"
        if _is_current(store, outputs, name, memory, file.sha256):
            continue
        reached("before-publish")
        stat = outputs.replace(name, fetch_file(store, file, scratch))
        store.replace(memory, json.dumps({"sha256": file.sha256, "version": stat.version}).encode())
        reached("after-publish")
    return names


def _is_current(store: Store, outputs: Store, name: str, memory: str, sha256: str) -> bool:
    stat = outputs.stat(name)
    if stat is None:
        return False
    try:
        known = json.loads(store.read(memory))
    except (NotFound, ValueError):
        return False
    return known == {"sha256": sha256, "version": stat.version}
