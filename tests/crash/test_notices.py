"""A spot machine's notice at random moments of a real run: drained in time, nothing redone."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import work
from bench import Bench
from launcher import PATIENCE_S, Launcher, until

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.objects import ObjectStore
from intermission.model import JobRow, JobState
from servers.imds import ACTION, MetadataService, serving
from servers.seaweed import S3Server

SEEDS = 8
INTERRUPTED = 75
LATEST_S = 0.5
"""How late an answer comes; the client waits for a second, and asks for two."""
SLACK_S = 45.0
"""For a busy machine: what a drain may take beyond its budget before a test calls it late."""
RESERVE_S = 40.0


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with serving() as service:
        yield service


def cli(bench: Bench, service: MetadataService, *words: str, **how: Any) -> subprocess.Popen[str]:
    environ = {
        **bench.launcher.environ,
        **bench.env,
        work.JOURNAL: str(bench.journal),
        "INTERMISSION_IMDS_URL": service.url,
        "INTERMISSION_SLOTS": "4",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "intermission", *words],
        env=environ,
        cwd=bench.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def start(
    bench: Bench, service: MetadataService, source: str | None = None
) -> subprocess.Popen[str]:
    params = [f"--param={name}={value}" for name, value in bench.params.items()]
    pipeline = f"{work.__file__}:{bench.pipeline}"
    return cli(bench, service, "run", pipeline, source or str(bench.source), *params)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def notice(left_s: float, action: str = "terminate") -> bytes:
    at = datetime.now(UTC) + timedelta(seconds=left_s)
    return json.dumps({"action": action, "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"}).encode()


def slowly(service: MetadataService, rng: random.Random) -> list[float]:
    """Have every answer take some time; when the notice was given is known later."""
    told: list[float] = []

    def before(path: str) -> None:
        threading.Event().wait(rng.uniform(0, LATEST_S))
        if path == ACTION:
            told.append(time.monotonic())

    service.before = before
    return told


def job(path: Path) -> JobRow:
    ledger = SqliteLedger(path)
    try:
        (row,) = ledger.jobs()
        return row
    finally:
        ledger.close()


def assert_drained(bench: Bench, ended: tuple[int, str, str]) -> None:
    """Exit code, message and ledger all say that it was interrupted, and by what."""
    code, _, err = ended
    assert code == INTERRUPTED, err
    (reason,) = re.findall(r"^interrupted \((.*)\)\. Progress is saved", err, re.MULTILINE)
    assert re.fullmatch(r"spot interruption: terminate at 20\d\d-\d\d-\d\dT[\d:]+Z", reason)
    if bench.ledger.exists():  # else it was told before it began
        row = job(bench.ledger)
        assert (row.state, row.reason) == (JobState.DRAINING, reason)
        assert abs(row.updated_ms / 1000 - time.time()) < PATIENCE_S
    bench.launcher.assert_nobody_left(0.0)


def assert_goes_on(bench: Bench, service: MetadataService) -> None:
    """The same command on another machine finishes, and repeats nothing that was finished."""
    receipts, before = bench.receipts(), len(bench.executions())
    service.says.clear()
    service.before = lambda _: None
    code, _, err = end(start(bench, service))
    assert code == 0, err
    assert not receipts & set(bench.again(before))
    bench.assert_right()


@pytest.mark.slow
def test_notices_at_random_moments(
    service: MetadataService, launcher: Launcher, tmp_path: Path
) -> None:
    first = random.randrange(2**32)
    print(f"seeds {first} to {first + SEEDS - 1}")  # noqa: T201
    interrupted = 0
    for seed in range(first, first + SEEDS):
        rng = random.Random(seed)
        bench = Bench(launcher, tmp_path / str(seed), params={"nap_ms": 80, "count": 16})
        left_s = rng.choice((2.0, 41.0, 60.0, 120.0))
        service.says[ACTION] = notice(left_s)
        told = slowly(service, rng)
        ended = end(start(bench, service))
        if ended[0] == INTERRUPTED:
            interrupted += 1
            assert time.monotonic() - told[-1] < max(0.0, left_s - RESERVE_S) + SLACK_S
            assert_drained(bench, ended)
        assert_goes_on(bench, service)
    assert interrupted > SEEDS / 2


@pytest.mark.parametrize("left_s", [2.0, RESERVE_S + 3])
def test_another_machine_continues_from_the_bucket(
    left_s: float, s3: S3Server, service: MetadataService, launcher: Launcher, tmp_path: Path
) -> None:
    """What the first machine knew is uploaded, and its lock is free, when it has ended."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    bench = Bench(launcher, tmp_path, params={"nap_ms": 80, "count": 16})
    bench.env = s3.environment
    source = f"{s3.fresh_url()}/source.txt"
    bucket, key = re.fullmatch(r"(s3://[^/]+)/(.*)", source).groups()  # type: ignore[union-attr]
    store = ObjectStore(bucket, options=s3.options)
    store.create(key, bench.text)
    bench.hold(15)  # so that it does not end before it is told

    def on_machine(name: str) -> tuple[int, str, str]:
        bench.env["XDG_CACHE_HOME"] = str(tmp_path / name)
        return end(start(bench, service, source))

    def receipts() -> set[str]:
        found = store.list(f"checkpoints/{key}/receipts/")
        return {"/".join(stat.key.split("/")[-2:]).removesuffix(".json") for stat in found}

    service.says[ACTION] = notice(left_s)
    told = slowly(service, random.Random(seed))
    assert_drained(bench, on_machine("here"))
    assert time.monotonic() - told[-1] < max(0.0, left_s - RESERVE_S) + SLACK_S
    finished, before = receipts(), len(bench.executions())
    if finished:  # else it was told before it began
        assert json.loads(store.read(f"checkpoints/{key}/lock.json"))["state"] == "free"
        uploaded = tmp_path / "uploaded.sqlite"
        uploaded.write_bytes(store.read(f"checkpoints/{key}/ledger.sqlite"))
        assert job(uploaded).state is JobState.DRAINING
    bench.let_go(15)
    service.says.clear()
    service.before = lambda _: None
    code, _, err = on_machine("there")
    assert code == 0, err
    assert not finished & set(bench.again(before))
    output = f"crash/{key.removesuffix('.txt')}/joined.bin"
    assert store.read(output) == bench.expected
    assert set(bench.executions()) <= receipts()


