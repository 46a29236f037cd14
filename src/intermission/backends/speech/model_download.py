"""Downloading a model from a hub, so that it is there whole or not at all.

A file arrives in `blobs/HASH.incomplete`, goes on from its end after a cut or a kill, is compared
with the hub's hash, and gets its name by a rename. `refs/main` names the snapshot last: until
then nobody finds it. Names and hashes come from the hub and are checked before they become paths.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from intermission import __version__
from intermission.backends.speech.http import httpx_library
from intermission.backends.speech.model_cache import WEIGHTS_FILE, ModelCache
from intermission.backends.store.fsync import sync_folder
from intermission.errors import EnvironmentFault, os_faults

if TYPE_CHECKING:
    import httpx

TRIES = 5
"""So often in a row a file may bring nothing new."""
WRONG_MAX = 3
"""So often a file may arrive with other bytes."""
BLOCK_BYTES = 1024**2
_DELAY_S = 0.2
_DELAY_MAX_S = 30.0
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_WANTED = re.compile(r"config\.json|preprocessor_config\.json|model\.bin|tokenizer\.json")
_VOCABULARY = re.compile(r"vocabulary\.\w+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASHES = {"sha256": re.compile(r"[0-9a-f]{64}"), "sha1": re.compile(r"[0-9a-f]{40}")}

OnProgress = Callable[[int, int], None]
"""Called with the bytes that are there, and those of all files."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. `kind` says how its hash is made: of its bytes, or as Git does."""

    name: str
    size_bytes: int
    hash: str
    kind: str


class _Passing(Exception):
    """No usable answer; another try may get one."""

    def __init__(self, said: str, wait_s: float = 0.0) -> None:
        super().__init__(said)
        self.wait_s = wait_s


