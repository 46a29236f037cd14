"""A slot's reading and writing through a server: inputs, source and artifacts of its own task.

The slot has the key and the lease token, and with them what belongs to that task alone. It writes
no receipt and publishes nothing: the server does, when the worker completes the task.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from intermission.backends.http import work_schema as wire
from intermission.backends.http.client import STORE, Server, server
from intermission.engine.source import FetchedSource
from intermission.errors import CorruptArtifact, EnvironmentFault, fault_from_os
from intermission.model import FileRef, Job, Lease, Output, Receipt, Source
from intermission.scratch import FetchedFiles, Scratch, made_files, source_entry

if TYPE_CHECKING:
    import httpx

BLOCK_BYTES = 1024**2


@dataclass(frozen=True)
class HttpIO:
    """`TaskIO` for the tasks of one job behind a server. `scratch` is this machine's."""

    url: str
    key: str
    job: Job
    scratch: Path

    def adopt(self, lease: Lease, key: str, inputs: Mapping[str, str]) -> Receipt | None:
        """None: a server does not give out what is finished."""

    def is_finished(self, lease: Lease) -> bool:
        return False

    def source(self, lease: Lease) -> Source:
        return FetchedSource.of(self.job.source, partial(self._fetched_source, lease))

    def check_source(self) -> None:
        """The server checks what it sends."""

    def files(self, lease: Lease, output: Output) -> Mapping[str, Path]:
        return FetchedFiles(output.files, partial(self._fetched, lease, output))

    def folder(self, lease: Lease, key: str, attempt: str) -> Path:
        return Scratch(self.scratch).attempt(attempt)

    def keep(self, lease: Lease, key: str, attempt: str, folder: Path) -> tuple[FileRef, ...]:
        return tuple(self._upload(lease, name, path) for name, path in made_files(folder))

    def commit(self, lease: Lease, receipt: Receipt) -> tuple[Receipt, bool]:
        """The server writes it, when it is told that the task is complete."""
        return receipt, True

    def publish(self, lease: Lease, receipt: Receipt) -> None:
        """The server does."""

    def discard(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    @property
    def server(self) -> Server:
        return server(self.url, self.key)

    def _upload(self, lease: Lease, name: str, path: Path) -> FileRef:
        with _faults(f"uploading {name}", path):
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                size_bytes = os.fstat(file.fileno()).st_size
            self.server.call(
                f"uploading {name}",
                "PUT",
                f"{wire.ARTIFACTS}/{quote(name)}",
                lambda response: None,
                faults=STORE,
                body=lambda: _blocks(path),
                headers={
                    "Content-Type": "application/octet-stream",
                    "Content-Length": str(size_bytes),
                    "X-Content-SHA256": sha256,
                    wire.LEASE_HEADER: lease.token,
                },
            )
        return FileRef(name, "", size_bytes, sha256)

    def _fetched(self, lease: Lease, output: Output, ref: FileRef) -> Path:
        name, fetch = Path(ref.name).name, partial(self._download, lease, output, ref)
        return Scratch(self.scratch).file(ref.sha256, name, ref.size_bytes, fetch)

    def _download(self, lease: Lease, output: Output, ref: FileRef, to: Path) -> None:
        def receive(response: httpx.Response) -> str:
            digest = hashlib.sha256()
            with to.open("wb") as file:
                for block in response.iter_bytes(BLOCK_BYTES):
                    file.write(block)
                    digest.update(block)
            return digest.hexdigest()

        try:
            # The server invalidates what it finds altered, and answers with this error.
            found = self.server.call(
                f"fetching {ref.name}",
                "GET",
                ref.key,
                receive,
                faults=STORE,
                headers={wire.LEASE_HEADER: lease.token},
            )
        except CorruptArtifact as e:
            raise CorruptArtifact(e.message, task_key=output.task_key, key=ref.key) from e
        if found != ref.sha256:
            raise EnvironmentFault(
                f"expected {ref.name} with SHA-256 {ref.sha256}, found {found}.",
                remedy="Something altered it on its way: the task is tried again.",
            )

    def _fetched_source(self, lease: Lease, source: Source) -> Path:
        """The source as a file of this machine, downloaded once however many slots want it."""
        key = source_entry(source)
        fetch = partial(self._download_source, lease, source)
        return Scratch(self.scratch).file(key, source.name, source.size_bytes, fetch)

    def _download_source(self, lease: Lease, source: Source, part: Path) -> None:
        """What is missing of the file: a download that was cut goes on where it stopped."""

        def headers() -> dict[str, str]:
            have_bytes = part.stat().st_size if part.exists() else 0
            own = {wire.LEASE_HEADER: lease.token}
            if not 0 < have_bytes < source.size_bytes:
                return own
            etag = f'"{quote(source.fingerprint, safe=":")}"'
            return own | {"Range": f"bytes={have_bytes}-", "If-Range": etag}

        def receive(response: httpx.Response) -> None:
            with part.open("ab" if response.status_code == 206 else "wb") as file:
                for block in response.iter_bytes(BLOCK_BYTES):
                    file.write(block)

        doing = "fetching the source"
        self.server.call(doing, "GET", wire.SOURCE, receive, faults=STORE, headers=headers)
        if (found_bytes := part.stat().st_size) != source.size_bytes:
            part.unlink()
            raise EnvironmentFault(
                f"expected {source.size_bytes} bytes of {source.name}, found {found_bytes}.",
                remedy="The task is tried again.",
            )


@contextmanager
def _faults(doing: str, where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise fault_from_os(e, doing, EnvironmentFault, where=where) from e


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block
