"""What the calls of a ledger cost beside many active jobs: the same as beside a few.

Two ledgers of each kind, one with few active jobs and one with many, take turns, call by call. In
`ready` every job has a task that may be claimed; in `waiting` none has, because its step needs
what the worker lacks or its time has not come. The goal is a ratio of at most 1.5 for every call.

    python benchmarks/scale_jobs.py [--few 100] [--many 100000] [--rounds 200] [--ledger sqlite]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import ledger_calls as calls
from database import fresh_database, serving

GOAL = 1.5
LEDGERS = ("sqlite", "postgres")
Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--ledger", choices=LEDGERS, action="append", help="both unless given")
    parser.add_argument("--url", help="a PostgreSQL server where databases may be created")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    given = parser.parse_args()
    sizes = (100, 300) if given.quick else (given.few, given.many)
    rounds = 5 if given.quick else given.rounds
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as place:
        Path(place).chmod(0o755)  # the database runs as another user
        for name in given.ledger or LEDGERS:
            with _places(name, given.url, Path(place)) as new_place:
                found[name] = _measure(new_place, sizes, rounds)
    print(json.dumps(found, indent=2) if given.json else _table(found, sizes))


@contextmanager
def _places(kind: str, url: str | None, folder: Path) -> Iterator[Callable[[], str]]:
    """Where a new ledger of a kind may be, as often as asked."""
    if kind == "sqlite":
        numbers = iter(range(100))
        yield lambda: str(folder / f"ledger{next(numbers)}.sqlite")
        return
    with serving(url, folder) as server, ExitStack() as held:
        yield lambda: held.enter_context(fresh_database(server))


def _measure(new_place: Callable[[], str], sizes: tuple[int, int], rounds: int) -> Any:
    ready = [_filled(new_place(), count, calls.add_ready) for count in sizes]
    waiting = [_filled(new_place(), count, calls.add_waiting) for count in sizes]
    times = [defaultdict(list), defaultdict(list)]
    for n in range(rounds):
        for size, (one, other) in enumerate(zip(ready, waiting, strict=True)):
            _round(times[size], n, one, other)
    for ledger in ready + waiting:
        ledger.close()
    few, many = ({call: median(spent) * 1e3 for call, spent in one.items()} for one in times)
    return {
        call: {"few_ms": few[call], "many_ms": many[call], "ratio": many[call] / few[call]}
        for call in few
    }


def _filled(place: str, count: int, add: Callable[[Any, int], Any]) -> Any:
    with calls.without_syncs(place) as ledger:
        for n in range(count):
            add(ledger, n)
    return calls.open_ledger(place)


def _round(times: Times, n: int, ready: Any, waiting: Any) -> None:
    def timed(call: str, do: Callable[..., Any], *arguments: Any) -> Any:
        began_s = time.perf_counter()
        answer = do(*arguments)
        times[call].append(time.perf_counter() - began_s)
        return answer

    lease = timed("claim, all have something", calls.claim_something, ready)
    timed("rescue, all have something", calls.rescue, ready)
    calls.give_back(ready, lease)
    made = timed("submit", calls.add_ready, waiting, 10**7 + n)
    timed("claim, one has something", calls.claim_something, waiting)
    calls.finish(waiting, made)
    timed("claim, none has anything", calls.claim_nothing, waiting)
    timed("rescue", calls.rescue, waiting)
    timed("list, first page", calls.first_page, waiting)


def _table(found: dict[str, Any], sizes: tuple[int, int]) -> str:
    few, many = (f"{size:,}" for size in sizes)
    lines = [f"| call | beside {few} active jobs | beside {many} | ratio |", "|---|---|---|---|"]
    for kind, table in found.items():
        for call, row in table.items():
            verdict = "" if row["ratio"] <= GOAL else f" (goal: {GOAL:g})"
            cells = f"{row['few_ms']:.2f} ms | {row['many_ms']:.2f} ms"
            lines.append(f"| {kind}: {call} | {cells} | {row['ratio']:.2f}{verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
