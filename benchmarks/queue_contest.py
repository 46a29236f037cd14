"""One measurement of one queue on PostgreSQL, in a process of its own, as JSON.

`queue_contest.py rate NAME COUNT URL FOLDER` is tasks a second from the first word of an enqueue
to the last end; with `starts` in place of `rate` it is how long each of so many tasks waited from
the call that enqueues it until its own code ran, sent one at a time to workers that have nothing
else to do. Workers are up, and have run a task, before anything is timed.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from judging import require
from queues.starts import Starts

QUEUES = {
    "intermission": "queues.intermission_fleet",
    "limit": "queues.handwritten_alone",
    "limit, 2 workers": "queues.handwritten",
    "procrastinate": "queues.procrastinate_queue",
    "pgqueuer": "queues.pgqueuer_queue",
    "dbos": "queues.dbos_queue",
}
OURS = ("intermission", "limit", "limit, 2 workers")
_WARM = 20
_GAP_S = (0.02, 0.06)
_LOOK_EVERY_S = 0.02
_WITHIN_S = 240.0


def measure(what: str, name: str, count: int, url: str, place: Path) -> dict[str, Any] | None:
    """What one contestant does in a fresh process; None if its package is not installed."""
    argv = [sys.executable, __file__, what, name, str(count), url, str(place)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if "ModuleNotFoundError" in done.stderr and name not in OURS:
            return None
        raise RuntimeError(f"{what} of {name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(what: str, name: str, count: int, url: str, place: Path) -> None:
    queue = importlib.import_module(QUEUES[name])
    if what == "work":
        queue.work(url)
        return
    with tempfile.TemporaryDirectory(dir=place) as folder:
        starts = Starts(Path(folder))
        queue.prepare(url)
        with _workers(name, url, queue.WORKERS), queue.client(url, Path(folder)) as client:
            client.enqueue(_WARM)
            _await(client, _WARM)
            found = _rate(client, count) if what == "rate" else _starts(client, starts, count)
    print(json.dumps(found | {"settings": queue.SETTINGS}))


@contextmanager
def _workers(name: str, url: str, count: int) -> Iterator[None]:
    argv = [sys.executable, __file__, "work", name, "0", url, "."]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    workers = [
        subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(count)
    ]
    try:
        time.sleep(1.0)  # all of them are to be there, not only the first
        yield
        for worker in workers:
            require(worker.poll() is None, f"a worker of {name} ended with {worker.returncode}")
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _await(client: Any, count: int) -> None:
    deadline_s = time.monotonic() + _WITHIN_S
    while (found := client.done()) < count:
        require(time.monotonic() < deadline_s, f"only {found} of {count} tasks have ended")
        time.sleep(_LOOK_EVERY_S)
    require(found == count, f"{found} tasks of {count} have ended")


def _rate(client: Any, count: int) -> dict[str, float]:
    began_s = time.perf_counter()
    client.enqueue(count)
    enqueued_s = time.perf_counter() - began_s
    _await(client, _WARM + count)
    took_s = time.perf_counter() - began_s
    return {"tasks_per_s": count / took_s, "enqueue_s": enqueued_s}


def _starts(client: Any, starts: Starts, count: int) -> dict[str, Any]:
    waited_ms: list[float] = []
    calls_ms: list[float] = []
    for n in range(_WARM + count):
        time.sleep(random.uniform(*_GAP_S))
        sent_ns = time.monotonic_ns()
        client.send(n)
        called_ns = time.monotonic_ns()
        at_ns = starts.of(n)
        if n >= _WARM:
            waited_ms.append((at_ns - sent_ns) / 1e6)
            calls_ms.append((called_ns - sent_ns) / 1e6)
    return {"waited_ms": waited_ms, "calls_ms": calls_ms}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
