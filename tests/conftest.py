"""What every test may use: a way to need a tool of the machine without hiding its absence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

# The suites that ship are full of assertions: show what was compared when one fails.
pytest.register_assert_rewrite("intermission.testing")


@pytest.fixture(scope="session")
def require() -> Callable[[str], str]:
    """`require("strace")` is the tool's path; without the tool the test skips, or fails on CI."""

    def find(tool: str) -> str:
        path = shutil.which(tool)
        if path is None and os.environ.get("CI") == "true":
            pytest.fail(f"{tool} is not installed, and on CI nothing may be skipped")
        if path is None:
            pytest.skip(f"{tool} is not installed")
        return path

    return find
