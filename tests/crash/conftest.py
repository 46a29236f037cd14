"""Fixtures of the crash tests."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from bench import Bench
from launcher import Launcher


@pytest.fixture(scope="session")
def warm() -> Generator[Launcher, None, None]:
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture
def launcher(warm: Launcher) -> Generator[Launcher, None, None]:
    """The launcher, with nobody alive from the test before, nor left for the one after."""
    yield warm
    warm.end_all()


@pytest.fixture
def bench(launcher: Launcher, tmp_path: Path) -> Bench:
    return Bench(launcher, tmp_path / "bench")
