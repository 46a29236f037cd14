"""Receipts: how a task becomes finished, and how anyone tells that it is.

The store decides who wins: the first receipt created under a task's key stands, and whoever
comes later adopts it. Nothing here asks the ledger.

A receipt is never deleted. One that turns out to be unsound is withdrawn: replaced by an empty
object, on condition that it is still the one that was judged; the next receipt takes the place of
that empty object on the same condition. So a process that was asleep in the middle of it finds its
condition untrue, on every store, instead of removing what others have finished since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from intermission.errors import AlreadyExists, CorruptArtifact, NotFound, StoreError
from intermission.model import FileRef, Output, Receipt
from intermission.ports.store import Store
from intermission.scratch import FetchedFiles, Scratch
from intermission.telemetry import reached

_WITHDRAWN = b""


def receipt_key(step: str, task_key: str) -> str:
    return f"receipts/{step}/{task_key}.json"


def attempt_prefix(step: str, task_key: str, attempt: str) -> str:
    """Where one attempt's artifacts lie; no two attempts share it, not even across ledgers."""
    return f"artifacts/{step}/{task_key}/{attempt}"


def new_attempt(fence: int) -> str:
    return f"{fence:05d}-{uuid4().hex[:12]}"


def commit(store: Store, receipt: Receipt) -> tuple[Receipt, bool]:
    """Create the receipt. The one that stands, and whether it is this one."""
    key, data = receipt_key(receipt.step, receipt.task_key), receipt.to_json().encode()
    reached("before-receipt")
    while not _write(store, key, data):
        standing = find(store, receipt.step, receipt.task_key)
        if standing is not None:  # else it was no receipt, and is withdrawn now
            return standing, standing.attempt == receipt.attempt
    reached("after-receipt")
    return receipt, True


def _write(store: Store, key: str, data: bytes) -> bool:
    """Write a receipt where there is none, or a withdrawn one; False where something else is."""
    try:
        store.create(key, data)
    except AlreadyExists:
        stat = store.stat(key)
        if stat is None or stat.size_bytes:
            return False
        try:
            store.replace(key, data, if_version=stat.version)
        except AlreadyExists:
            return False
    return True


def is_there(store: Store, step: str, task_key: str) -> bool:
    """Whether a task has a receipt, sound or not, without reading it."""
    stat = store.stat(receipt_key(step, task_key))
    return stat is not None and stat.size_bytes > 0


def find(store: Store, step: str, task_key: str) -> Receipt | None:
    """The standing receipt of a task. Bytes that are no receipt are put into quarantine."""
    found = _find(store, step, task_key)
    return None if found is None else found[0]


def _find(store: Store, step: str, task_key: str) -> tuple[Receipt, bytes] | None:
    key = receipt_key(step, task_key)
    try:
        data = store.read(key)
    except NotFound:
        return None
    if data == _WITHDRAWN:
        return None
    receipt = _parse(data, step, task_key)
    if receipt is None:
        withdraw(store, key, data)
        return None
    return receipt, data


def peek(store: Store, step: str, task_key: str) -> Receipt | None:
    """The standing receipt of a task, for those who only look: nothing is changed."""
    try:
        return _parse(store.read(receipt_key(step, task_key)), step, task_key)
    except NotFound:
        return None


def _parse(data: bytes, step: str, task_key: str) -> Receipt | None:
    try:
        receipt = Receipt.from_json(data)
    except (ValueError, TypeError, KeyError):
        return None
    return receipt if (receipt.step, receipt.task_key) == (step, task_key) else None


def adopt(
    store: Store, step: str, task_key: str, scratch: Path, inputs: Mapping[str, str] | None = None
) -> Receipt | None:
    """The standing receipt, if every file it names is there, byte for byte.

    And if it was made from what `inputs` says, where both know: an input that was lost and made
    again may have come out differently. Otherwise what is left of it goes into quarantine and the
    task has to run.
    """
    key = receipt_key(step, task_key)
    while (found := _find(store, step, task_key)) is not None:
        receipt, data = found
        if inputs is not None and any(
            inputs.get(param, made_from) != made_from for param, made_from in receipt.inputs.items()
        ):
            withdraw(store, key, data)
            continue
        unsound = next((one for one in receipt.files if not is_sound(store, one, scratch)), None)
        if unsound is not None:
            # The file first: while the receipt stands, whoever comes after a crash finds it
            # unsound. Then look again, because somebody may have finished the task since.
            quarantine(store, [unsound.key])
            withdraw(store, key, data)
            continue
        if _settle(store, key):
            return receipt
    return None


def _settle(store: Store, key: str) -> bool:
    """Its writer may have been killed before the last sync: what is adopted must be durable.

    False when the receipt was withdrawn meanwhile.
    """
    path = store.local_path(key)
    try:
        if path is not None:
            return store.create(key, path).size_bytes > 0
    except StoreError:
        if store.stat(key) is not None:
            raise
        return False
    return True


def fetched_files(store: Store, output: Output, scratch: Path) -> Mapping[str, Path]:
    """Local paths of a finished task's files by name, fetched and verified when asked for."""

    def fetch(ref: FileRef) -> Path:
        try:
            return fetch_file(store, ref, scratch)
        except CorruptArtifact as e:
            ids = {"task_key": output.task_key, "key": ref.key}
            raise CorruptArtifact(e.message, **ids, remedy=e.remedy) from e

    return FetchedFiles(output.files, fetch)


def fetch_file(store: Store, ref: FileRef, scratch: Path) -> Path:
    """A local path of one file with its bytes; where a store has none, a copy in `scratch`.

    A copy is verified when it comes, and not again: the store may have lost the file since.
    """
    return _fetch_file(store, ref, scratch, again=False)


def is_sound(store: Store, ref: FileRef, scratch: Path) -> bool:
    """Whether the store has a file, byte for byte; a copy in `scratch` proves nothing of that."""
    try:
        _fetch_file(store, ref, scratch, again=True)
    except CorruptArtifact:
        return False
    return True


def _fetch_file(store: Store, ref: FileRef, scratch: Path, *, again: bool) -> Path:
    def fetch(to: Path) -> Path:
        return store.fetch(ref.key, to, size_bytes=ref.size_bytes, sha256=ref.sha256)

    if store.local_path(ref.key) is not None:
        return fetch(scratch / ref.sha256)  # its own file; nothing is copied
    name = Path(ref.name).name
    return Scratch(scratch).file(ref.sha256, name, ref.size_bytes, fetch, again=again)


def quarantine(store: Store, keys: Iterable[str]) -> None:
    """Move objects out of the way without losing them; what is not there is no matter."""
    for key in keys:
        reached("mid-quarantine")
        with suppress(NotFound):
            store.move(key, _aside(key))


def withdraw(store: Store, key: str, judged: bytes) -> None:
    """Put the receipt with these bytes into quarantine; another that stands there by now stays.

    Whoever judged it may have been asleep since, and the task may be finished again.
    """
    reached("mid-quarantine")
    stat = store.stat(key)
    with suppress(NotFound, AlreadyExists):
        if stat is not None and stat.size_bytes and store.read(key) == judged:
            store.create(_aside(key), judged)
            store.replace(key, _WITHDRAWN, if_version=stat.version)


def _aside(key: str) -> str:
    return f"quarantine/{uuid4().hex[:8]}/{key}"
