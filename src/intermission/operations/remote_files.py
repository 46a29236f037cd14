"""What a lease token opens of the files: the task's inputs, its source, and its own artifacts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

from intermission.backends.http import work_schema as wire
from intermission.engine import completion
from intermission.engine.inputs import FanIn, fan_ins
from intermission.engine.receipt import fetch_file, is_sound
from intermission.errors import AlreadyExists, CorruptArtifact, NotFound
from intermission.model import FileRef, Output
from intermission.operations.held_tasks import HeldTask
from intermission.operations.remote_results import Refused
from intermission.operations.task_ends import check_artifact_name, keep_artifact
from intermission.scratch import holding


def input_page(held: HeldTask, param: str, after: int) -> wire.InputPage:
    """A page of what the tasks upstream made."""
    rows = _rows(held, param, after, wire.PAGE_MAX + 1)
    return _page(param, rows, after, wire.PAGE_MAX, wire.PAGE_MAX_BYTES)


def _rows(
    held: HeldTask, param: str, after: int, count: int
) -> Sequence[tuple[int, Output | None]]:
    """The outputs that a parameter takes, by their index: some of a fan-in, or the one there is."""
    fan_in = fan_ins(held.open_ledger(), held.opened.job, held.lease.step).get(param)
    if fan_in is not None:
        return fan_in.page(after, count)
    output = next(iter(held.inputs.get(param, ())), None)
    if output is None:
        raise NotFound(f"step {held.lease.step} has no input {param}.")
    return [(0, output)][after + 1 :]


@contextmanager
def input_file(held: HeldTask, param: str, index: int, name: str) -> Iterator[tuple[Path, FileRef]]:
    """A file of an input, its bytes as its receipt says, for as long as this lasts."""
    output, ref = _found(held, param, index, name)
    opened = held.opened
    with holding():
        try:
            path = fetch_file(opened.store, ref, opened.scratch)
        except CorruptArtifact as e:
            lost = {output.task_key: [ref.key]}
            completion.invalidate(held.open_ledger(), opened.store, opened.job, lost, str(e))
            raise
        yield path, ref


def direct_file(held: HeldTask, param: str, index: int, name: str) -> tuple[str, FileRef] | None:
    """Where the store itself gives a file of an input, for a while; None where it can't."""
    _, ref = _found(held, param, index, name)
    url = held.opened.store.presign(ref.key, expires_s=wire.DIRECT_S)
    return (url, ref) if _is_web(url) else None


def _found(held: HeldTask, param: str, index: int, name: str) -> tuple[Output, FileRef]:
    output = dict(_rows(held, param, index - 1, 1)).get(index)
    ref = next((file for file in output.files if file.name == name), None) if output else None
    if output is None or ref is None:
        raise NotFound(f"input {param} of this task has no file {name} at {index}.")
    return output, ref


def direct_source(held: HeldTask) -> str | None:
    """Where the store itself gives the source of a task's job; None where it can't."""
    opened = held.opened
    sign = opened.workspace.sign_source
    url = "" if sign is None else sign(opened.job.source, wire.DIRECT_S)
    return url if _is_web(url) else None


@contextmanager
def source_file(held: HeldTask) -> Iterator[Path]:
    """The source of a task's job, checked to be the one it was planned for."""
    opened, source = held.opened, held.opened.job.source
    (opened.workspace.check_source or opened.check_source)(source)
    fetch = opened.workspace.fetch_source
    with holding():
        yield source.path if fetch is None else fetch(source)


def direct_upload(held: HeldTask, asked: wire.Upload) -> wire.UploadAt:
    """Where the store itself takes an artifact of a task, for a while."""
    check_artifact_name(held, asked.name)
    url = ""
    if wire.DIRECT_MIN_BYTES <= asked.size_bytes <= wire.DIRECT_MAX_BYTES:
        key = _sent_key(held, asked.name)
        url = held.opened.store.presign(key, expires_s=wire.DIRECT_S, writes=True)
    # Azure takes nothing without this, and the others don't look at it.
    headers = {"x-ms-blob-type": "BlockBlob"}
    return wire.UploadAt(url=url if _is_web(url) else None, headers=headers)


