"""What every test may use: a way to need a tool of the machine without hiding its absence."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# The suites that ship are full of assertions: show what was compared when one fails.
pytest.register_assert_rewrite("intermission.testing")

pytest_plugins = [
    "servers.seaweed",
    "servers.fault_proxy",
    "servers.postgres",
    "servers.pgbouncer",
    "servers.valkey",
    "servers.ministack",
]

SERVERS = {"aws", "pgbouncer", "postgres", "postgres_server", "s3", "valkey", "valkey_server"}

# A shell starts what runs in the background with SIGINT ignored, and everything it starts
# inherits that, the commands that the tests interrupt among them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def require() -> Callable[[str], str]:
    """`require("strace")` is the tool's path; without the tool the test skips, or fails on CI."""

    def find(tool: str) -> str:
        # Some tools come in wheels, and lie beside the interpreter.
        path = shutil.which(tool) or shutil.which(tool, path=Path(sys.executable).parent)
        if path is None and os.environ.get("CI") == "true":
            pytest.fail(f"{tool} is not installed, and on CI nothing may be skipped")
        if path is None:
            pytest.skip(f"{tool} is not installed")
        return path

    return find


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whatever uses one of the servers is marked so: `make quick` does without them."""
    if SERVERS.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.server)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure is told when it happens: a run that is broken off says what had failed."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        told = f"\n{report.nodeid} failed in {report.when}:\n{report.longreprtext[-2000:]}\n"
        sys.stdout.write(told)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is slow comes first in every worker's share, so that none of it is left for the end."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    size = -(-len(items) // workers)
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        own = slow[worker::workers]
        ordered += own + quick[: max(0, size - len(own))]
        del quick[: max(0, size - len(own))]
    items[:] = ordered + quick
