"""What watchers cost a server: its CPU with 0, 1, 100 and 1,000 of them on one job.

`intermission serve` over a SQLite ledger, in a process of its own. A load process makes 20 state
changes and 20 progress events a second, as some 20 machines with 5 slots each would: over the HTTP
worker API, or past the server, in the ledger itself. Watchers are connections of a third process
that reads what the server sends. In every round each number of watchers has its turn.

    python benchmarks/watchers.py [--watchers 0 1 100 1000] [--rounds 5] [--seconds 4] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from judging import require

from intermission import __version__
from intermission.backends.http.work_client import WorkClient
from intermission.composition.ledgers import shared_ledger
from intermission.model import Completion, Heartbeat, Job, Lease, Source
from intermission.ports.ledger import Ledger
from intermission.settings import Settings
from intermission.testing.jobs import chunks, completion, fan_job, submit

SECRET = "benchmark"
TTL_S = 600.0
WORKERS = 20
SLOTS = 5
"""Each holds a task and tells its progress once a second: every 5 s it is worth an event."""
SHORT_PER_S = 10
"""Tasks that are claimed and completed, one a call."""
TASKS = 100_000
LEAST_PER_S = 30
"""Of 40 events a second: a machine that is too busy for that cannot be measured on."""
SETTLE_S = 1.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--watchers", type=int, nargs="+", default=[0, 1, 100, 1000])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--json", action="store_true")
    options.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    options.add_argument("--watch", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    if given.load is not None:
        _load(*given.load)
    elif given.watch is not None:
        _watch(*given.watch)
    else:
        found = {
            how: _measure(how, given.watchers, given.rounds, given.seconds)
            for how in ("over HTTP", "direct")
        }
        _show(found, given.json)


def _show(found: dict[str, dict[int, list[float]]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    for how, by_count in found.items():
        alone = statistics.median(by_count[min(by_count)])
        for count, shares in by_count.items():
            median = statistics.median(shares)
            spread = f"{min(shares):.1%} to {max(shares):.1%}"
            growth = median / alone - 1
            print(f"{how}, {count:,} watchers: {median:.1%} of a core ({spread}), {growth:+.0%}")


def _measure(how: str, counts: Sequence[int], rounds: int, for_s: float) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory() as folder:
        job = _fill(Path(folder))
        with _serving(Path(folder)) as (url, pid), _started("--load", how, url, cwd=folder):
            for _ in range(rounds):
                for count in counts:
                    found[count].append(_share(url, pid, job, count, for_s))
    return found


def _share(url: str, pid: int, job: Job, count: int, for_s: float) -> float:
    """How much of a core the server takes while so many watch, and all of them are told."""
    with _started("--watch", f"{url}/api/v1/events/stream?job={job.key}", str(count)) as watching:
        _pause(SETTLE_S)
        began_s, before_s = time.perf_counter(), _cpu_s(pid)
        _pause(for_s)
        share = (_cpu_s(pid) - before_s) / (time.perf_counter() - began_s)
        heard = json.loads(watching.communicate("enough\n")[0])
    require(len(heard) == count, f"{len(heard)} of {count} watchers stayed")
    least = LEAST_PER_S * for_s
    require(not heard or min(heard) > least, f"a watcher heard {min(heard, default=0)} events")
    return share


def _pause(for_s: float) -> None:
    select.select([], [], [], for_s)


def _cpu_s(pid: int) -> float:
    """Over all threads, in nanoseconds: clock ticks are too coarse for a share this small."""
    spent = (one.read_text().split()[0] for one in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(map(int, spent)) / 1e9


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, int]]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("INTERMISSION_")}
    environ |= {"INTERMISSION_LEDGER": str(_path(folder)), "INTERMISSION_ADMIN_SECRET": SECRET}
    environ |= {"INTERMISSION_STORE": str(folder / "store")}
    with subprocess.Popen(
        [sys.executable, "-m", "intermission", "serve", "--port", "0"],
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            line = next(line for line in server.stderr if "http://" in line)
            yield "http://" + line.split("http://", 1)[1].split()[0].rstrip("/."), server.pid
        finally:
            server.terminate()


@contextmanager
def _started(*arguments: str, cwd: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """This program in another part, once it says that it is ready."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *arguments],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            require(process.stdout.readline() == "ready\n", f"{arguments[0]} did not start")
            yield process
        finally:
            process.kill()


def _path(folder: Path) -> Path:
    return folder / "ledger.sqlite"


def _open(folder: Path) -> Ledger:
    open_ledger = shared_ledger(Settings.model_validate({"ledger": str(_path(folder))}))
    assert open_ledger is not None
    return open_ledger()


def _fill(folder: Path) -> Job:
    ledger = _open(folder)
    source = Source((folder / "source.mp4").as_uri(), "b" * 40, 1)
    job = submit(ledger, replace(fan_job(key="b" * 40), source=source))
    (plan,) = ledger.claim("bench", 1, lease_ttl_s=TTL_S)
    ledger.complete([completion(ledger, job, plan, chunks(TASKS))])
    ledger.close()
    return job


def _load(how: str, url: str) -> None:
    """Work at a steady pace until killed: every call in its own slice of a second."""
    ledger = WorkClient(url, _register(url)) if how == "over HTTP" else _open(Path())
    machines = [ledger.claim("bench", SLOTS, lease_ttl_s=TTL_S) for _ in range(WORKERS)]
    print("ready", flush=True)
    began_s, short = time.monotonic(), list[Lease]()
    for turn in range(10**9):
        _pause(max(0.0, began_s + turn / WORKERS - time.monotonic()))
        progress = min(1.0, turn / WORKERS / 400)  # a hundredth in 4 s
        heartbeats = [
            Heartbeat(one.task_id, one.fence, progress) for one in machines[turn % WORKERS]
        ]
        ledger.renew("bench", heartbeats, lease_ttl_s=TTL_S)
        if turn % (WORKERS // SHORT_PER_S):
            continue
        if isinstance(ledger, WorkClient):
            ledger.complete([(one.task_id, one.fence, "1", ()) for one in short])
        else:
            ledger.complete([Completion(one.task_id, one.fence, "1") for one in short])
        short = ledger.claim("bench", 1, lease_ttl_s=TTL_S)


def _register(url: str) -> str:
    import httpx

    answer = httpx.post(
        f"{url}/api/v1/workers",
        json={"name": "bench", "version": __version__},
        headers={"Authorization": f"Bearer {SECRET}"},
    )
    require(answer.status_code == 201, answer.text)
    return answer.json()["key"]


def _watch(url: str, count: str) -> None:
    """Read streams, and count their events, until told that it is enough."""
    parts = urlsplit(url)
    request = (
        f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Authorization: Bearer {SECRET}\r\n\r\n"
    ).encode()
    poll = select.epoll()
    streams: dict[int, socket.socket] = {}
    for _ in range(int(count)):
        stream = socket.create_connection((parts.hostname or "", parts.port or 80))
        stream.sendall(request)
        require(b" 200 " in stream.recv(65536), "a stream was refused")
        streams[stream.fileno()] = stream
        poll.register(stream.fileno(), select.EPOLLIN)
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    heard = dict.fromkeys(streams, 0)
    print("ready", flush=True)
    while True:
        for fd, _ in poll.poll():
            if fd == sys.stdin.fileno():
                print(json.dumps(list(heard.values())))
                return
            data = streams[fd].recv(65536)
            require(data != b"", "a stream ended")
            heard[fd] += data.count(b"\nevent: ")


if __name__ == "__main__":
    main()
