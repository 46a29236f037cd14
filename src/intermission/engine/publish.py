"""Outputs for people: finished artifacts, copied under the names a pipeline gives them.

Each file is replaced in one step, so a reader sees the old or the new one, whole. What was
published is remembered, and done again when the file is gone, altered or from another job.

Where names hold `{version}`, jobs of one pipeline do not write over each other: the first has the
top, every other a folder of its own. Then the files of a *front* step, which lead to the others,
say whose outputs are in use; nothing else takes their names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from intermission.engine.receipt import fetch_file
from intermission.errors import AlreadyExists, NotFound, StoreError
from intermission.model import FileRef, Job, StepSpec
from intermission.pipeline.context import RESULT_NAME
from intermission.ports.store import Stat, Store, read_note, write_note
from intermission.scratch import holding
from intermission.telemetry import reached

KeepEdited = Callable[[Store, Stat, tuple[str, str], Path], None]
VERSION = "{version}"
VERSIONS = "published/.versions"
"""Where it is written down; no output has a name that begins with a dot."""


@dataclass(frozen=True)
class Versions:
    """The jobs of one pipeline that publish, by their keys."""

    first: str
    front: str | None = None
    former: tuple[str, ...] = ()
    """Were in front once: whatever of theirs is still there may go."""

    def without(self, *jobs: str) -> Versions:
        """The same, but these are not former ones."""
        return replace(self, former=tuple(key for key in self.former if key not in jobs))


def published_name(job: Job, spec: StepSpec, index: int, file: FileRef, version: str = "") -> str:
    """The name of a task's file among the outputs."""
    return (spec.publish or "{name}").format(
        index=index,
        name=file.name,
        ext=PurePosixPath(file.name).suffix.removeprefix("."),
        stem=PurePosixPath(job.source.name).stem,
        version=version,
    )


@holding()
def publish(
    store: Store,
    outputs: Store,
    job: Job,
    spec: StepSpec,
    index: int,
    files: Iterable[FileRef],
    scratch: Path,
    keep_edited: KeepEdited | None = None,
) -> list[str]:
    """Copy a task's files to the outputs, where they are not already. Their names.

    `keep_edited` is told of a file that was changed since, and of the hashes it had or will have.
    """
    version = version_for(store, job, spec)
    names: list[str] = []
    if spec.entrypoints:  # before its files lead here: they are never called former meanwhile
        change_versions(store, job.pipeline, lambda was: was.without(job.key))
    for file in files:
        if file.name == RESULT_NAME:
            continue
        name = published_name(job, spec, index, file, version)
        names.append(name)
        stat = outputs.stat(name)
        known = memory_of(store, name) if stat is not None else {}
        if known.get("front") and not spec.entrypoints:
            continue
        data, sha256 = None, file.sha256
        if spec.entrypoints:
            text = fetch_file(store, file, scratch).read_bytes()
            data = text.replace(VERSION.encode(), version.encode())
            sha256 = hashlib.sha256(data).hexdigest()
        wanted = {"sha256": sha256, "job": job.key, "front": spec.entrypoints}
        if stat is not None and known == {**wanted, "version": stat.version}:
            continue
        if stat and keep_edited and known.get("sha256") and known["version"] != stat.version:
            keep_edited(outputs, stat, (known["sha256"], sha256), scratch)
        reached("before-publish")
        stat = outputs.replace(name, fetch_file(store, file, scratch) if data is None else data)
        write_note(store, memory_key(name), {**wanted, "version": stat.version})
        reached("after-publish")
    if spec.entrypoints:
        change_versions(store, job.pipeline, lambda was: _led_by(was, job.key))
    return names


def memory_key(name: str) -> str:
    return f"published/{name}.json"


def memory_of(store: Store, name: str) -> dict[str, Any]:
    """What is remembered of a published file; nothing, if it is not."""
    return read_note(store, memory_key(name))


def version_for(store: Store, job: Job, spec: StepSpec) -> str:
    """What stands for `{version}` in the names of a step's files."""
    has_versions = spec.entrypoints or VERSION in (spec.publish or "")
    return version_of(store, job) if has_versions else ""


def version_of(store: Store, job: Job) -> str:
    """The folder of a job's outputs, with a slash; "" for the pipeline's first job here."""
    versions = read_versions(store, job.pipeline)
    if versions is None:
        first = json.dumps(asdict(Versions(job.key))).encode()
        with suppress(AlreadyExists):
            store.create(versions_key(job.pipeline), first)
        versions = read_versions(store, job.pipeline)
    return "" if versions and versions.first == job.key else f"{job.key[:10]}/"


def versions_key(pipeline: str) -> str:
    return f"{VERSIONS}/{pipeline}.json"


def read_versions(store: Store, pipeline: str) -> Versions | None:
    key = versions_key(pipeline)
    try:
        data = json.loads(store.read(key))
        return Versions(data["first"], data["front"], tuple(data["former"]))
    except NotFound:
        return None
    except (ValueError, TypeError, KeyError) as e:
        raise StoreError(
            f"expected what {pipeline} published under {key} in {store.uri}, found something else.",
            remedy="Move it away; the next job is then taken for the first.",
        ) from e


def change_versions(store: Store, pipeline: str, change: Callable[[Versions], Versions]) -> None:
    """Write down another state of things, computed from the one that stands."""
    while True:
        stat = store.stat(versions_key(pipeline))
        was = read_versions(store, pipeline)
        if stat is None or was is None or (now := change(was)) == was:
            return
        data = json.dumps(asdict(now)).encode()
        with suppress(AlreadyExists):
            store.replace(versions_key(pipeline), data, if_version=stat.version)
            return


def _led_by(was: Versions, job_key: str) -> Versions:
    before = () if was.front in (None, job_key) else (was.front,)
    return Versions(was.first, job_key, (*was.without(job_key).former, *before))
