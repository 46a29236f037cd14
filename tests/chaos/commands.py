"""The real command, and what every process of the run finds in its environment.

How pipelines reach a process is decided in `pipelines_of` alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.schedule import LEASE_S, PIPELINES

SECRET = "an-admin-secret-for-chaos"
COMMAND_S = 180.0
"""How long a command may take: it waits for a database that is away, on a busy machine."""
_FILES = Path(__file__).with_name("pipelines")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def install(folder: Path, release: int, lacks: Sequence[str] = ()) -> Path:
    """A folder with the pipelines of a release, as a host has them."""
    folder.mkdir(parents=True)
    for path in _FILES.glob("*.py"):
        if path.stem not in lacks:
            shutil.copy(path, folder)
    release_file = folder / "release.py"
    release_file.write_text(release_file.read_text().replace("= 1", f"= {release}"))
    return folder


def pipelines_of(names: Sequence[str]) -> dict[str, str]:
    """How a process is told which pipelines it has."""
    return {"INTERMISSION_PIPELINES": ",".join(names)}


def ref(pipeline: str) -> str:
    return f"{pipeline}:{pipeline}"


def environment(
    run: Path, installed: Path, *, host: str, home: Path, lacks: Sequence[str] = ()
) -> dict[str, str]:
    """The environment of one process: short leases, nobody's settings, a home of its own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("INTERMISSION_")}
    return {
        **inherited,
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CONFIG_HOME": str(home),
        "XDG_CACHE_HOME": str(home),
        "PYTHONPATH": str(installed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
        "CHAOS_RUN": run.name,
        "CHAOS_HOST": host,
        "CHAOS_FAULTS": str(run / "hosts" / host / "faults"),
        "CHAOS_RECORD": str(run / "executions.jsonl"),
        "INTERMISSION_SLOTS": "2",
        "INTERMISSION_LEASE_TTL_S": f"{LEASE_S:g}",
        "INTERMISSION_RENEW_EVERY_S": f"{LEASE_S / 4:g}",
        "INTERMISSION_RETRY_DELAYS_S": "1,2,4",
        "INTERMISSION_DRAIN_S": "5",
        "INTERMISSION_GC_GRACE_S": f"{LEASE_S:g}",
        "INTERMISSION_LOG_LEVEL": "info",
        "INTERMISSION_CACHE_DIR": str(home / "cache"),
        **pipelines_of([ref(name) for name in PIPELINES if name not in lacks]),
    }


def argv(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "intermission", *map(str, arguments)]


def run_command(env: Mapping[str, str], folder: Path, *arguments: object) -> Ended:
    """Run a command to its end."""
    try:
        done = subprocess.run(
            argv(*arguments),
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        return Ended(-1, "", f"it had not ended after {COMMAND_S:g} s: {e.stderr}")
    return Ended(done.returncode, done.stdout, done.stderr)
