"""Ends of tasks that ran elsewhere: what was sent in is checked, and the receipt is written here.

Remote workers and outside events hand in artifacts and a result. They write no receipt and name
no place: where a file lies and what the receipt says follow from the task and its attempt alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from intermission.backends.edited_outputs import keep_edited
from intermission.engine.publish import publish
from intermission.engine.receipt import commit
from intermission.engine.run_task import receipt_of
from intermission.errors import AlreadyExists, CorruptArtifact, UsageError
from intermission.model import RESULT_INLINE_MAX_BYTES, Completion, FileRef, Receipt, StepKind
from intermission.operations.held_tasks import HeldTask
from intermission.operations.remote_results import Refused, check_plan, checked_result
from intermission.pipeline.chunk import ChunkFile
from intermission.pipeline.context import RESULT_NAME, is_output_name
from intermission.ports.store import Store


class SentFile(Protocol):
    """What a sender says of an artifact it has handed in."""

    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


def check_artifact_name(held: HeldTask, name: str) -> None:
    """Raise `UsageError` unless a task may have an artifact of this name."""
    if not (is_output_name(name) or name == RESULT_NAME):
        raise UsageError(
            f"an artifact cannot be called {name[:200]!r}.",
            remedy="Use letters, digits, spaces and -_.@+=,()[] in each part of the name.",
        )
    if not held.spec.durable:
        raise UsageError(
            f"step {held.spec.name} is not durable: it keeps no files.",
            remedy="Give the result alone.",
        )


def keep_artifact(store: Store, key: str, name: str, body: bytes | Path, sha256: str) -> FileRef:
    """Keep an artifact under a key of its attempt. The same bytes again are no error."""
    size_bytes = len(body) if isinstance(body, bytes) else body.stat().st_size
    try:
        store.create(key, body)
    except AlreadyExists:
        if not _has(store, key, size_bytes, sha256):
            raise AlreadyExists(
                f"this attempt has another {name}.", remedy="Give the file another name."
            ) from None
    return FileRef(name, key, size_bytes, sha256)


def _has(store: Store, key: str, size_bytes: int, sha256: str) -> bool:
    with TemporaryDirectory(prefix="intermission-") as folder:
        try:
            store.fetch(key, Path(folder, "standing"), size_bytes=size_bytes, sha256=sha256)
        except CorruptArtifact:
            return False
    return True


def kept_files(
    held: HeldTask, named: Sequence[SentFile], key_of: Callable[[SentFile], str]
) -> tuple[FileRef, ...]:
    """The artifacts that a sender names, which have to be there. Raises `Refused`."""
    files: list[FileRef] = []
    for one in sorted(named, key=lambda one: one.name):
        if not (is_output_name(one.name) or one.name == RESULT_NAME):
            raise Refused(f"an artifact cannot be called {one.name[:200]!r}.")
        key = key_of(one)
        stat = held.opened.store.stat(key)
        if stat is None or stat.size_bytes != one.size_bytes:
            found = "none" if stat is None else f"one of {stat.size_bytes}"
            raise Refused(
                f"expected an uploaded artifact {one.name} of {one.size_bytes} bytes, found "
                f"{found}.",
                remedy="Send the file first, then the result.",
            )
        files.append(FileRef(one.name, key, one.size_bytes, one.sha256))
    return tuple(files)


def result_of(held: HeldTask, result: str, files: Sequence[FileRef]) -> str:
    """The result as it is recorded, checked against the step's return type. Raises `Refused`."""
    pipeline, spec = held.opened.pipeline, held.spec
    names = {file.name for file in files}
    if not spec.durable:
        if files:
            raise Refused(f"step {spec.name} is not durable: it keeps no files.")
        return checked_result(pipeline, spec, result, ())
    large = next((file for file in files if file.name == RESULT_NAME), None)
    if result and large is None:
        if len(result.encode()) > RESULT_INLINE_MAX_BYTES:
            raise Refused(
                f"the result has more than {RESULT_INLINE_MAX_BYTES} bytes.",
                remedy=f"Give it as the file {RESULT_NAME}, and leave the result empty.",
            )
        return checked_result(pipeline, spec, result, names)
    if result or large is None:
        raise Refused(
            f"expected a result, or a file {RESULT_NAME}, found both or none.",
            remedy="Give exactly one of them.",
        )
    with TemporaryDirectory(prefix="intermission-") as folder:
        path = held.opened.store.fetch(
            large.key,
            Path(folder, RESULT_NAME),
            size_bytes=large.size_bytes,
            sha256=large.sha256,
        )
        if spec.kind is StepKind.PLAN:
            check_plan(pipeline, spec, ChunkFile(path))
        else:
            checked_result(pipeline, spec, path.read_text(), names)
    return ""


def finished(held: HeldTask, result: str, files: Sequence[FileRef], now_ms: int) -> Completion:
    """A task's end; a durable step's with its receipt, created here unless one stands already."""
    lease, checked = held.lease, result_of(held, result, files)
    if not held.spec.durable:
        return Completion(lease.task_id, lease.fence, checked, key=lease.key)
    receipt = receipt_of(
        held.opened.job,
        lease,
        held.inputs,
        key=held.receipt_key,
        attempt=held.token.attempt,
        result=checked,
        files=tuple(files),
        worker=held.token.process,
        ended_ms=now_ms,
    )
    standing, is_ours = commit(held.opened.store, receipt)
    publish_outputs(held, standing)
    return completion_of(held, standing, adopted=not is_ours)


def completion_of(held: HeldTask, receipt: Receipt, *, adopted: bool) -> Completion:
    lease = held.lease
    return Completion(lease.task_id, lease.fence, receipt.result, receipt, adopted, key=lease.key)


def publish_outputs(held: HeldTask, receipt: Receipt) -> None:
    """Put a finished task's files where people find them, if its step has any for them."""
    opened, spec = held.opened, held.spec
    if opened.outputs is not None and spec.publish is not None:
        publish(
            opened.store,
            opened.outputs,
            opened.job,
            spec,
            held.lease.index,
            receipt.files,
            opened.scratch,
            keep_edited,
        )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
