"""Claims a second through the HTTP worker API, one task a claim, with a worker's key.

A server process on loopback over a SQLite ledger, and client processes that claim until nothing is
left, each task once. The same claims made in this process, without a server, are the limit.

    python benchmarks/worker_api.py [--tasks 4000] [--clients 4] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from judging import require

from intermission import __version__
from intermission.backends.http.ledger import HttpLedger
from intermission.backends.registry.sqlite import SqliteRegistry
from intermission.composition.ledgers import shared_ledger
from intermission.settings import Settings
from intermission.testing.jobs import chunks, completion, fan_job, submit

SECRET = "benchmark"
TTL_S = 600.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=4000)
    options.add_argument("--clients", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", action="store_true")
    options.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--claim", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve is not None:
        _serve(given.serve)
    elif given.claim is not None:
        _claim(*given.claim)
    else:
        _measure(given.tasks, given.clients, given.rounds, given.json)


def _measure(tasks: int, clients: int, rounds: int, as_json: bool) -> None:
    found: dict[str, list[float]] = {"over HTTP": [], "in place": []}
    for _ in range(rounds):
        for name, per_s in (
            ("over HTTP", _over_http(tasks, clients)),
            ("in place", _in_place(tasks)),
        ):
            found[name].append(per_s)
    if as_json:
        print(json.dumps({"claims_per_s": found, "tasks": tasks, "clients": clients}))
        return
    for name, figures in found.items():
        low, high = min(figures), max(figures)
        print(f"{name}: {statistics.median(figures):,.0f} claims/s ({low:,.0f} to {high:,.0f})")


def _over_http(tasks: int, clients: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        _fill(Path(folder), tasks)
        server = _start(["--serve", folder])
        try:
            url = server.stdout.readline().strip() if server.stdout else ""
            keys = [_register(url, n) for n in range(clients)]
            ready = [_start(["--claim", url, key]) for key in keys]
            for client in ready:
                require(client.stdout is not None and client.stdout.readline() != "", "no client")
            began_s = time.perf_counter()
            said = [client.communicate("go\n")[0] for client in ready]
            took_s = time.perf_counter() - began_s
        finally:
            server.terminate()
            server.communicate()
    ids = [id for line in said for id in json.loads(line)]
    require(len(set(ids)) == len(ids) == tasks, f"{len(ids)} claims of {tasks} tasks")
    return tasks / took_s


def _in_place(tasks: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        _fill(Path(folder), tasks)
        open_ledger = shared_ledger(_settings(Path(folder)))
        require(open_ledger is not None, "no ledger")
        ledger = open_ledger() if open_ledger else None
        began_s = time.perf_counter()
        count = 0
        while ledger is not None and ledger.claim("here", 1, lease_ttl_s=TTL_S):
            count += 1
        took_s = time.perf_counter() - began_s
        if ledger is not None:
            ledger.close()
    require(count == tasks, f"{count} claims of {tasks} tasks")
    return tasks / took_s


def _settings(folder: Path) -> Settings:
    return Settings.model_validate(
        {"ledger": str(folder / "ledger.sqlite"), "admin_secret": SECRET}
    )


def _fill(folder: Path, tasks: int) -> None:
    open_ledger = shared_ledger(_settings(folder))
    assert open_ledger is not None
    ledger = open_ledger()
    job = submit(ledger, fan_job())
    (plan,) = ledger.claim("bench", 1, lease_ttl_s=TTL_S)
    ledger.complete([completion(ledger, job, plan, chunks(tasks))])
    ledger.close()


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _register(url: str, n: int) -> str:
    import httpx

    answer = httpx.post(
        f"{url}/api/v1/workers",
        json={"name": f"bench{n}", "version": __version__},
        headers={"Authorization": f"Bearer {SECRET}"},
    )
    require(answer.status_code == 201, answer.text)
    return answer.json()["key"]


def _serve(folder: Path) -> None:
    import socket

    import uvicorn

    from intermission.composition.fleet import Fleet
    from intermission.web.app import create_app

    fleet = Fleet(_settings(folder))
    app = create_app(fleet, SqliteRegistry(folder / "registry.sqlite"))
    # By its protocol asyncio knows a connection on which small answers must not wait.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        server.run([listener])


def _claim(url: str, key: str) -> None:
    ledger = HttpLedger(url, key)
    ledger.jobs()
    print("ready", flush=True)
    sys.stdin.readline()
    ids: list[int] = []
    while leases := ledger.claim("bench", 1, lease_ttl_s=TTL_S):
        ids += [lease.task_id for lease in leases]
    print(json.dumps(ids), flush=True)


if __name__ == "__main__":
    main()
