"""Log lines carry what was bound; fault points cost nothing until armed, and then fire."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from intermission import telemetry
from intermission.telemetry import POINTS, bind, configure_logging, listen, reached
from intermission.testing.faults import Crashed, crash_at, crashing

LOGGER = logging.getLogger("intermission.unit")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    logger = logging.getLogger("intermission")
    before = logger.handlers[:], logger.level, logger.propagate
    yield io.StringIO()
    logger.handlers[:], logger.level, logger.propagate = before


def test_text_lines(stream: io.StringIO) -> None:
    configure_logging("info", stream=stream)
    LOGGER.debug("not shown")
    with bind(job="6f2a"), bind(task="hear[7]", attempt=2):
        LOGGER.warning("lease %s", "lost", extra={"fence": 3})
    LOGGER.info("later")
    first, second = stream.getvalue().splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(
        rf"{stamp} warning lease lost job=6f2a task=hear\[7\] attempt=2 fence=3", first
    )
    assert re.fullmatch(rf"{stamp} info later", second)


def test_json_lines(stream: io.StringIO) -> None:
    configure_logging("info", json=True, stream=stream)
    with bind(job="6f2a", level="mine"):
        try:
            raise ValueError("broken")
        except ValueError:
            LOGGER.exception("failed", extra={"path": stream})
    entry = json.loads(stream.getvalue())
    assert entry["message"] == "failed"
    assert entry["level"] == "error"
    assert entry["logger"] == "intermission.unit"
    assert entry["job"] == "6f2a"
    assert entry["path"] == str(stream)
    assert entry["traceback"].endswith("ValueError: broken")
    assert list(entry)[:2] == ["at", "level"]


def test_text_lines_keep_the_traceback(stream: io.StringIO) -> None:
    configure_logging("info", stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        LOGGER.exception("failed")
    assert stream.getvalue().rstrip().endswith("ValueError: broken")


def test_configuring_again_replaces(stream: io.StringIO) -> None:
    configure_logging("info", stream=stream)
    configure_logging("error", stream=stream)
    LOGGER.info("not shown")
    LOGGER.error("once")
    assert stream.getvalue().count("once") == 1
    assert "not shown" not in stream.getvalue()


def test_what_is_bound_ends_with_the_block_even_when_it_fails(stream: io.StringIO) -> None:
    configure_logging("info", stream=stream)
    with pytest.raises(RuntimeError), bind(job="6f2a"):
        raise RuntimeError
    LOGGER.info("later")
    assert "6f2a" not in stream.getvalue()


def test_points_are_passed_to_listeners_only_while_they_listen() -> None:
    heard: list[str] = []
    reached("after-claim")
    with listen(heard.append):
        reached("before-step")
        with listen(heard.append):
            reached("after-step")
    reached("after-receipt")
    assert heard == ["before-step", "after-step", "after-step"]


def test_an_undeclared_point_raises_when_somebody_listens() -> None:
    reached("no-such-point")
    with listen(lambda _: None), pytest.raises(ValueError, match="no fault point 'no-such-point'"):
        reached("no-such-point")


def test_the_product_passes_every_declared_point_and_no_other() -> None:
    package = Path(telemetry.__file__).parent
    sources = [path for path in package.rglob("*.py") if "testing" not in path.parts]
    passed = {
        point for path in sources for point in re.findall(r'reached\("([^"]+)"\)', path.read_text())
    }
    assert passed == set(POINTS)
    assert len(set(POINTS)) == len(POINTS)


@pytest.mark.parametrize("text", ["nowhere", "after-claim:", "after-claim:0", "after-claim:x"])
def test_a_wrong_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"there is no fault point|expected a count"):
        telemetry.parse_point(text)


def test_crash_at_refuses_what_cannot_fire() -> None:
    assert crash_at("after-receipt", 3) == {"INTERMISSION_CRASH_AT": "after-receipt:3"}
    with pytest.raises(ValueError, match="no fault point"):
        crash_at("after-reciept")
    with pytest.raises(ValueError, match="expected a count"):
        crash_at("after-receipt", 0)


PASSES = """
import os
from intermission.telemetry import reached
for n in range(4):
    print(n, flush=True)
    reached("before-step")
    reached("after-step")
"""


def run(code: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(("nth", "printed"), [(1, "0\n"), (3, "0\n1\n2\n")])
def test_a_process_is_killed_at_the_nth_pass(nth: int, printed: str) -> None:
    done = run(PASSES, crash_at("after-step", nth))
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == printed


@pytest.mark.parametrize("environ", [{}, crash_at("after-step", 5), {"INTERMISSION_CRASH_AT": ""}])
def test_a_process_that_never_gets_there_lives(environ: dict[str, str]) -> None:
    done = run(PASSES, environ)
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n3\n")


def test_a_forked_child_counts_for_itself() -> None:
    code = """
import os, sys
from intermission.telemetry import reached
reached("before-step")
child = os.fork()
if child == 0:
    reached("before-step")
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""
    assert run(code, crash_at("before-step", 2)).returncode == 0
    assert run(code, crash_at("before-step", 1)).returncode == -signal.SIGKILL


def test_crashing_in_process_raises_once_at_the_nth_pass() -> None:
    with crashing("after-artifacts", 2):
        reached("after-artifacts")
        reached("before-receipt")
        with pytest.raises(Crashed, match="after-artifacts:2"):
            reached("after-artifacts")
        reached("after-artifacts")
    reached("after-artifacts")
    assert not issubclass(Crashed, Exception)
