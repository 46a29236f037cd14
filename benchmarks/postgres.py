"""What a fleet on PostgreSQL costs, against other queues and hand-written SQL on the same server.

`--url URL` measures on a server of yours; without, it starts the one that the tests use, with
fsync on, in a folder on the disk to measure. `--part` chooses: `rates` and `starts` are contests
of whole queues with their workers, `ledger` is the ledger alone, `claims` is one claim beside many
finished tasks, `snapshot` is work while nothing can be vacuumed. Contestants take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import held_snapshot
import queue_contest
from database import fresh_database, serving
from ledger_on_postgres import claims_beside_finished, ledger_rates
from queue_contest import QUEUES

Found = dict[str, Any]

FULL: Found = {
    "queues": list(QUEUES),
    "start_queues": [name for name in QUEUES if name != "limit, 2 workers"],
    "rounds": 3,
    "tasks": {"procrastinate": 2_000, "dbos": 2_000, None: 100_000},
    "starts": 100,
    "ledger": 20_480,
    "finished": [1_000, 10_000, 100_000, 1_000_000],
    "pending": 100_000,
    "claims": 100,
    "snapshot_queues": list(held_snapshot.QUEUES),
    "snapshot_s": 180.0,
}
QUICK: Found = {
    "queues": ["intermission", "limit"],
    "start_queues": ["intermission"],
    "rounds": 1,
    "tasks": {None: 200},
    "starts": 5,
    "ledger": 1_024,
    "finished": [1_000, 2_000],
    "pending": 1_000,
    "claims": 5,
    "snapshot_queues": ["intermission"],
    "snapshot_s": 0.9,
}


def main() -> None:
    parts = {
        "rates": rates,
        "starts": starts,
        "ledger": ledger_alone,
        "claims": claims,
        "snapshot": snapshot,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=parts, help="all of them unless given")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, help="how often each contestant is measured")
    parser.add_argument("--url", help="a server where databases may be created")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    sizes = sizes | {"rounds": options.rounds or sizes["rounds"], "folder": options.folder}
    with serving(options.url, options.folder) as url:
        found = {name: parts[name](url, sizes) for name in options.part or parts}
    print(json.dumps(found, indent=2) if options.json else table(found))


def _turns(
    what: str, url: str, names: list[str], rounds: int, measure: Callable[[str, str], Any]
) -> Found:
    """Measurements by contestant, taken in turns; without those that are not installed."""
    found: dict[str, list[Any]] = {}
    for number in range(rounds):
        for name in names:
            _say(f"{what} {number + 1}/{rounds}: {name}")
            with fresh_database(url) as place:
                one = measure(name, place)
            if one is not None:
                found.setdefault(name, []).append(one)
    return found


def rates(url: str, sizes: Found) -> Found:
    def measure(name: str, place: str) -> Any:
        return queue_contest.measure("rate", name, _tasks(sizes, name), place, sizes["folder"])

    found = _turns("rates", url, sizes["queues"], sizes["rounds"], measure)
    per_s = {name: [one["tasks_per_s"] for one in all] for name, all in found.items()}
    return {
        name: {
            "tasks": _tasks(sizes, name),
            "settings": found[name][0]["settings"],
            "tasks_per_s": spread(theirs),
            "of_the_limit": spread(_quotients(theirs, per_s["limit"])),
            "intermission_is": spread(_quotients(per_s["intermission"], theirs)),
        }
        for name, theirs in per_s.items()
    }


def _tasks(sizes: Found, name: str) -> int:
    """Those that commit once for every task take long enough with fewer."""
    return sizes["tasks"].get(name) or sizes["tasks"][None]


def _quotients(ours: list[float], theirs: list[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def starts(url: str, sizes: Found) -> Found:
    def measure(name: str, place: str) -> Any:
        return queue_contest.measure("starts", name, sizes["starts"], place, sizes["folder"])

    found = _turns("starts", url, sizes["start_queues"], sizes["rounds"], measure)
    rows: Found = {}
    for name, rounds in found.items():
        waited_ms = sorted(ms for one in rounds for ms in one["waited_ms"])
        calls_ms = [ms for one in rounds for ms in one["calls_ms"]]
        rows[name] = {
            "p50_ms": median(waited_ms),
            "p99_ms": _p99(waited_ms),
            "call_p50_ms": median(calls_ms),
        }
    return rows


def _p99(in_order: list[float]) -> float:
    return in_order[int(len(in_order) * 0.99)]


def ledger_alone(url: str, sizes: Found) -> Found:
    found = [ledger_rates(url, sizes["ledger"]) for _ in range(sizes["rounds"])]
    ours, limit = ([one[n] for one in found] for n in (0, 1))
    return {
        "tasks": sizes["ledger"],
        "tasks_per_s": spread(ours),
        "of_the_limit": spread(_quotients(ours, limit)),
    }


def claims(url: str, sizes: Found) -> Found:
    with fresh_database(url) as place:
        return claims_beside_finished(place, sizes["finished"], sizes["pending"], sizes["claims"])


def snapshot(url: str, sizes: Found) -> Found:
    found: Found = {}
    for name in sizes["snapshot_queues"]:
        _say(f"snapshot, {sizes['snapshot_s']:g} s: {name}")
        with fresh_database(url) as place:
            thirds = held_snapshot.measure(name, sizes["snapshot_s"], place)
        if thirds is not None:
            found[name] = thirds
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values)}


def table(found: Found) -> str:
    lines: list[str] = []
    if "rates" in found:
        lines += ["| no-op tasks | per second | of the limit | Intermission is | settings |"]
        lines += ["|---|---|---|---|---|"]
        lines += [
            f"| {name}, {row['tasks']:,} tasks | {_text(row['tasks_per_s'], ',.0f')} "
            f"| {_text(row['of_the_limit'], '.2f')} | {_text(row['intermission_is'], '.3g')} times "
            f"| {row['settings']} |"
            for name, row in found["rates"].items()
        ]
    if "starts" in found:
        lines += ["", "| from the call to the start | p50 | p99 | of it the call, p50 |"]
        lines += ["|---|---|---|---|"]
        lines += [
            f"| {name} | {row['p50_ms']:.1f} ms | {row['p99_ms']:.1f} ms "
            f"| {row['call_p50_ms']:.1f} ms |"
            for name, row in found["starts"].items()
        ]
    if "ledger" in found:
        row = found["ledger"]
        lines += ["", f"The ledger alone, {row['tasks']:,} tasks claimed and completed: "]
        lines[-1] += f"{_text(row['tasks_per_s'], ',.0f')} a second, "
        lines[-1] += f"{_text(row['of_the_limit'], '.2f')} of the limit."
    if "claims" in found:
        lines += ["", "| finished tasks beside | a claim of one, p50 | p99 | of 256, p50 |"]
        lines += ["|---|---|---|---|"]
        lines += [
            f"| {name} | {row['one_p50_ms']:.1f} ms | {row['one_p99_ms']:.1f} ms "
            f"| {row['batch_p50_ms']:.1f} ms |"
            for name, row in found["claims"].items()
        ]
    if "snapshot" in found:
        lines += ["", "| under a snapshot | third | tasks per second | claim, p50 | p99 |"]
        lines += ["|---|---|---|---|---|"]
        lines += [
            f"| {name} | {number} | {row['tasks_per_s']:,.0f} | {row['claim_p50_ms']:.1f} ms "
            f"| {row['claim_p99_ms']:.1f} ms |"
            for name, thirds in found["snapshot"].items()
            for number, row in enumerate(thirds, 1)
        ]
    return "\n".join(lines).strip()


def _text(values: dict[str, float], form: str) -> str:
    median, low, high = (format(values[name], form) for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
