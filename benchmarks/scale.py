"""How cost grows with a job: one run per size, then a half-done job that is continued.

`scale.py STAGE COUNT FOLDER` is one stage in a process of its own, so that the memory it
reports is its own; `sizes` and `half_done` start the stages.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from engine import Silent, run_pipeline
from judging import require

from intermission.operations import App, SourceRun
from intermission.settings import Settings
from intermission.telemetry import listen

CLAIM = 512
ONCE_FROM = 1_000_000
"""Jobs of this many tasks are measured in the first round alone."""


def sizes(counts: Sequence[int], rounds: int, place: Path) -> dict[str, dict[str, float]]:
    """What a task costs in a whole run, less what a run of one task takes; and peak memory."""
    runs: dict[int, list[dict[str, float]]] = {}
    for number in range(rounds):
        for count in (1, *counts):
            if count < ONCE_FROM or number == 0:
                runs.setdefault(count, []).append(_stage("whole", count, place))

    def per_task_us(figure: str, count: int) -> float:
        whole, start = (median(one[figure] for one in runs[n]) for n in (count, 1))
        return (whole - start) / count * 1e6

    return {
        str(count): {
            "us_per_task": per_task_us("wall_s", count),
            "cpu_us_per_task": per_task_us("cpu_s", count),
            "peak_mb": max(one["peak_mb"] for one in runs[count]),
        }
        for count in counts
    }


def half_done(count: int, place: Path) -> dict[str, float]:
    """A job interrupted in the middle: what it takes to look at it, to claim and to continue."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        begun = _start("begin", count, Path(folder))
        resumed = _start("resume", count, Path(folder))
        looked = _start("look", count, Path(folder))
    return {
        "submit_and_plan_s": begun["planned_s"],
        "submit_and_plan_peak_mb": begun["planned_mb"],
        "resume_s": resumed["first_claim_s"],
        "resume_peak_mb": resumed["peak_mb"],
        "status_s": looked["status_s"],
        "claim_us_per_task": looked["claim_us_per_task"],
    }


def _stage(stage: str, count: int, place: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        return _start(stage, count, Path(folder))


def _start(stage: str, count: int, folder: Path) -> dict[str, float]:
    began_s = time.monotonic()
    argv = [sys.executable, __file__, stage, str(count), str(folder), str(began_s)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{stage} of {count} tasks failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _whole(count: int, folder: Path, began_s: float) -> dict[str, float]:
    started_s, cpu_s = time.monotonic(), time.process_time()
    (source,) = run_pipeline("light", count, folder, Silent()).sources
    require(source.done, f"the job ended with {source.error}")
    return {
        "wall_s": time.monotonic() - started_s,
        "cpu_s": time.process_time() - cpu_s,
        "peak_mb": _peak_mb(),
    }


def _begin(count: int, folder: Path, began_s: float) -> dict[str, float]:
    """Run until half of the tasks are done, then be told to stop, as by a spot machine."""
    started_s = time.monotonic()
    found: dict[str, float] = {}

    def watch(run: SourceRun) -> None:
        if run.stats.executed["items"] and not found:
            found.update(planned_s=time.monotonic() - started_s, planned_mb=_peak_mb())
        if run.stats.executed["nothing"] >= count // 2 and "stopped" not in found:
            found["stopped"] = 1.0
            os.kill(os.getpid(), signal.SIGTERM)

    report = run_pipeline("light", count, folder, Silent(watch))
    require(report.interrupted == "SIGTERM", f"interrupted by {report.interrupted}")
    return found


def _resume(count: int, folder: Path, began_s: float) -> dict[str, float]:
    """From the start of the process to the first claim; then killed, as if by a power cut."""

    def claimed(point: str) -> None:
        if point == "after-claim":
            found = {"first_claim_s": time.monotonic() - began_s, "peak_mb": _peak_mb()}
            print(json.dumps(found), flush=True)
            os._exit(0)

    with listen(claimed):
        run_pipeline("light", count, folder, Silent())
    raise RuntimeError("nothing was left to claim")


def _look(count: int, folder: Path, began_s: float) -> dict[str, float]:
    """What `status` reads, and claims in the middle of a large job."""
    ledger = App(Settings()).workspace(folder / "source.txt").open_ledger()
    started_s = time.perf_counter()
    (row,) = ledger.jobs()
    status_s = time.perf_counter() - started_s
    require(row.total() == count + 1, f"{row.total()} tasks known")
    started_s = time.perf_counter()
    rounds = [ledger.claim("bench", CLAIM, lease_ttl_s=60.0) for _ in range(4)]
    claim_s = time.perf_counter() - started_s
    ledger.close()
    return {"status_s": status_s, "claim_us_per_task": claim_s / sum(map(len, rounds)) * 1e6}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_STAGES: dict[str, Callable[[int, Path, float], dict[str, Any]]] = {
    "whole": _whole,
    "begin": _begin,
    "resume": _resume,
    "look": _look,
}

if __name__ == "__main__":
    print(json.dumps(_STAGES[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))))
