"""A plan of a million chunks through a server and a worker over HTTP, killed in the middle.

The memory of every process is its peak as the kernel remembers it (VmHWM): the server, the worker,
and each process that the worker started. At half of the tasks the worker and all it started are
killed, and another one continues. The goal is at most 300 MB for each.

    python benchmarks/million.py [--chunks 1000000] [--slots 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from judging import require

GOAL_MB = 300.0
SECRET = "benchmark"
RUN = "BENCH_RUN"
"""The environment variable by which the processes of this run are known."""
_LOOK_EVERY_S = 0.1
_STALL_S = 600.0
_HERE = Path(__file__).parent
REF = f"{_HERE / 'pipelines.py'}:light"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--ledger", help="PostgreSQL; a SQLite file in the folder unless given")
    parser.add_argument("--quick", action="store_true", help="20,000 chunks: does it work at all?")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    given = parser.parse_args()
    chunks = 20_000 if given.quick else given.chunks
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as place:
        found = _measure(Path(place), chunks, given.slots, given.ledger)
    print(json.dumps(found, indent=2) if given.json else _table(found, chunks))


class Peaks:
    """The peak memory of every process that was seen, by what it is."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._by_pid: dict[int, tuple[str, float]] = {}

    def look(self) -> None:
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError, ValueError):
                role = process.environ().get(RUN, "")
                if role.startswith(self._run):
                    role = role.removeprefix(self._run)
                    self._by_pid[process.pid] = self._role(process, role), _peak_mb(process.pid)

    def _role(self, process: psutil.Process, role: str) -> str:
        parent = process.parent()
        is_first = parent is not None and parent.pid == os.getpid()
        return role if is_first else f"{role}, a process of its"

    def by_role(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for role, peak_mb in self._by_pid.values():
            found[role] = max(found.get(role, 0.0), peak_mb)
        return found


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 0.0 if match is None else int(match[1]) / 1024


def _measure(folder: Path, chunks: int, slots: int, ledger: str | None) -> dict[str, Any]:
    peaks = Peaks(f"{folder.name} ")
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("INTERMISSION_")
    }
    env |= {"HOME": str(folder), "PYTHONPATH": str(_HERE), "INTERMISSION_ADMIN_SECRET": SECRET}
    env |= {"INTERMISSION_LEASE_TTL_S": "10", "INTERMISSION_RENEW_EVERY_S": "2.5"}
    env["INTERMISSION_CACHE_DIR"] = str(folder / "cache")
    began_s = time.monotonic()
    with _server(folder, env, ledger) as url:
        key = _submit(folder, env, url, chunks)
        worker_env = env | {"INTERMISSION_SERVER_KEY": _register(folder, env, url)}
        del worker_env["INTERMISSION_ADMIN_SECRET"]
        with _worker(folder, worker_env, url, slots, "worker until it was killed"):
            _until(url, key, chunks // 2, peaks)
            planned_s = time.monotonic() - began_s
        with _worker(folder, worker_env, url, slots, "worker that continued"):
            _until(url, key, chunks, peaks)
    return {
        "chunks": chunks,
        "half_after_s": planned_s,
        "done_after_s": time.monotonic() - began_s,
        "peak_mb": peaks.by_role(),
    }


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "intermission", *map(str, arguments)]


def _run(folder: Path) -> str:
    return f"{folder.name} "


@contextmanager
def _server(folder: Path, env: dict[str, str], ledger: str | None) -> Iterator[str]:
    own = ["--ledger", ledger] if ledger else []
    argv = _command(
        "serve", "--port", 0, "--data-dir", folder / "data", *own,
        "--pipeline", REF,
    )  # fmt: skip
    server = subprocess.Popen(
        argv, cwd=folder, env=env | {RUN: f"{_run(folder)}server"}, stderr=subprocess.PIPE
    )
    assert server.stderr is not None
    line = server.stderr.readline().decode()
    require("listening on" in line, line)
    try:
        yield line.split()[-1]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


def _call(folder: Path, env: dict[str, str], *arguments: object) -> str:
    argv = _command(*arguments)
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"{arguments[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout.strip()


def _submit(folder: Path, env: dict[str, str], url: str, chunks: int) -> str:
    source = folder / "source.txt"
    source.write_text("nothing")
    return _call(folder, env, "submit", REF, source, "--param", f"count={chunks}", "--server", url)


def _register(folder: Path, env: dict[str, str], url: str) -> str:
    return _call(folder, env, "register", "bench", "--server", url)


@contextmanager
def _worker(folder: Path, env: dict[str, str], url: str, slots: int, role: str) -> Iterator[None]:
    """A worker, which is killed in the end with all it started, as a machine that vanishes."""
    own = env | {RUN: f"{_run(folder)}{role}"}
    argv = _command("worker", "--server", url, "--pipeline", REF, "--slots", slots)
    with (folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen(argv, cwd=folder, env=own, stdout=log, stderr=log)
    try:
        yield
        require(worker.poll() is None, (folder / "worker.log").read_text()[-2000:])
    finally:
        for process in [*psutil.Process(worker.pid).children(recursive=True), worker]:
            with suppress(psutil.Error):
                process.kill()
        worker.wait()


def _until(url: str, key: str, count: int, peaks: Peaks) -> None:
    """Wait until so many tasks are done; a job that stands still ends the measurement."""
    most, moved_s = -1, time.monotonic()
    headers = {"Authorization": f"Bearer {SECRET}"}
    while most < count:
        peaks.look()
        with suppress(httpx.HTTPError):
            job = httpx.get(f"{url}/api/v1/jobs/{key}", headers=headers, timeout=60).json()
            require(job["state"] not in ("failed", "cancelled"), f"the job is {job['state']}")
            done = job["steps"].get("nothing", {}).get("done", 0)
            if done > most:
                most, moved_s = done, time.monotonic()
        require(time.monotonic() - moved_s < _STALL_S, f"{most} tasks are done, and no more")
        time.sleep(_LOOK_EVERY_S)


def _table(found: dict[str, Any], chunks: int) -> str:
    lines = [f"| {chunks:,} chunks (goal: {GOAL_MB:g} MB) | peak |", "|---|---|"]
    lines += [f"| {role} | {peak:,.0f} MB |" for role, peak in sorted(found["peak_mb"].items())]
    half_s, done_s = found["half_after_s"], found["done_after_s"]
    lines += ["", f"half done after {half_s:.0f} s, done after {done_s:.0f} s"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