def settle(held: HeldTask, sent: wire.Artifact) -> None:
    """Take over an artifact that a worker sent to the store; its bytes are looked at here.

    It is moved first: the worker's URL writes elsewhere, so nobody alters it afterwards.
    """
    store, key = held.opened.store, held.artifact_key(sent.name)
    check_artifact_name(held, sent.name)
    if store.stat(key) is None:
        with suppress(NotFound, AlreadyExists):
            store.move(_sent_key(held, sent.name), key)
    ref = FileRef(sent.name, key, sent.size_bytes, sent.sha256)
    if not is_sound(store, ref, held.opened.scratch):
        raise Refused(
            f"expected the artifact {sent.name} of {sent.size_bytes} bytes with SHA-256 "
            f"{sent.sha256} in the store, found none or another.",
            remedy="Send it again, then complete the task.",
        )


def keep_inline(held: HeldTask, sent: wire.Artifact, content: str) -> None:
    """Keep an artifact that came with the end of its task. Raises `Refused`."""
    check_artifact_name(held, sent.name)
    try:
        body = base64.b64decode(content, validate=True)
    except ValueError as e:
        raise Refused(
            f"the content of {sent.name} is not base64.", remedy="Encode the file's bytes."
        ) from e
    if (len(body), hashlib.sha256(body).hexdigest()) != (sent.size_bytes, sent.sha256):
        raise Refused(
            f"expected {sent.name} of {sent.size_bytes} bytes with SHA-256 {sent.sha256}, "
            "found another content.",
            remedy="Send the size and the SHA-256 of the bytes with them.",
        )
    try:
        add_artifact(held, sent.name, body, sent.sha256)
    except AlreadyExists as e:
        raise Refused(e.message, remedy=e.remedy) from e


def add_artifact(held: HeldTask, name: str, body: bytes | Path, sha256: str) -> wire.Uploaded:
    """Keep an artifact of an attempt. The same bytes again are no error."""
    kept = keep_artifact(held.opened.store, held.artifact_key(name), name, body, sha256)
    return wire.Uploaded(name=name, size_bytes=kept.size_bytes, sha256=sha256)


def _sent_key(held: HeldTask, name: str) -> str:
    """Where a worker may write: beside the attempt's own artifacts, and as good as lost there."""
    return f"{held.prefix}.sent/{name}"


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def first_page(param: str, outputs: Iterable[Output | None]) -> wire.InputPage:
    """As much of an input as comes with a lease."""
    if isinstance(outputs, FanIn):
        rows = outputs.page(-1, wire.FIRST_PAGE_MAX + 1)
    else:
        rows = list(enumerate(outputs))
    return _page(param, rows, -1, wire.FIRST_PAGE_MAX, wire.FIRST_PAGE_MAX_BYTES)


def _page(
    param: str,
    rows: Sequence[tuple[int, Output | None]],
    after: int,
    max_count: int,
    max_bytes: int,
) -> wire.InputPage:
    outputs: list[wire.InputOutput] = []
    size_bytes = 0
    for index, output in rows:
        if outputs and (len(outputs) >= max_count or size_bytes >= max_bytes):
            return wire.InputPage(outputs=outputs, next=outputs[-1].index)
        one = _output_document(param, index, output)
        size_bytes += len(one.result or "") + sum(len(file.url) + 200 for file in one.files)
        if outputs or max_count > wire.FIRST_PAGE_MAX or size_bytes <= max_bytes:
            outputs.append(one)
        else:  # with a lease comes only what is small
            return wire.InputPage(outputs=[], next=after)
    return wire.InputPage(outputs=outputs, next=None)


def _output_document(param: str, index: int, output: Output | None) -> wire.InputOutput:
    if output is None:
        return wire.InputOutput(index=index, key="", result=None, files=[])
    return wire.InputOutput(
        index=index,
        key=output.task_key,
        result=output.result,
        files=[
            wire.FileReference(
                name=file.name,
                size_bytes=file.size_bytes,
                sha256=file.sha256,
                url=f"{wire.FILE}?"
                + urlencode({"input": param, "index": index, "name": file.name}),
            )
            for file in output.files
        ],
    )