def test_a_task_that_does_not_end_in_time_is_given_back(
    service: MetadataService, launcher: Launcher, tmp_path: Path
) -> None:
    bench = Bench(launcher, tmp_path, params={"count": 4})
    bench.hold(3)
    process = start(bench, service)
    bench.wait_for_executions(8)  # the plan, four cuts of which one never ends, three weights
    service.says[ACTION] = notice(RESERVE_S + 3)
    ended = end(process)
    assert_drained(bench, ended)
    assert "stopping (spot interruption: terminate at" in ended[2]
    assert len(bench.receipts()) == 7, "what had ended is kept"
    bench.let_go(3)
    assert_goes_on(bench, service)


def test_a_task_that_ends_in_time_is_kept(
    service: MetadataService, launcher: Launcher, tmp_path: Path
) -> None:
    bench = Bench(launcher, tmp_path, params={"count": 4})
    bench.hold(3)
    service.says[ACTION] = notice(120)
    ready = threading.Event()
    service.before = lambda path: ready.wait(PATIENCE_S) if path == ACTION else None
    process = start(bench, service)
    bench.wait_for_executions(5)
    ready.set()
    assert process.stderr is not None
    said = iter(process.stderr.readline, "")
    assert any(line.startswith("stopping (spot interruption") for line in said)
    held = bench.receipts()
    bench.let_go(3)
    code, _, err = end(process)
    assert code == INTERRUPTED, err
    assert len([name for name in bench.receipts() - held if name.startswith("cut/")]) >= 1
    assert_goes_on(bench, service)


def test_a_notice_of_almost_now_does_not_wait(
    service: MetadataService, launcher: Launcher, tmp_path: Path
) -> None:
    bench = Bench(launcher, tmp_path, params={"count": 4})
    bench.hold(0, 1, 2, 3)
    service.says[ACTION] = notice(2)
    process = start(bench, service)
    began_s = time.monotonic()
    assert_drained(bench, end(process))
    assert time.monotonic() - began_s < SLACK_S
    bench.let_go(0, 1, 2, 3)
    assert_goes_on(bench, service)


def test_status_says_why_and_when(
    service: MetadataService, launcher: Launcher, tmp_path: Path
) -> None:
    bench = Bench(launcher, tmp_path, params={"count": 2})
    bench.hold(0)
    process = start(bench, service)
    bench.wait_for_executions(2)
    service.says[ACTION] = notice(2)
    assert_drained(bench, end(process))
    code, out, _ = end(cli(bench, service, "status", str(bench.source), "--json"))
    document = json.loads(out)
    assert (code, document["state"]) == (0, "draining")
    assert document["reason"].startswith("spot interruption: terminate at 20")
    since = datetime.fromisoformat(document["updated"])
    assert abs((datetime.now(UTC) - since).total_seconds()) < PATIENCE_S
    _, out, _ = end(cli(bench, service, "status", str(bench.source)))
    assert f"draining since {document['updated']}: {document['reason']}\n" in out


def test_a_service_that_hangs_harms_nobody(
    service: MetadataService, launcher: Launcher, tmp_path: Path
) -> None:
    bench = Bench(launcher, tmp_path, params={"count": 2})
    over = threading.Event()
    asked = threading.Event()

    def hang(_: str) -> None:
        asked.set()
        over.wait(PATIENCE_S)

    service.before = hang
    code, _, err = end(start(bench, service))
    over.set()
    assert code == 0, err
    assert asked.is_set()
    assert "metadata" not in err
    bench.assert_right()
    until(lambda: not launcher.marked(), "everybody to end")
