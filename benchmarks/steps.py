"""How long a pipeline waits between its steps, and a fleet between a call and its first line.

`steps`: one job whose steps form a chain, each with a receipt and every sync; from one step's end
to the next one's beginning. Beside it DBOS, whose workflow has as many steps. On SQLite it is
`intermission run`, on PostgreSQL a worker with one slot. The goal is at most 6 ms at p50.

`starts`: one job at a time, from the call that submits it to the first line of its step, as
`postgres.py --part starts` measures it. The goal is less than 12 ms at p50.

    python benchmarks/steps.py [--part steps] [--steps 100] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import queue_contest
from database import fresh_database, serving
from judging import require
from peers.step_times import PLACE, gaps_ms

GOALS_MS = {"steps": 6.0, "starts": 12.0}
SKIP = 3
_WITHIN_S = 300.0
_HERE = Path(__file__).parent
_HEAD = "from intermission import Pipeline, step\nfrom peers.step_times import nothing_but_times\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", action="append", choices=GOALS_MS, help="both unless given")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="a PostgreSQL server where databases may be created")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    given = parser.parse_args()
    steps, starts, rounds = (8, 5, 1) if given.quick else (given.steps, given.starts, given.rounds)
    parts = {
        "steps": lambda url: _steps(url, given.folder, steps, rounds),
        "starts": lambda url: _starts(url, given.folder, starts, rounds),
    }
    with serving(given.url, given.folder) as url:
        found = {name: parts[name](url) for name in given.part or parts}
    print(json.dumps(found, indent=2) if given.json else _table(found))


def _steps(url: str, folder: Path, count: int, rounds: int) -> dict[str, Any]:
    contestants: dict[str, Callable[[Path, str, int], None]] = {
        "intermission, SQLite": _run,
        "DBOS, SQLite": _dbos_sqlite,
        "intermission, PostgreSQL": _fleet,
        "DBOS, PostgreSQL": _dbos,
    }
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            if name.startswith("DBOS") and not _has_dbos():
                continue
            with tempfile.TemporaryDirectory(dir=folder) as place, fresh_database(url) as database:
                os.environ[PLACE] = str(Path(place) / "times")
                contestant(Path(place), database, count)
                gaps = gaps_ms(Path(place) / "times", SKIP)
            require(len(gaps) == count - SKIP - 1, f"{len(gaps)} gaps between {count} steps")
            found.setdefault(name, []).extend(gaps)
    return {name: _percentiles(gaps) for name, gaps in found.items()}


def _starts(url: str, folder: Path, count: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in ("intermission", "dbos"):
            with fresh_database(url) as database:
                one = queue_contest.measure("starts", name, count, database, folder)
            if one is not None:
                found.setdefault(name, []).extend(one["waited_ms"])
    return {name: _percentiles(waited) for name, waited in found.items()}


def _has_dbos() -> bool:
    from importlib.util import find_spec

    return find_spec("dbos") is not None


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"p50_ms": median(ordered), "p99_ms": ordered[int(len(ordered) * 0.99)]}


def _chain(folder: Path, count: int) -> tuple[str, Path]:
    """A pipeline of so many steps, each of which takes the result of the one before; a source."""
    lines = [_HEAD, "@step(version=1)\ndef step0() -> int:\n    return nothing_but_times(0)\n"]
    lines += [
        f"@step(version=1)\ndef step{n}(step{n - 1}: int) -> int:\n"
        f"    return nothing_but_times({n})\n"
        for n in range(1, count)
    ]
    names = ", ".join(f"step{n}" for n in range(count))
    path = folder / "chain.py"
    path.write_text("\n\n".join([*lines, f'chain = Pipeline("chain", [{names}])\n']))
    source = folder / "source.txt"
    source.write_text("nothing")
    return f"{path}:chain", source


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "intermission", *map(str, arguments)]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(_HERE), *filter(None, sys.path)])}


def _call(argv: list[str], folder: Path) -> str:
    done = subprocess.run(
        argv, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
    )
    require(done.returncode == 0, f"{argv[3:5]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _run(folder: Path, database: str, count: int) -> None:
    ref, source = _chain(folder, count)
    _call(_command("run", ref, source, "--slots", 1), folder)


def _fleet(folder: Path, database: str, count: int) -> None:
    ref, source = _chain(folder, count)
    with _worker(folder, database, ref):
        (key,) = _call(_command("submit", ref, source, "--ledger", database), folder).split()
        _await_end(key, database, folder)


@contextmanager
def _worker(folder: Path, database: str, ref: str) -> Iterator[None]:
    argv = _command("worker", "--ledger", database, "--pipeline", ref, "--slots", 1)
    worker = subprocess.Popen(argv, cwd=folder, env=_environment(), stderr=subprocess.PIPE)
    try:
        assert worker.stderr is not None
        require(b"at work" in worker.stderr.readline(), "the worker did not start")
        yield
        require(worker.poll() is None, f"the worker ended with {worker.returncode}")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate()


def _await_end(key: str, database: str, folder: Path) -> None:
    deadline_s = time.monotonic() + _WITHIN_S
    argv = _command("status", key, "--json", "--ledger", database)
    while json.loads(_call(argv, folder))["state"] != "done":
        require(time.monotonic() < deadline_s, "the job has not ended")
        time.sleep(1.0)


def _dbos_sqlite(folder: Path, database: str, count: int) -> None:
    _dbos(folder, f"sqlite:///{folder / 'dbos.sqlite'}", count)


def _dbos(folder: Path, database: str, count: int) -> None:
    _call([sys.executable, str(_HERE / "peers" / "dbos_steps.py"), database, str(count)], folder)


def _table(found: dict[str, Any]) -> str:
    titles = {
        "steps": "from one step's end to the next one's beginning",
        "starts": "from the call to the first line of the step, PostgreSQL",
    }
    lines: list[str] = []
    for part, rows in found.items():
        lines += ["", f"| {titles[part]} (goal {GOALS_MS[part]:g} ms at p50) | p50 | p99 |"]
        lines += ["|---|---|---|"]
        for name, row in rows.items():
            lines.append(f"| {name} | {row['p50_ms']:.1f} ms | {row['p99_ms']:.1f} ms |")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    main()
