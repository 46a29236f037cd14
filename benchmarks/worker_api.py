"""Tasks with receipts a second: a worker behind a server, and the same worker on the ledger itself.

Both run the same pipeline, whose steps do nothing, with the same slots, on one PostgreSQL database
each; sources and receipts lie in a local folder. The two take turns. `--url URL` measures on a
server of yours; without, it starts the one that the tests use, with fsync on.

    python benchmarks/worker_api.py [--tasks 2000] [--slots 2] [--rounds 3] [--json] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from database import fresh_database, serving
from judging import require

from intermission.composition.fleet import Fleet
from intermission.model import JobState, TaskState
from intermission.settings import Settings

RECEIPTED = f"{Path(__file__).with_name('pipelines.py')}:receipted"
SECRET = "a-secret-of-the-benchmark"
DEADLINE_S = 600.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=2000)
    options.add_argument("--slots", type=int, default=2)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", action="store_true", help="print the figures as JSON")
    options.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    options.add_argument("--url", help="a server where databases may be created")
    options.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    given = options.parse_args()
    tasks, rounds = (50, 1) if given.quick else (given.tasks, given.rounds)
    found: dict[str, list[float]] = {"on the ledger": [], "behind a server": []}
    with serving(given.url, given.folder) as url:
        for _ in range(rounds):
            for name, figures in found.items():
                is_remote = name == "behind a server"
                figures.append(_rate(url, given.folder, tasks, given.slots, is_remote=is_remote))
    medians = {name: median(figures) for name, figures in found.items()}
    share = medians["behind a server"] / medians["on the ledger"]
    if given.json:
        print(json.dumps({"tasks_per_s": found, "share": share, "tasks": tasks}))
        return
    for name, figures in found.items():
        print(f"{name}: {medians[name]:,.0f} tasks/s ({min(figures):,.0f} to {max(figures):,.0f})")
    print(f"behind a server: {share:.2f} of the ledger itself")


def _rate(url: str, folder: Path, tasks: int, slots: int, *, is_remote: bool) -> float:
    """Tasks a second, from the end of the plan to the end of the job."""
    with (
        fresh_database(url) as database,
        tempfile.TemporaryDirectory(dir=folder, prefix=".bench-") as place,
    ):
        env = {
            "INTERMISSION_LEDGER": database,
            "INTERMISSION_SLOTS": str(slots),
            "INTERMISSION_PIPELINES": RECEIPTED,
            "INTERMISSION_CACHE_DIR": str(Path(place, "cache")),
            "INTERMISSION_ADMIN_SECRET": SECRET,
        }
        source = Path(place, "source.txt")
        source.write_text("nothing")
        fleet = Fleet(Settings(ledger=database, pipelines=(RECEIPTED,)))
        key, _ = fleet.submit(fleet.app.catalog.add(RECEIPTED), str(source), {"count": tasks})
        with _worker(env, Path(place), is_remote=is_remote):
            began_s = _until(fleet, key, is_planned=True)
            took_s = _until(fleet, key, is_planned=False) - began_s
        fleet.ledger.close()
    return tasks / took_s


def _until(fleet: Fleet, key: str, *, is_planned: bool) -> float:
    """When the plan is done, or the job."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        (row,) = fleet.ledger.jobs(key)
        require(row.state is not JobState.FAILED, f"the job failed: {row.reason}")
        if row.state is JobState.DONE or (
            is_planned and row.counts.get("items", {}).get(TaskState.DONE)
        ):
            return time.monotonic()
        time.sleep(0.02)
    raise SystemExit("the job did not end")


@contextmanager
def _worker(env: Mapping[str, str], place: Path, *, is_remote: bool) -> Iterator[None]:
    if not is_remote:
        with _process(env, place, "worker"):
            yield
        return
    with _process(env, place, "serve", "--port", "0") as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        require("listening on" in line, line)
        behind = {**env, "INTERMISSION_LEDGER": "", "INTERMISSION_SERVER": line.split()[-1]}
        with _process(behind, place, "register", "bench") as registering:
            key = registering.communicate()[0].strip()
        behind |= {"INTERMISSION_SERVER_KEY": key, "INTERMISSION_ADMIN_SECRET": ""}
        with _process(behind, place, "worker"):
            yield


@contextmanager
def _process(
    env: Mapping[str, str], place: Path, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen(
        [sys.executable, "-m", "intermission", *arguments],
        env={**os.environ, **env},
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield made
    finally:
        made.terminate()
        made.communicate()


if __name__ == "__main__":
    main()
