"""Tasks run through the worker API alone: what a worker without a way to the storage can do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from intermission import Chunk, Context, File, Pipeline, Source, step
from intermission.backends.http.workspace import http_workspace, job_from_here
from intermission.backends.store.memory import MemoryStore
from intermission.engine import completion
from intermission.engine.planning import expand, make_job
from intermission.engine.receipt import adopt
from intermission.engine.run_task import Hooks, Work, run_task
from intermission.engine.source import identify
from intermission.engine.store_io import StoreIO
from intermission.model import Job, JobState
from servers.worker_api import Served, served_in

PIECE_BYTES = 500_000


class Piece(Chunk):
    n: int


@step(version=1)
def cut(source: Source) -> list[Piece]:
    return [Piece(n=n) for n in range(source.path.stat().st_size // PIECE_BYTES)]


@step(version=1)
def copy(ctx: Context, source: Source, piece: Piece) -> File:
    with source.path.open("rb") as file:
        file.seek(piece.n * PIECE_BYTES)
        path = ctx.out("piece.bin")
        path.write_bytes(file.read(PIECE_BYTES))
    return path


@step(version=1)
def join(ctx: Context, copy: list[File]) -> File:
    path = ctx.out("whole.bin")
    path.write_bytes(b"".join(one.read_bytes() for one in copy))
    return path


PIPELINE = Pipeline("copying", [cut, copy, join], output="copies")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with served_in(tmp_path / "server") as served:
        yield served


def test_a_job_is_done_by_a_worker_that_has_only_the_server(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "a film.bin"
    path.write_bytes(bytes(range(250)) * 6000)
    job = make_job(PIPELINE, identify(path, MemoryStore()), {})
    served.bench.ledger.submit(job, expand(job, {}))

    _work(served, job, tmp_path / "worker")

    (row,) = served.bench.ledger.jobs(job.key)
    assert row.state is JobState.DONE
    workspace = served.bench.workspace(job)
    assert workspace.open_outputs is not None
    assert workspace.open_outputs().read("whole.bin") == path.read_bytes()
    # Whoever works in the storage itself finds every task done.
    for task in served.bench.ledger.tasks(job.key):
        assert adopt(workspace.open_store(), task.step, task.key, tmp_path / "scratch"), task.name


def _work(served: Served, job: Job, cache: Path) -> None:
    """What a supervisor and its slot do, in this process."""
    _, key = served.register()
    here = job_from_here(job, served.url)
    workspace = http_workspace(job, served.url, key, cache, has_outputs=True)
    ledger, store = workspace.open_ledger(), workspace.open_store()
    assert workspace.open_outputs is not None
    scratch = workspace.folder / "scratch"
    io = StoreIO(here, store, workspace.open_outputs(), scratch, workspace.fetch_source)
    work = Work(here, PIPELINE, io, "w")
    hooks = Hooks(logging.getLogger(__name__), lambda fraction: None, lambda: False)
    while leases := ledger.claim("w", 2, lease_ttl_s=60):
        done = [(lease, run_task(work, lease, hooks)) for lease in leases]
        assert all(completion.complete(ledger, store, here, done, scratch))
    fetched = [found for found in cache.rglob(job.source.name) if found.is_file()]
    assert len(fetched) == 1, "the source was fetched once, by no other way"
