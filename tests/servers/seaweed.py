"""The `s3` fixture: a SeaweedFS server of this test process's own, or the user's server.

`INTERMISSION_TEST_S3=s3://bucket/prefix`, with the usual AWS variables, names a server to use
instead; everything below that prefix is the tests' to write and stays behind.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from intermission.backends.store.objects import ObjectStore
from intermission.errors import StoreRefused, StoreUnavailable
from servers import die_with_parent

_BUCKET = "media"
_ACCESS = {"access_key_id": "tester", "secret_access_key": "only-on-loopback"}
# Half of a port's pair is ten thousand above it; none of them is given to outgoing connections.
_PORTS = range(10_000, 22_000)
_PAIR = 10_000
_START_S = 30.0


@dataclass(frozen=True)
class S3Server:
    """Where a server answers, and what its clients have to know."""

    root: str
    endpoint: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to reach it."""
        if not self.options:  # the user's own server, with the user's own variables
            return {}
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.options["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": self.options["secret_access_key"],
        }

    def fresh_url(self) -> str:
        """A prefix that nobody has used."""
        return f"{self.root}/{os.urandom(8).hex()}"

    def at(self, endpoint: str) -> dict[str, str]:
        """The options of a client that reaches this server by another address."""
        return {**self.options, "endpoint": endpoint}


@pytest.fixture(scope="session")
def s3(require: Callable[[str], str]) -> Iterator[S3Server]:
    if own := os.environ.get("INTERMISSION_TEST_S3"):
        yield S3Server(own.rstrip("/"), os.environ.get("AWS_ENDPOINT_URL", ""))
        return
    weed = require("weed")
    # Its sockets lie in the temporary folder, and the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="weed-"))
    try:
        process, server = _start(weed, folder)
        try:
            yield server
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder)


def _start(weed: str, folder: Path) -> tuple[subprocess.Popen[bytes], S3Server]:
    """A server that answers. Another process may take a port between choice and use: try again."""
    for turn in range(3):
        data = folder / str(turn)
        data.mkdir()
        port = _free_ports(5)
        process = _spawn(weed, data, port)
        endpoint = f"http://127.0.0.1:{port[0]}"
        server = S3Server(f"s3://{_BUCKET}", endpoint, {**_ACCESS, "endpoint": endpoint})
        try:
            if _answers(process, server):
                return process, server
        except BaseException:
            _stop(process)
            raise
        _stop(process)
    log = Path(folder, "2", "log").read_text(errors="replace")
    pytest.fail(f"expected weed to answer within {_START_S:g} s, found this log:\n{log[-3000:]}")


def _spawn(weed: str, data: Path, port: list[int]) -> subprocess.Popen[bytes]:
    argv = [weed, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    argv += [f"-s3.port={port[0]}", f"-master.port={port[1]}", f"-volume.port={port[2]}"]
    argv += [f"-filer.port={port[3]}", f"-admin.port={port[4]}"]
    argv += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"]
    argv += ["-master.telemetry=false", f"-bucket={_BUCKET}"]
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": _ACCESS["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": _ACCESS["secret_access_key"],
        "TMPDIR": str(data),
    }
    with Path(data, "log").open("wb") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _answers(process: subprocess.Popen[bytes], server: S3Server) -> bool:
    store = ObjectStore(server.root, options=server.options, patience_s=0)
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            assert list(store.list("")) == []
            store.self_test()
            return True
        except (StoreUnavailable, StoreRefused):  # it is not listening, or has no bucket yet
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
    return False


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        port = random.choice(_PORTS)
        if port not in found and _is_free(port) and _is_free(port + _PAIR):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
