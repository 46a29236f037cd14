"""What the ledger and the engine around it cost, against the least they could and their peers.

Every measurement is a fresh process in a fresh folder. Contestants take turns, round by
round, so that whatever else the machine does meets all of them; a ratio compares two
measurements of one round, and what is printed is the median ratio with its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import apsw
from answers import finished_run, help_page
from contest import CONTESTS, measure
from scale import half_done, sizes

FULL = {
    "rounds": 7,
    "light": {"peers": 2_000, None: 300_000},
    "receipted": {None: 2_000},
    "sizes": [1_000, 10_000, 100_000, 1_000_000],
    "half_done": 1_000_000,
    "finished": 1_000,
}
QUICK = {
    "rounds": 1,
    "light": {"peers": 30, None: 1_000},
    "receipted": {None: 100},
    "sizes": [500, 2_000],
    "half_done": 20_000,
    "finished": 50,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, help="how often each contestant is measured")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    options = parser.parse_args()
    plan = dict(QUICK if options.quick else FULL)
    plan["rounds"] = options.rounds or plan["rounds"]
    with tempfile.TemporaryDirectory(dir=options.folder, prefix=".bench-") as place:
        found = run(plan, Path(place))
    print(json.dumps(found, indent=2) if options.json else table(found))


def run(plan: dict[str, Any], place: Path) -> dict[str, Any]:
    rounds: int = plan["rounds"]
    return {
        "machine": machine(place),
        "rounds": rounds,
        "light": contest("light", plan["light"], rounds, place),
        "receipted": contest("receipted", plan["receipted"], rounds, place),
        "sizes": sizes(plan["sizes"], rounds, place),
        "half_done": {"tasks": plan["half_done"]} | half_done(plan["half_done"], place),
        "finished_run_s": spread(finished_run(plan["finished"], rounds, place)),
        "help_s": spread(help_page(rounds)),
    }


def contest(name: str, counts: dict[str | None, int], rounds: int, place: Path) -> dict[str, Any]:
    """Rates of all contestants, each against the limit's, and ours against each."""
    rates: dict[str, list[float]] = {}
    settings: dict[str, str] = {}
    for number in range(rounds):
        for contestant in CONTESTS[name]:
            _say(f"{name} {number + 1}/{rounds}: {contestant}")
            found = measure(name, contestant, counts[_kind(name, contestant)], place)
            if found is not None:
                rates.setdefault(contestant, []).append(found["tasks_per_s"])
                settings[contestant] = found["settings"]
    return {
        contestant: {
            "tasks": counts[_kind(name, contestant)],
            "settings": settings[contestant],
            "tasks_per_s": spread(theirs),
            "of_the_limit": spread(_quotients(theirs, rates["limit"])),
            "intermission_is": spread(_quotients(rates["intermission"], theirs)),
        }
        for contestant, theirs in rates.items()
    }


def _kind(name: str, contestant: str) -> str | None:
    """Peers take long enough with fewer tasks."""
    return "peers" if CONTESTS[name][contestant].startswith("peers.") else None


def _quotients(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values)}


def machine(place: Path) -> dict[str, Any]:
    """Where this ran, and how fast its disk syncs: half of what follows hangs on that."""
    path = place / "sync"
    began_s, count = time.perf_counter(), 200
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(b"x" * 512)
            os.fsync(file.fileno())
    fsync_per_s = count / (time.perf_counter() - began_s)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "fsync_per_s": round(fsync_per_s),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
    }


def table(found: dict[str, Any]) -> str:
    here = found["machine"]
    lines = [
        f"{here['cores']} cores, load {here['load']:.1f}, {here['fsync_per_s']} fsync/s, "
        f"Python {here['python']}, SQLite {here['sqlite']}",
        f"medians of {found['rounds']} rounds (lowest to highest)",
        "",
    ]
    for name in ("light", "receipted"):
        lines.append(f"| {name} tasks | per second | of the limit | Intermission is | settings |")
        lines.append("|---|---|---|---|---|")
        for contestant, row in found[name].items():
            lines.append(
                f"| {contestant}, {row['tasks']:,} tasks | {_text(row['tasks_per_s'], ',.0f')} "
                f"| {_text(row['of_the_limit'], '.3g')} "
                f"| {_text(row['intermission_is'], '.3g')} times | {row['settings']} |"
            )
        lines.append("")
    lines += ["| tasks in the job | µs per task | of it the supervisor's CPU | peak memory |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| {int(count):,} | {row['us_per_task']:.1f} | {row['cpu_us_per_task']:.1f} "
        f"| {row['peak_mb']:.0f} MB |"
        for count, row in found["sizes"].items()
    ]
    half = found["half_done"]
    lines += [
        "",
        f"| a job of {half['tasks']:,} tasks | |",
        "|---|---|",
        f"| submit, plan and add its tasks | {half['submit_and_plan_s']:.1f} s, "
        f"{half['submit_and_plan_peak_mb']:.0f} MB |",
        f"| status, half done | {half['status_s'] * 1e3:.1f} ms |",
        f"| claim, half done | {half['claim_us_per_task']:.1f} µs per task |",
        f"| resume, half done: from the command to the first claim | {half['resume_s']:.2f} s, "
        f"{half['resume_peak_mb']:.0f} MB |",
        "",
        f"`run` of a finished job: {found['finished_run_s']['median']:.2f} s; "
        f"`--help`: {found['help_s']['median']:.2f} s",
    ]
    return "\n".join(lines)


def _text(values: dict[str, float], form: str) -> str:
    median, low, high = (format(values[name], form) for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
