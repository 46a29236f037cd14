"""What a job made, under the names that people find it by, and the bytes of it.

Bytes come from the artifacts that receipts name, so an output is there as soon as its task is
done. A name is looked up among a job's outputs and never becomes a path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from intermission.composition.fleet import Fleet
from intermission.engine.publish import published_name
from intermission.errors import CorruptArtifact
from intermission.model import FileRef, Job, JobRow, JobState
from intermission.operations.content_types import type_of
from intermission.operations.documents import OutputDocument
from intermission.pipeline.context import RESULT_NAME
from intermission.ports.ledger import Ledger, every_receipt
from intermission.ports.store import Store

CACHED_JOBS = 64
"""Done jobs whose list of outputs is remembered: a player asks for one segment after another."""
BLOCK_BYTES = 4 * 1024**2
"""What is read at a time of a file that is not on this machine."""

Outputs = Mapping[str, tuple[str, FileRef]]
"""By name: the step that made it, and the file."""


class PublishedOutputs:
    """The outputs of jobs; the lists of done jobs are remembered."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._done: OrderedDict[tuple[str, int], Outputs] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, row: JobRow) -> Outputs:
        """What a job has made so far, in the order of its tasks."""
        if row.state is not JobState.DONE:
            return outputs_of(self._fleet.ledger, row.job)
        version = (row.job.key, row.updated_ms)
        with self._lock:
            if version in self._done:
                self._done.move_to_end(version)
                return self._done[version]
        found = outputs_of(self._fleet.ledger, row.job)
        with self._lock:
            self._done[version] = found
            while len(self._done) > CACHED_JOBS:
                self._done.popitem(last=False)
        return found

    def open(self, row: JobRow, file: FileRef) -> OutputFile:
        """A file of a job. Raises `CorruptArtifact` when it is gone or has another size."""
        return OutputFile(self._fleet.app.workspace_of_job(row.job).open_store(), file)


def outputs_of(ledger: Ledger, job: Job) -> Outputs:
    """What a job has made so far, as its ledger knows it."""
    found: dict[str, tuple[str, FileRef]] = {}
    for task, output in every_receipt(ledger, job.key):
        spec = job.step(task.step)
        if spec.publish is None or spec.entrypoints:  # they lead to the same files
            continue
        for file in output.files:
            if file.name != RESULT_NAME:
                found[published_name(job, spec, task.index, file)] = spec.name, file
    return found


def documents_of(outputs: Outputs) -> list[OutputDocument]:
    return [
        OutputDocument(
            name=name,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            type=type_of(name),
            step=step,
        )
        for name, (step, file) in outputs.items()
    ]


class OutputFile:
    """One output, ready to be read. Its hash is not checked first: a player that seeks would have
    it read whole every time."""

    def __init__(self, store: Store, file: FileRef) -> None:
        self._store = store
        self._file = file
        stat = self._store.stat(file.key)
        if stat is None or stat.size_bytes != file.size_bytes:
            raise self._damaged()

    @property
    def path(self) -> Path | None:
        """Where it lies, if that is on this machine."""
        return self._store.local_path(self._file.key)

    def blocks(self, offset: int, end: int) -> Iterator[bytes]:
        """The bytes. Of a whole file the last are held back until its hash is right."""
        is_whole, digest = (offset, end) == (0, self._file.size_bytes), sha256()
        while offset < end:
            block = self._store.read_range(self._file.key, offset, min(BLOCK_BYTES, end - offset))
            offset += len(block)
            digest.update(block)
            if is_whole and offset == end and digest.hexdigest() != self._file.sha256:
                raise self._damaged()  # the client misses bytes, and knows it
            yield block

    def _damaged(self) -> CorruptArtifact:
        return CorruptArtifact(
            f"{self._file.name} is not what its receipt says.",
            task_key="",
            key=self._file.key,
            remedy="Submit the job again: what is lost is made again.",
        )
