"""Fixtures of the crash tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from launcher import Launcher


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
