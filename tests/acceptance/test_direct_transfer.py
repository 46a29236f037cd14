"""Files straight from and to the store, where it can: the server only says where they are."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from intermission import Chunk, Context, File, Pipeline, Source, step
from intermission.backends.http import task_io, work_schema
from intermission.backends.http.task_io import HttpIO
from intermission.backends.http.work_client import WorkClient
from intermission.backends.store.objects import ObjectStore
from intermission.engine.planning import expand, make_job
from intermission.errors import CorruptArtifact, SourceChanged
from intermission.model import FileRef, Job, Lease, Output, identity
from intermission.model import Source as JobSource
from intermission.scratch import holding
from servers.fault_proxy import FaultProxy
from servers.seaweed import S3Server
from servers.worker_api import Hands, Served, served_in

BODY = bytes(range(256)) * 5000


class Piece(Chunk):
    n: int


@step(version=1)
def cut(source: Source) -> list[Piece]: ...


@step(version=1)
def copy(ctx: Context, source: Source, piece: Piece) -> File: ...


@step(version=1)
def join(ctx: Context, copy: list[File]) -> File: ...


PIPELINE = Pipeline("direct", [cut, copy, join])


@dataclass
class Direct:
    """A server whose jobs lie in a bucket, and a proxy that sees what goes through the server."""

    served: Served
    proxy: FaultProxy
    store: ObjectStore
    job: Job
    hands: Hands
    client: WorkClient
    io: HttpIO

    def claim(self) -> Lease:
        (lease,) = self.client.claim("w", 1, lease_ttl_s=60)
        return lease

    def planned(self) -> Lease:
        """The lease of the task that copies."""
        plan = self.claim()
        self.hands.complete(plan.token, [{"n": 0}])
        return self.claim()

    def copied(self) -> tuple[Lease, Output]:
        """The lease of the task that joins, and its input."""
        lease = self.planned()
        with holding():
            folder = self.io.folder(lease, lease.key, "a")
            folder.mkdir(parents=True)
            (folder / "piece.bin").write_bytes(BODY)
            files = self.io.keep(lease, lease.key, "a", folder)
        (end,) = self.client.complete([(lease.task_id, lease.fence, '"piece.bin"', files)])
        assert end.accepted, end
        last = self.claim()
        (output,) = self.client.inputs(last, self.job.step("join").edges)["copy"]
        assert output is not None
        return last, output


@pytest.fixture
def direct(s3: S3Server, tmp_path: Path) -> Iterator[Direct]:
    name = s3.fresh_url()
    open_store = partial(ObjectStore, name, options=s3.options)
    store = open_store()
    stat = store.create("films/a.bin", BODY)
    fingerprint = identity("object", stat.version, str(stat.size_bytes))
    source = JobSource(f"{name}/films/a.bin", fingerprint, stat.size_bytes, stat.version)
    job = make_job(PIPELINE, source, {})
    task_io._direct_again_s.clear()  # pyright: ignore[reportPrivateUsage]
    with (
        served_in(tmp_path / "server") as served,
        FaultProxy(served.url.removeprefix("http://")).running() as proxy,
    ):
        bench = served.bench
        plain = bench.workspace

        def fetch_source(source: JobSource) -> Path:
            to = tmp_path / "fetched"
            return store.fetch_version("films/a.bin", to, version=source.version)

        bench.workspace = lambda job: replace(  # type: ignore[method-assign]
            plain(job),
            open_store=open_store,
            open_outputs=None,
            fetch_source=fetch_source,
            sign_source=lambda source, expires_s: store.presign("films/a.bin", expires_s=expires_s),
        )
        bench.pipelines["direct"] = PIPELINE
        bench.ledger.submit(job, expand(job, {}))
        key = served.register()[1]
        client, io = WorkClient(proxy.url, key), HttpIO(proxy.url, key, job, tmp_path / "scratch")
        yield Direct(served, proxy, store, job, served.hands(key), client, io)


def answers(direct: Direct, path: str, lease: Lease) -> int:
    """The status that the server answers to a worker who would rather go to the store."""
    headers = {
        "Authorization": f"Bearer {direct.hands.key}",
        "Intermission-Lease": lease.token,
        work_schema.DIRECT_HEADER: "yes",
    }
    answer = httpx.get(direct.served.url + path, headers=headers)
    if answer.status_code == 307:
        found = httpx.get(answer.headers["Location"])
        assert found.content == BODY
    return answer.status_code


def test_a_source_comes_from_the_store(direct: Direct) -> None:
    lease = direct.planned()
    assert answers(direct, work_schema.SOURCE, lease) == 307
    assert direct.hands.get(lease.token, work_schema.SOURCE).content == BODY, "unless asked for"
    with holding():
        assert direct.io.source(lease).path.read_bytes() == BODY
    assert task_io._direct_again_s == {}  # pyright: ignore[reportPrivateUsage]


def test_an_input_comes_from_the_store(direct: Direct) -> None:
    lease, output = direct.copied()
    assert answers(direct, output.files[0].key, lease) == 307
    with holding():
        assert direct.io.files(lease, output)["piece.bin"].read_bytes() == BODY
    assert task_io._direct_again_s == {}  # pyright: ignore[reportPrivateUsage]


def test_an_artifact_goes_to_the_store_and_is_looked_at_there(direct: Direct) -> None:
    direct.copied()
    passed = [one.path for one in direct.proxy.requests]
    assert not [path for path in passed if "/worker/artifacts/" in path]
    ((_, output),) = direct.served.bench.ledger.receipts(direct.job.key)
    (file,) = output.files
    assert direct.store.read(file.key) == BODY
    assert file.key.endswith("/piece.bin")
    assert ".sent" not in file.key


def sent(direct: Direct, lease: Lease, body: bytes) -> str:
    """The URL at which a worker has put these bytes by itself."""
    asked = {"lease": lease.token, "name": "piece.bin", "size_bytes": len(BODY)}
    url: str = direct.hands.said("upload", **asked)["url"]
    assert httpx.put(url, content=body).is_success
    return url


def complete(direct: Direct, lease: Lease) -> dict[str, object]:
    sums = {"size_bytes": len(BODY), "sha256": hashlib.sha256(BODY).hexdigest()}
    file = {"name": "piece.bin", "direct": True, **sums}
    return direct.hands.complete(lease.token, '"piece.bin"', file)


@pytest.mark.parametrize("body", [BODY[::-1], BODY[:-1]], ids=["altered", "cut"])
def test_other_bytes_than_those_named_are_refused(direct: Direct, body: bytes) -> None:
    lease = direct.planned()
    sent(direct, lease, body)
    end = complete(direct, lease)
    assert not end["accepted"]
    assert "found none or another" in str(end["problem"])


def test_nobody_alters_what_the_receipt_names(direct: Direct) -> None:
    lease = direct.planned()
    url = sent(direct, lease, BODY)
    assert complete(direct, lease)["accepted"]
    httpx.put(url, content=BODY[::-1])
    ((_, output),) = direct.served.bench.ledger.receipts(direct.job.key)
    assert direct.store.read(output.files[0].key) == BODY
    assert complete(direct, lease)["accepted"], "a repeat"


def test_a_store_out_of_reach_is_made_up_for_by_the_server(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, output = direct.copied()
    monkeypatch.setattr(ObjectStore, "presign", lambda *_, **__: "http://127.0.0.1:9/nobody")
    with holding():
        assert direct.io.files(lease, output)["piece.bin"].read_bytes() == BODY
        assert direct.io.source(lease).path.read_bytes() == BODY
        folder = direct.io.folder(lease, lease.key, "a")
        folder.mkdir(parents=True)
        (folder / "all.bin").write_bytes(BODY)
        (file,) = direct.io.keep(lease, lease.key, "a", folder)
        assert file.key == "", "the server has it"
    assert list(task_io._direct_again_s) == [direct.proxy.url]  # pyright: ignore[reportPrivateUsage]


def test_an_altered_input_is_noticed_and_made_again(direct: Direct) -> None:
    lease, output = direct.copied()
    ((_, known),) = direct.served.bench.ledger.receipts(direct.job.key)
    (ref,) = known.files
    assert isinstance(ref, FileRef)
    direct.store.replace(ref.key, BODY[::-1])
    shutil.rmtree(direct.served.bench.workspace(direct.job).scratch)  # the server's own copies
    with pytest.raises(CorruptArtifact), holding():
        direct.io.files(lease, output)["piece.bin"]


def test_a_source_that_changed_is_refused(direct: Direct) -> None:
    lease = direct.planned()
    direct.store.replace("films/a.bin", BODY[::-1])
    with pytest.raises(SourceChanged), holding():
        _ = direct.io.source(lease).path
