"""A slot's reading and writing through a server: inputs, source and artifacts of its own task.

The slot has the key and the lease token, and with them what belongs to that task alone. It writes
no receipt and publishes nothing: the server does, when the worker completes the task.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from intermission.backends.http import work_schema as wire
from intermission.backends.http.client import (
    BLOCK_BYTES,
    STORE,
    Elsewhere,
    Server,
    blocks,
    measured,
    server,
)
from intermission.backends.source_files import FetchedSource
from intermission.errors import CorruptArtifact, EnvironmentFault, fault_from_os
from intermission.model import FileRef, Job, Lease, Output, Receipt, Source
from intermission.scratch import FetchedFiles, Scratch, made_files, source_entry

if TYPE_CHECKING:
    import httpx

DIRECT_AGAIN_S = 600.0
"""How long a store that could not be reached from here is left alone."""
log = logging.getLogger(__name__)
_direct_again_s: dict[str, float] = {}
"""By the URL of a server, from when on its store may be asked again."""


@dataclass(frozen=True)
class HttpIO:
    """`TaskIO` for the tasks of one job behind a server. `scratch` is this machine's."""

    url: str
    key: str
    job: Job
    scratch: Path
    inline_max_bytes: int = 0
    """As much of a task's files travels with its end; no server is asked to take them before."""

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
        left_bytes = self.inline_max_bytes
        files: list[FileRef] = []
        for name, path in made_files(folder):
            with _faults(f"uploading {name}", path):
                if path.stat().st_size <= left_bytes:
                    body = path.read_bytes()
                    left_bytes -= len(body)
                    key = wire.INLINE + base64.b64encode(body).decode()
                    files.append(FileRef(name, key, len(body), hashlib.sha256(body).hexdigest()))
                else:
                    files.append(self._upload(lease, name, path))
        return tuple(files)

    def commit(self, lease: Lease, receipt: Receipt) -> tuple[Receipt, bool]:
        """The server writes it, when it is told that the task is complete."""
        return receipt, True

    def publish(self, lease: Lease, receipt: Receipt) -> None:
        """The server does."""

    def discard(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    @cached_property
    def server(self) -> Server:
        """Kept, because its connections are."""
        return server(self.url, self.key)

    def _upload(self, lease: Lease, name: str, path: Path) -> FileRef:
        size_bytes, sha256 = measured(path)
        if self._sent_directly(lease, name, path, size_bytes):
            return FileRef(name, wire.DIRECT, size_bytes, sha256)
        self.server.send_file(
            f"uploading {name}",
            f"{wire.ARTIFACTS}/{quote(name)}",
            path,
            size_bytes,
            sha256,
            lambda response: None,
            headers={wire.LEASE_HEADER: lease.token},
        )
        return FileRef(name, "", size_bytes, sha256)

    def _sent_directly(self, lease: Lease, name: str, path: Path, size_bytes: int) -> bool:
        """Whether the store itself took an artifact; else the server has to."""
        small = not wire.DIRECT_MIN_BYTES <= size_bytes <= wire.DIRECT_MAX_BYTES
        if small or time.monotonic() <= _direct_again_s.get(self.url, 0.0):
            return False
        asked = wire.Upload(lease=lease.token, name=name, size_bytes=size_bytes)
        at = self.server.call(
            f"uploading {name}",
            "POST",
            wire.UPLOAD,
            lambda response: wire.UploadAt.model_validate_json(response.read()),
            faults=STORE,
            body=asked.model_dump_json().encode(),
            headers={"Content-Type": "application/json"},
        )
        if at.url is None:
            return False
        headers = {**at.headers, "Content-Length": str(size_bytes)}
        try:
            with self.server.elsewhere("PUT", at.url, headers, blocks(path)):
                return True
        except Elsewhere as e:
            log.info("sending %s to the store failed (%s): the server gets it", name, e)
            _direct_again_s[self.url] = time.monotonic() + DIRECT_AGAIN_S
            return False

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
            found = self._get(f"fetching {ref.name}", ref.key, lease, receive, ref.sha256)
        except CorruptArtifact as e:
            raise CorruptArtifact(e.message, task_key=output.task_key, key=ref.key) from e
        if found != ref.sha256:
            raise EnvironmentFault(
                f"expected {ref.name} with SHA-256 {ref.sha256}, found {found}.",
                remedy="Something altered it on its way: the task is tried again.",
            )

    def _get(
        self,
        doing: str,
        path: str,
        lease: Lease,
        receive: Callable[[httpx.Response], str],
        expected: str,
        more: Callable[[], Mapping[str, str]] = dict[str, str],
    ) -> str:
        """What `receive` makes of a file: from the store itself where it can, else the server.

        From the store it has to be what is expected. Where the store can't be reached from here,
        it is not asked again for a while.
        """

        def headers(**direct: str) -> dict[str, str]:
            return {wire.LEASE_HEADER: lease.token, **more(), **direct}

        def first(response: httpx.Response) -> str | httpx.Response:
            return response if response.has_redirect_location else receive(response)

        call = partial(self.server.call, doing, "GET", path, faults=STORE)
        if time.monotonic() > _direct_again_s.get(self.url, 0.0):
            found = call(first, headers=lambda: headers(**{wire.DIRECT_HEADER: "yes"}))
            if isinstance(found, str):
                return found
            try:
                return self._get_elsewhere(found, receive, expected, more())
            except Elsewhere as e:
                log.info("%s from the store failed (%s): the server is asked", doing, e)
                _direct_again_s[self.url] = time.monotonic() + DIRECT_AGAIN_S
        return call(receive, headers=headers)

    def _get_elsewhere(
        self,
        redirect: httpx.Response,
        receive: Callable[[httpx.Response], str],
        expected: str,
        more: Mapping[str, str],
    ) -> str:
        version = redirect.headers.get(wire.VERSION_HEADER, "")
        own = {name: value for name, value in more.items() if name != "If-Range"}
        with self.server.elsewhere("GET", redirect.headers["Location"], own) as response:
            tag = response.headers.get("ETag", "").strip('"')
            if version and tag != version:
                raise Elsewhere("it has another version")
            found = receive(response)
        if found != expected:
            raise Elsewhere("the bytes are not these")
        return found

    def _fetched_source(self, lease: Lease, source: Source) -> Path:
        """The source as a file of this machine, downloaded once however many slots want it."""
        key = source_entry(source)
        fetch = partial(self._download_source, lease, source)
        return Scratch(self.scratch).file(key, source.name, source.size_bytes, fetch)

    def _download_source(self, lease: Lease, source: Source, part: Path) -> None:
        """What is missing of the file: a download that was cut goes on where it stopped."""

        def more() -> dict[str, str]:
            have_bytes = part.stat().st_size if part.exists() else 0
            if not 0 < have_bytes < source.size_bytes:
                return {}
            etag = f'"{quote(source.fingerprint, safe=":")}"'
            return {"Range": f"bytes={have_bytes}-", "If-Range": etag}

        def receive(response: httpx.Response) -> str:
            with part.open("ab" if response.status_code == 206 else "wb") as file:
                for block in response.iter_bytes(BLOCK_BYTES):
                    file.write(block)
            return str(part.stat().st_size)

        expected = str(source.size_bytes)
        self._get("fetching the source", wire.SOURCE, lease, receive, expected, more)
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
