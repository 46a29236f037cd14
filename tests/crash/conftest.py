"""Fixtures of the crash tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from launcher import Launcher

MEMORY = Path("/dev/shm")
ROOM_BYTES = 256 << 20


@pytest.fixture
def memory_path(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Path, None, None]:
    """A folder in memory where there is one: a kill leaves there what it leaves on a disk.

    What a failed test has in it is kept where tests keep theirs.
    """
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        yield tmp_path
        return
    failed = request.session.testsfailed
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    yield folder
    if request.session.testsfailed > failed:
        with suppress(shutil.Error):  # a socket cannot be kept
            shutil.copytree(folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def warm() -> Generator[list[Launcher], None, None]:
    """The launcher that tests share, for as long as its server lives."""
    launchers = [Launcher()]
    yield launchers
    launchers[0].close()


@pytest.fixture
def launcher(warm: list[Launcher]) -> Generator[Launcher, None, None]:
    """A launcher with nobody alive from the test before, nor left for the one after."""
    if not warm[0].alive:
        warm[0] = Launcher()
    yield warm[0]
    warm[0].end_all()