def download(
    repository: str, cache: ModelCache, hub_url: str, on_progress: OnProgress = lambda *_: None
) -> Path:
    """The folder with the newest files of a repository, all of them checked."""
    folder = cache.repository(repository)
    with os_faults(f"downloading {repository}", EnvironmentFault, where=cache.folder):
        for name in ("blobs", "refs", "snapshots"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with _locked(folder), _Hub(hub_url, repository) as hub:
            commit, files = hub.listing()
            total_bytes, there = sum(file.size_bytes for file in files), 0
            for file in files:
                before = there
                _fetch(
                    hub, commit, file, folder, lambda n, b=before: on_progress(b + n, total_bytes)
                )
                there += file.size_bytes
            return _place(folder, commit, files)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One download of a repository at a time; the kernel frees the lock of a killed one."""
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(
    hub: _Hub, commit: str, file: RemoteFile, folder: Path, on_bytes: Callable[[int], None]
) -> None:
    """Have a file's bytes under its hash."""
    blob = folder / "blobs" / file.hash
    if blob.is_file() and blob.stat().st_size == file.size_bytes:
        on_bytes(file.size_bytes)
        return
    part = blob.with_name(f"{file.hash}.incomplete")
    for _ in range(WRONG_MAX):
        with part.open("ab") as arriving:
            _receive(hub, commit, file, arriving, on_bytes)
            os.fsync(arriving.fileno())
        if _hash_of(part, file) == file.hash:
            part.rename(blob)
            sync_folder(str(blob.parent))
            return
        part.unlink()
    raise EnvironmentFault(
        f"{file.name} of {hub.repository} arrived with other bytes than {hub.url} promises, "
        f"{WRONG_MAX} times.",
        remedy="Something between here and there alters it: try another network, or a mirror by "
        "the setting model_hub_url.",
    )


def _receive(
    hub: _Hub, commit: str, file: RemoteFile, arriving: BinaryIO, on_bytes: Callable[[int], None]
) -> None:
    """Append what is missing, over as many connections as it takes while bytes still come."""
    failed = 0
    if arriving.tell() > file.size_bytes:
        arriving.truncate(0)
        arriving.seek(0)
    while (had := arriving.tell()) < file.size_bytes:
        try:
            for block in hub.blocks(commit, file, had):
                if block is None:  # the hub begins anew
                    arriving.truncate(0)
                    arriving.seek(0)
                    continue
                arriving.write(block)
                on_bytes(arriving.tell())
            said, wait_s = "the connection ended early", 0.0
        except _Passing as e:
            said, wait_s = str(e), e.wait_s
        arriving.flush()
        if arriving.tell() >= file.size_bytes:
            return
        failed = failed + 1 if arriving.tell() <= had else 0
        if failed >= TRIES:
            raise hub.unreachable(f"downloading {file.name}", said)
        time.sleep(max(wait_s, min(_DELAY_S * 2**failed, _DELAY_MAX_S)))


def _hash_of(path: Path, file: RemoteFile) -> str:
    digest = hashlib.new(file.kind)
    if file.kind == "sha1":
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as data:
        while block := data.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _place(folder: Path, commit: str, files: list[RemoteFile]) -> Path:
    """Give the files their names, and then the snapshot its own."""
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(exist_ok=True)
    for file in files:
        name, target = snapshot / file.name, Path("..", "..", "blobs", file.hash)
        if name.is_symlink() and name.readlink() == target:
            continue
        name.unlink(missing_ok=True)
        name.symlink_to(target)
    sync_folder(str(snapshot))
    sync_folder(str(snapshot.parent))
    ref = folder / "refs" / ".main"
    with ref.open("w") as written:
        written.write(commit)
        written.flush()
        os.fsync(written.fileno())
    ref.rename(folder / "refs" / "main")
    sync_folder(str(folder / "refs"))
    return snapshot


class _Hub:
    """A repository on a server that speaks as Hugging Face does."""

    def __init__(self, url: str, repository: str) -> None:
        self.url = url.rstrip("/")
        self.repository = repository
        self._httpx = httpx_library()
        self._client: httpx.Client = self._httpx.Client(
            follow_redirects=True,
            timeout=self._httpx.Timeout(30.0, connect=5.0),
            headers={
                "User-Agent": f"intermission/{__version__}",
                "Accept-Encoding": "identity",  # lengths and ranges are those of the file
            },
        )

    def __enter__(self) -> _Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def listing(self) -> tuple[str, list[RemoteFile]]:
        """The newest commit, and the files of it that a model needs."""
        failed = 0
        while True:
            try:
                with self._answer(f"/api/models/{self.repository}/revision/main?blobs=true") as got:
                    return self._files(b"".join(got.iter_raw()))
            except _Passing as e:
                failed += 1
                if failed >= TRIES:
                    raise self.unreachable(f"looking for {self.repository}", str(e)) from e
                time.sleep(max(e.wait_s, _DELAY_S * 2**failed))

    def _files(self, body: bytes) -> tuple[str, list[RemoteFile]]:
        try:
            found = json.loads(body)
            commit = str(found["sha"])
            files = [_remote_file(one) for one in found["siblings"] if _is_wanted(one["rfilename"])]
            right = _COMMIT.fullmatch(commit) and all(
                _HASHES[file.kind].fullmatch(file.hash) for file in files
            )
        except (ValueError, KeyError, TypeError):
            right, commit, files = None, "", []
        if not right or WEIGHTS_FILE not in {file.name for file in files}:
            raise EnvironmentFault(
                f"{self.url} lists no speech model in {self.repository}: there is no "
                f"{WEIGHTS_FILE} in it.",
                remedy="Name a repository with a model converted for CTranslate2, and check the "
                "setting model_hub_url.",
            )
        return commit, files

    def blocks(self, commit: str, file: RemoteFile, offset: int) -> Iterator[bytes | None]:
        """The bytes from an offset on; None first where the hub sends all of them instead."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._answer(f"/{self.repository}/resolve/{commit}/{file.name}", headers) as got:
            if offset and got.status_code != 206:
                yield None
            yield from got.iter_raw()  # as it arrives: what came before a cut is kept

    @contextmanager
    def _answer(
        self, path: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        try:
            with self._client.stream("GET", self.url + path, headers=dict(headers or {})) as got:
                if got.status_code in _PASSING:
                    raise _Passing(f"it answered {got.status_code}", _retry_after_s(got.headers))
                if not got.is_success:
                    raise self._refused(got.status_code)
                yield got
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as e:
            raise _Passing(f"{type(e).__name__}: {e}".rstrip(": ")) from e

    def _refused(self, status: int) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self.url} answered {status} when asked for {self.repository}.",
            remedy="Is the name right, is the repository public, and is model_hub_url the URL of a "
            "hub that has it?",
        )

    def unreachable(self, doing: str, said: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"{doing} failed: {self.url} gave no usable answer ({said}).",
            remedy="What arrived is kept: run the same command again when there is a network. Or "
            "set model_hub_url to a mirror, or copy the model's folder from a machine that has it.",
        )


def _is_wanted(name: str) -> bool:
    return bool(_WANTED.fullmatch(name) or _VOCABULARY.fullmatch(name))


def _remote_file(one: Mapping[str, Any]) -> RemoteFile:
    large = one.get("lfs")
    if large:
        return RemoteFile(one["rfilename"], int(large["size"]), str(large["sha256"]), "sha256")
    return RemoteFile(one["rfilename"], int(one["size"]), str(one["blobId"]), "sha1")


def _retry_after_s(headers: Mapping[str, str]) -> float:
    asked = headers.get("retry-after", "")
    return min(float(asked), _DELAY_MAX_S) if asked.isdecimal() else 0.0
