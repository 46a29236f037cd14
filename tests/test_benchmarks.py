"""The benchmark runs, and every figure it promises comes out. How large they are is its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def figures(found: Any) -> Iterator[float]:
    if isinstance(found, dict):
        for value in found.values():
            yield from figures(value)
    elif isinstance(found, list):
        for value in found:
            yield from figures(value)
    elif isinstance(found, int | float):
        yield found


def quick(name: str, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, "--quick", "--json", "--folder", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_figure_comes_out(tmp_path: Path) -> None:
    found = quick("ledger.py", tmp_path)
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


def test_every_figure_of_transcoding_comes_out(tmp_path: Path) -> None:
    found = quick("transcode.py", tmp_path)
    assert found["renditions"].keys() == {"180p", "90p"}
    assert {"run", "run, killed half way and again", "one ffmpeg"} <= found["costs"].keys()
    assert found["costs"]["one ffmpeg"]["wall of one ffmpeg"]["median"] == 1
    assert {"encode", "package", "storyboard"} <= found["steps_s"].keys()
    assert min(*figures(found["costs"]), *figures(found["added"])) > 0
    assert all(0.9 < rendition["ssim"] <= 1 for rendition in found["renditions"].values())
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("postgres_server")  # which knows whether there is one to start
def test_every_figure_of_a_fleet_comes_out() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        Path(folder).chmod(0o755)  # the server may run as another user
        found = quick("postgres.py", Path(folder))
        assert not list(Path(folder).iterdir())
    assert found.keys() == {"rates", "starts", "ledger", "claims", "snapshot"}
    assert {"intermission", "limit"} <= found["rates"].keys()
    assert found["rates"]["limit"]["of_the_limit"]["median"] == 1
    assert found["starts"]["intermission"]["p50_ms"] <= found["starts"]["intermission"]["p99_ms"]
    assert len(found["claims"]) > 1
    assert len(found["snapshot"]["intermission"]) == 3
    assert min(figures(found)) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("postgres_server")
def test_every_ledger_is_measured_beside_few_and_many_jobs() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        Path(folder).chmod(0o755)
        found = quick("scale_jobs.py", Path(folder))
        assert not list(Path(folder).iterdir())
    assert found.keys() == {"sqlite", "postgres"}
    for table in found.values():
        assert {"submit", "rescue", "list, first page", "claim, none has anything"} <= table.keys()
        assert all(row["ratio"] == row["many_ms"] / row["few_ms"] for row in table.values())
    assert min(figures(found)) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("postgres_server")
def test_the_time_between_steps_is_measured() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        Path(folder).chmod(0o755)
        found = quick("steps.py", Path(folder))
        assert not list(Path(folder).iterdir())
    assert {"intermission, SQLite", "intermission, PostgreSQL"} <= found["steps"].keys()
    assert "intermission" in found["starts"]
    assert min(figures(found)) > 0


@pytest.mark.slow
def test_the_memory_of_every_process_of_a_long_plan_is_measured(tmp_path: Path) -> None:
    found = quick("million.py", tmp_path)
    assert found["half_after_s"] < found["done_after_s"]
    roles = {role.partition(",")[0] for role in found["peak_mb"]}
    assert roles == {"server", "worker until it was killed", "worker that continued"}
    assert min(figures(found["peak_mb"])) > 10  # a Python process has more than that
    assert not list(tmp_path.iterdir())
