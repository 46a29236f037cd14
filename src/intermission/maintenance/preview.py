"""What can be used of a job while it runs: texts of its pipeline's preview, published beside it.

A thread with a ledger of its own looks every few seconds at the jobs that this process works on.
It never fails a job and never holds one up. Several workers may look at one job: a text made from
fewer results never takes the place of one made from more, and none takes the place of what a step
published at the end.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any, Protocol

from intermission.engine.publish import memory_key, memory_of, version_of
from intermission.engine.receipt import fetched_files
from intermission.engine.run_task import result_text
from intermission.engine.workspace import Workspace
from intermission.errors import AlreadyExists, IntermissionError
from intermission.maintenance.superseded_outputs import preview_key
from intermission.model import EdgeKind, Job, JobRow, Output, TaskState
from intermission.pipeline import Pipeline
from intermission.ports.ledger import Ledger, outputs_at
from intermission.ports.store import Store, write_note

EVERY_S = 2.0
LAST_S = 10.0
"""How long the end of a process waits for the last look."""
EVENTS_PAGE = 1000
_NEVER = 2**62
_WAITING = {TaskState.BLOCKED, TaskState.CANCELLED}
log = logging.getLogger(__name__)


class WatchedJob(Protocol):
    """A job that this process has open."""

    @property
    def job(self) -> Job: ...

    @property
    def workspace(self) -> Workspace: ...

    @property
    def resources(self) -> ExitStack: ...


class Previews:
    """The jobs this process works on whose pipelines have a preview. Close it at the end."""

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def watch(self, opened: WatchedJob, pipeline: Pipeline) -> None:
        """Look at a job from now on, until its resources are closed."""
        if pipeline.preview is None or opened.workspace.open_outputs is None:
            return
        watched = _Watched(opened, pipeline)
        with self._lock:
            self._watched.append(watched)
        opened.resources.callback(self._end, watched)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="preview", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Have a last look at what has not been looked at since its end."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(LAST_S)

    def _end(self, watched: _Watched) -> None:
        watched.is_ending = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            is_last = self._closing
            with self._lock:
                watched = list(self._watched)
            for one in watched:
                is_ending = one.is_ending
                one.look()
                if is_ending or is_last:
                    one.close()
                    with self._lock:
                        self._watched.remove(one)
            if is_last:
                return
            self._wake.wait(EVERY_S)
            self._wake.clear()


class _Watched:
    """One job, looked at by the thread alone."""

    def __init__(self, opened: WatchedJob, pipeline: Pipeline) -> None:
        self.is_ending = False
        self._job = opened.job
        self._pipeline = pipeline
        self._workspace = opened.workspace
        self._ledger: Ledger | None = None
        self._seen = -1
        self._seq = 0
        """The last event that was read."""
        self._outputs: dict[tuple[str, int], Output] = {}
        """By step and index: the outputs of done tasks, as of that event."""
        self._values: dict[str, Any] = {}
        """By key of a task: its result."""
        self._steps = [name for name in pipeline.preview_inputs if name in pipeline.steps]

    @cached_property
    def _store(self) -> Store:
        return self._workspace.open_store()

    @cached_property
    def _published(self) -> Store:
        assert self._workspace.open_outputs is not None
        return self._workspace.open_outputs()

    def look(self) -> None:
        """Publish what there is by now, if that is more than the last time."""
        try:
            if self._ledger is None:
                self._ledger = self._workspace.open_ledger()
            self._look(self._ledger)
        except IntermissionError as e:  # it is tried again with the next result
            log.warning("job %s has no newer preview: %s", self._job.key[:10], e)
        except Exception as e:  # it is the pipeline's own code
            what = f"{type(e).__name__}: {e}"
            log.warning("the preview of %s is broken (%s): left out", self._pipeline.name, what)
            self._seen = _NEVER

    def close(self) -> None:
        if self._ledger is not None:
            with suppress(IntermissionError):
                self._ledger.close()

    def _look(self, ledger: Ledger) -> None:
        (row,) = ledger.jobs(self._job.key)
        if self._done(row, self._steps) <= self._seen or not self._has_begun(row):
            return
        self._read_new(ledger)
        found = {name: self._found(row, name) for name in self._needed()}
        count = sum(one is not None for name in self._steps for one in found[name])
        values = self._pipeline.unbind(self._job.params)
        given = {
            name: self._value(name, found[name]) if name in found else values[name]
            for name in self._pipeline.preview_inputs
        }
        assert self._pipeline.preview is not None
        if self._publish(ledger, self._pipeline.preview(**given), count):
            self._seen = count

    def _read_new(self, ledger: Ledger) -> None:
        """Read the outputs of the tasks that changed since the last look, and no others."""
        changed: dict[str, set[int]] = {name: set() for name in self._needed()}
        while page := ledger.events(self._seq, job=self._job.key, limit=EVENTS_PAGE):
            for event in page:
                if event.step in changed and event.index is not None and event.progress is None:
                    changed[event.step].add(event.index)
            self._seq = page[-1].seq
        for step, indices in changed.items():
            for one in outputs_at(ledger, self._job.key, step, indices):
                if one.output is None:
                    self._outputs.pop((step, one.index), None)
                else:
                    self._outputs[step, one.index] = one.output

    def _found(self, row: JobRow, step: str) -> list[Output | None]:
        many = sum(row.counts.get(step, {}).values())
        return [self._outputs.get((step, index)) for index in range(many)]

    def _done(self, row: JobRow, steps: Iterable[str]) -> int:
        return sum(row.counts.get(name, {}).get(TaskState.DONE, 0) for name in steps)

    def _needed(self) -> list[str]:
        """The steps whose results it takes, and the plans of those that are mapped."""
        plans = [self._job.step(name).plan for name in self._steps]
        return [*self._steps, *(plan for plan in plans if plan is not None)]

    def _has_begun(self, row: JobRow) -> bool:
        """Whether every step that has one task is done: of the others, which tasks there are."""
        alone = [name for name in self._needed() if self._job.step(name).plan is None]
        return self._done(row, alone) == len(alone)

    def _value(self, step: str, outputs: list[Output | None]) -> Any:
        values = [None if one is None else self._decoded(step, one) for one in outputs]
        return values if self._job.step(step).plan is not None else values[0]

    def _decoded(self, step: str, output: Output) -> Any:
        if output.task_key not in self._values:
            files = fetched_files(self._store, output, self._workspace.scratch)
            text = result_text(output, files)
            self._values[output.task_key] = self._pipeline.steps[step].decode(text, files)
        return self._values[output.task_key]

    def _publish(self, ledger: Ledger, texts: Mapping[str, str], count: int) -> bool:
        """Put texts in their places; False if somebody wrote there at the same time.

        The order keeps an old text from a newer one's place. Whoever writes has first looked at
        what was there, then at what is known of it: that the job's own steps have not come so far
        as to publish these names, and that nobody has seen more results.
        """
        version = version_of(self._store, self._job)
        named = {f"{version}{name}": text.encode() for name, text in texts.items()}
        found = {name: self._published.stat(name) for name in named}
        if self._is_over(ledger) or not self._is_newest(count):
            return True
        try:
            for name, data in named.items():
                stat = found[name]
                known = memory_of(self._store, name)
                if known.get("front"):
                    continue
                if stat is None:
                    self._remember(name)
                    self._published.create(name, data)
                elif self._published.read(name) != data:
                    if known.get("sha256"):  # or the preview would pass for an edited file
                        write_note(self._store, memory_key(name), self._memory())
                    self._published.replace(name, data, if_version=stat.version)
        except AlreadyExists:
            return False
        return True

    def _is_over(self, ledger: Ledger) -> bool:
        """Whether a step that takes everything the preview takes has left its place in the line."""
        (row,) = ledger.jobs(self._job.key)
        mapped = {name for name in self._steps if self._job.step(name).plan is not None}
        for spec in self._job.steps:
            taken = {edge.upstream for edge in spec.edges if edge.kind is EdgeKind.ALL}
            if mapped <= taken and row.counts.get(spec.name, {}).keys() - _WAITING:
                return True
        return False

    def _is_newest(self, count: int) -> bool:
        """Write down from how many results the texts are made, unless others saw more."""
        store, key = self._store, preview_key(self._job.key)
        data = json.dumps({"results": count}).encode()
        while True:
            stat = store.stat(key)
            with suppress(AlreadyExists):
                if stat is None:
                    store.create(key, data)
                    return True
                known = int(json.loads(store.read(key))["results"])
                if known < count:
                    store.replace(key, data, if_version=stat.version)
                return known <= count

    def _remember(self, name: str) -> None:
        """That the file is this job's, for the garbage collection."""
        with suppress(AlreadyExists):
            self._store.create(memory_key(name), json.dumps(self._memory()).encode())

    def _memory(self) -> dict[str, Any]:
        return {"sha256": "", "job": self._job.key, "front": False, "version": ""}
