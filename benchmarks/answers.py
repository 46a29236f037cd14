"""How long a person waits for an answer: the command itself, from its start to its end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine import Silent, ref, run_pipeline
from judging import require

COMMAND = Path(sys.executable).with_name("intermission")


def finished_run(count: int, rounds: int, place: Path) -> list[float]:
    """Seconds that `run` of a finished job takes, every task of which has a file to look at."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        (source,) = run_pipeline("filed", count, Path(folder), Silent()).sources
        require(source.done, f"the job ended with {source.error}")
        argv = ["run", ref("filed"), str(source.path), "--param", f"count={count}"]
        return [_timed(argv) for _ in range(rounds)]


def help_page(rounds: int) -> list[float]:
    return [_timed(["--help"]) for _ in range(rounds)]


def _timed(arguments: list[str]) -> float:
    began_s = time.perf_counter()
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    took_s = time.perf_counter() - began_s
    require(done.returncode == 0, f"{arguments} exited with {done.returncode}: {done.stderr}")
    return took_s
