"""One measurement in a process of its own: `contest.py NAME COUNT FOLDER` prints it as JSON."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONTESTS = {
    "light": {
        "intermission": "engine:light",
        "ledger alone": "ledger_alone:light",
        "limit": "handwritten:light",
        "limit, tasks apart": "handwritten:light_apart",
        "huey": "peers.huey_queue:run",
        "persist-queue": "peers.persist_ack_queue:run",
        "dbos": "peers.dbos_queue:run",
    },
    "receipted": {"intermission": "engine:receipted", "limit": "handwritten:receipted"},
}


def measure(contest: str, name: str, count: int, place: Path) -> dict[str, Any] | None:
    """Run one contestant in a fresh process and folder; None if its package is not installed."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        argv = [sys.executable, __file__, CONTESTS[contest][name], str(count), folder]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if "ModuleNotFoundError" in done.stderr and CONTESTS[contest][name].startswith("peers."):
            return None
        raise RuntimeError(f"{contest} {name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(target: str, count: int, folder: Path) -> None:
    module_name, _, function = target.partition(":")
    module = importlib.import_module(module_name)
    before = _cpu_s()
    took_s = getattr(module, function)(count, folder)
    own, children = (now - then for now, then in zip(_cpu_s(), before, strict=True))
    found = {
        "tasks_per_s": count / took_s,
        "cpu_us_per_task": own / count * 1e6,
        "children_cpu_us_per_task": children / count * 1e6,
        "settings": module.SETTINGS,
    }
    print(json.dumps(found))


def _cpu_s() -> tuple[float, float]:
    """CPU seconds of this process, and of the children it has waited for."""
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
