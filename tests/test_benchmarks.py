"""The benchmark runs, and every figure it promises comes out. How large they are is its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "ledger.py"


def figures(found: Any) -> Iterator[float]:
    if isinstance(found, dict):
        for value in found.values():
            yield from figures(value)
    elif isinstance(found, int | float):
        yield found


def test_every_figure_comes_out(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--quick", "--json", "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"intermission", "ledger alone", "limit"} <= found["light"].keys()
    assert {"intermission", "limit"} <= found["receipted"].keys()
    for contest in ("light", "receipted"):
        for row in found[contest].values():
            assert min(figures(row)) > 0
            assert row["settings"]
        assert found[contest]["limit"]["of_the_limit"]["median"] == 1
    assert len(found["sizes"]) > 1
    assert min(figures(found["half_done"])) > 0
    assert min(*figures(found["finished_run_s"]), *figures(found["help_s"])) > 0
    assert not list(tmp_path.iterdir())
