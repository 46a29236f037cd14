"""The store contract, through a real server and back, for a job's store and for its outputs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from intermission.backends.http.store import HttpStore
from intermission.errors import UsageError
from intermission.ports.store import Store
from intermission.testing.jobs import line_job, submit
from intermission.testing.store import StoreContract
from servers.worker_api import ADMIN, Bench, served_in


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Bench]]:
    with served_in(tmp_path_factory.mktemp("served")) as served:
        yield served.url, served.bench


class TestHttpStore(StoreContract):
    @pytest.fixture
    def store(self, served: tuple[str, Bench]) -> Store:  # type: ignore[override]
        url, bench = served
        job = submit(bench.ledger, line_job(key=uuid4().hex))
        return HttpStore(url, ADMIN, job.key)


def test_the_outputs_of_a_job_are_another_store(served: tuple[str, Bench]) -> None:
    url, bench = served
    job = submit(bench.ledger, line_job(key=uuid4().hex))
    store, outputs = (HttpStore(url, ADMIN, job.key, area) for area in ("store", "outputs"))
    outputs.self_test()
    outputs.create("a.txt", b"for people")
    assert [one.key for one in store.list("")] == []
    assert [one.key for one in outputs.list("")] == ["a.txt"]
    opened = bench.workspace(job).open_outputs
    assert opened is not None
    assert opened().read("a.txt") == b"for people"


def test_a_store_can_be_sent_to_another_process(served: tuple[str, Bench], tmp_path: Path) -> None:
    url, bench = served
    job = submit(bench.ledger, line_job(key=uuid4().hex))
    store = HttpStore(url, ADMIN, job.key)
    store.create("a", b"body")
    assert pickle.loads(pickle.dumps(store)).read("a") == b"body"


def test_a_job_has_two_areas(served: tuple[str, Bench]) -> None:
    with pytest.raises(UsageError, match="outputs"):
        HttpStore(served[0], ADMIN, "job", "elsewhere")
