"""A slot's reading and writing, straight from and to the store of the job's workspace."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from intermission.backends.edited_outputs import keep_edited
from intermission.backends.source_files import FetchedSource, SourceCheck
from intermission.engine.publish import publish
from intermission.engine.receipt import adopt, attempt_prefix, commit, fetched_files, is_there
from intermission.engine.workspace import Workspace
from intermission.model import FileRef, Job, Lease, Output, Receipt, Source
from intermission.ports.store import Store
from intermission.scratch import Scratch, made_files


@dataclass(frozen=True)
class StoreIO:
    """`TaskIO` with a store at hand; files for people go to the outputs."""

    job: Job
    store: Store
    open_outputs: Callable[[], Store] | None
    scratch: Path
    fetch_source: Callable[[Source], Path] | None = None
    check: Callable[[Source], None] = field(default_factory=SourceCheck)

    def adopt(self, lease: Lease, key: str, inputs: Mapping[str, str]) -> Receipt | None:
        return adopt(self.store, lease.step, key, self.scratch, inputs)

    def is_finished(self, lease: Lease) -> bool:
        return is_there(self.store, lease.step, lease.key)

    def source(self, lease: Lease) -> Source:
        if self.fetch_source is None:
            return self.job.source
        return FetchedSource.of(self.job.source, self.fetch_source)

    def check_source(self) -> None:
        self.check(self.job.source)

    def files(self, lease: Lease, output: Output) -> Mapping[str, Path]:
        return fetched_files(self.store, output, self.scratch)

    def folder(self, lease: Lease, key: str, attempt: str) -> Path:
        prefix = attempt_prefix(lease.step, key, attempt)
        return self.store.local_path(prefix) or Scratch(self.scratch).attempt(attempt)

    def keep(self, lease: Lease, key: str, attempt: str, folder: Path) -> tuple[FileRef, ...]:
        prefix = attempt_prefix(lease.step, key, attempt)
        files: list[FileRef] = []
        for name, path in made_files(folder):
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            stat = self.store.create(f"{prefix}/{name}", path)
            files.append(FileRef(name, stat.key, stat.size_bytes, sha256))
        return tuple(files)

    def commit(self, lease: Lease, receipt: Receipt) -> tuple[Receipt, bool]:
        while True:
            standing, ours = commit(self.store, receipt)
            # Another's may be of an attempt that came too late to keep its files: is it sound?
            if ours:
                return standing, True
            sound = adopt(self.store, lease.step, receipt.task_key, self.scratch)
            if sound is not None:
                return sound, False

    @cached_property
    def outputs(self) -> Store | None:
        return None if self.open_outputs is None else self.open_outputs()

    def publish(self, lease: Lease, receipt: Receipt) -> None:
        spec = self.job.step(lease.step)
        has_any = bool(receipt.files) or spec.entrypoints
        if spec.publish is None or not has_any or self.outputs is None:
            return
        what = self.job, spec, lease.index, receipt.files
        publish(self.store, self.outputs, *what, self.scratch, keep_edited)

    def discard(self, folder: Path) -> None:
        """What lies in the store itself is not this machine's alone; `gc` sees to it."""
        if folder.is_relative_to(self.scratch):
            shutil.rmtree(folder, ignore_errors=True)


def store_io(workspace: Workspace, job: Job) -> Callable[[], StoreIO]:
    """How a slot opens its own. It travels there, so it must pickle, and it knows no ledger."""
    openers = workspace.open_store, workspace.open_outputs
    elsewhere = workspace.fetch_source, workspace.check_source
    return partial(_open, job, workspace.scratch, *openers, *elsewhere)


def _open(
    job: Job,
    scratch: Path,
    open_store: Callable[[], Store],
    open_outputs: Callable[[], Store] | None,
    fetch_source: Callable[[Source], Path] | None,
    check_source: Callable[[Source], None] | None,
) -> StoreIO:
    check = check_source or SourceCheck()
    return StoreIO(job, open_store(), open_outputs, scratch, fetch_source, check)
