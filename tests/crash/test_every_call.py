"""A kill before every write-side system call of one task's life, and then the same command.

Whatever the calls before it have left on the disk, the next run must finish with the right
bytes, at once, and without doing again what had a receipt.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench import Bench
from launcher import Launcher
from tracing import Call, follow, write_sites

PARTS = 6
AT_ONCE_S = 20.0
"""Far below the 60 s of a lease: nobody may wait for a dead worker's lease to end."""


def solo(launcher: Launcher, folder: Path) -> Bench:
    return Bench(launcher, folder, settings={"slots": 1}, pipeline="solo")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("who", ["supervisor", "slot"])
def test_a_kill_at_every_write(
    who: str,
    part: int,
    launcher: Launcher,
    tmp_path: Path,
    require: Callable[[str], str],
) -> None:
    strace = require("strace")
    undisturbed = solo(launcher, tmp_path / "undisturbed")
    dry = follow(undisturbed, who, strace)
    assert dry.status == 0
    undisturbed.assert_right()
    sites = write_sites(dry.calls(below=undisturbed.media))
    assert len(sites) > 40, "this is not all that a task writes"
    mine = sites[part::PARTS]
    fired = [
        kill_and_resume(solo(launcher, tmp_path / f"{site.name}-{site.nth}"), who, site, strace)
        for site in mine
    ]
    assert fired.count(False) <= len(mine) // 10


def kill_and_resume(bench: Bench, who: str, site: Call, strace: str) -> bool:
    """Whether the kill fell; if not, because this run never came as far as that call."""
    inject = f"inject={site.name}:signal=SIGKILL:when={site.nth}"
    traced = follow(bench, who, strace, ["-e", inject])
    if not traced.reached(site):
        return False
    assert traced.killed, f"nobody was killed at {site}: {traced.log[-2000:]}"
    # A slot's death is a failed attempt, and every slot after it dies at the same call. So
    # does the reaper, which is followed as well, once it has made as many calls itself.
    assert traced.status in ((-9,) if who == "supervisor" else (0, 1, 4)), traced.run.said()
    bench.launcher.assert_nobody_left()
    had, before = bench.receipts(), len(bench.executions())
    if traced.status == 4 and bench.start().wait(AT_ONCE_S) == 1:
        # With its reaper's death the task had used up its attempts: it was called failed,
        # once, and is tried afresh by whoever asks again.
        assert len(bench.executions()) == before
    bench.run(within_s=AT_ONCE_S)
    bench.assert_right()
    assert not had & set(bench.again(before)), f"{site}: executed although it had a receipt"
    bench.discard()
    return True
