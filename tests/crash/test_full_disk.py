"""A failing disk at every write of one task's life: full, broken, read-only, out of descriptors.

A run may end in success only with the right bytes; otherwise it says what is wrong and what to
do, without a traceback. And when the fault is gone, the same command finishes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench import Bench, Run
from launcher import Launcher
from tracing import Call, follow, write_sites

PARTS = 6
AT_ONCE_S = 20.0

# A full disk stays full, and a broken sector is met once. A write once, too: slots speak to
# their worker through the same call, which no disk can fill.
FAULTS = {
    "openat": ("ENOSPC:when={}", "EROFS:when={}", "EMFILE:when={}+", "EIO:when={}"),
    "mkdir": ("ENOSPC:when={}+", "EROFS:when={}+"),
    "write": ("ENOSPC:when={}", "EIO:when={}"),
    "pwrite64": ("ENOSPC:when={}+", "EIO:when={}"),
    "fsync": ("ENOSPC:when={}+", "EIO:when={}"),
    "fdatasync": ("EIO:when={}",),
    "link": ("ENOSPC:when={}+", "EROFS:when={}+", "EIO:when={}"),
    "rename": ("ENOSPC:when={}+", "EROFS:when={}+", "EIO:when={}"),
    "unlink": ("EROFS:when={}+", "EIO:when={}"),
    "rmdir": ("EROFS:when={}+",),
    "ftruncate": ("EIO:when={}",),
    "utimensat": ("EROFS:when={}+", "EIO:when={}"),
}


def solo(launcher: Launcher, folder: Path) -> Bench:
    return Bench(launcher, folder, settings={"slots": 1}, pipeline="solo")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("who", ["supervisor", "slot"])
def test_an_error_at_every_write(
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
    calls = dry.calls(below=undisturbed.media)
    faults = [(site, fault) for site in write_sites(calls) for fault in FAULTS[site.name]]
    # Descriptors run out at any open, whatever it is for.
    reading = {
        call.text: call
        for call in calls
        if call.name == "openat" and not call.opens_for_writing and not call.failed
    }
    faults += [(call, "EMFILE:when={}+") for call in reading.values()]
    mine = faults[part::PARTS]
    fired = [
        fail_and_resume(solo(launcher, tmp_path / str(no)), who, site, fault, strace)
        for no, (site, fault) in enumerate(mine)
    ]
    assert fired.count(False) <= len(mine) // 10


def fail_and_resume(bench: Bench, who: str, site: Call, fault: str, strace: str) -> bool:
    """Whether the fault fell; if not, because this run never came as far as that call."""
    inject = f"inject={site.name}:error={fault.format(site.nth)}"
    traced = follow(bench, who, strace, ["-e", inject])
    if not traced.reached(site):
        return False
    what = f"{inject} at {site.text}"
    assert traced.injected, f"{what} did nothing: {traced.log[-2000:]}"
    assert_clear(bench, traced.run, traced.status, what)
    assert_resumed(bench, what)
    bench.discard()
    return True


def assert_resumed(bench: Bench, what: str) -> None:
    """Without the fault the same command finishes at once, and does nothing twice."""
    bench.launcher.assert_nobody_left()
    had, before = bench.receipts(), len(bench.executions())
    bench.run(within_s=AT_ONCE_S)
    bench.assert_right()
    assert not had & set(bench.again(before)), f"{what}: executed although it had a receipt"


def assert_clear(bench: Bench, run: Run, status: int, what: str) -> None:
    """Right, or else ended as the command line ends: with a sentence, and a remedy if one is."""
    said = run.said()
    assert not [line for line in said if "traceback" in line or "stray" in line], (what, said)
    if status == 0:
        assert bench.output.read_bytes() == bench.expected, what
        return
    assert status in (1, 4), (what, status, said)
    fault, closed = run.last("fault"), run.last("closed")
    sentence = fault.get("fault") or closed.get("error") or closed.get("last_failure")
    assert sentence, (what, said)
    assert status == 1 or fault["remedy"], (what, said)


def test_short_writes_lose_nothing(launcher: Launcher, tmp_path: Path) -> None:
    """A write that takes half of what it is given is not an error; somebody must ask again."""
    bench = Bench(launcher, tmp_path, settings={"slots": 2}, params={"count": 4})
    run = bench.run(patch=["halve_writes"])
    assert run.last("closed")["failures"] == 0
    bench.assert_right()


@pytest.mark.parametrize("limit_bytes", [4096, 6000, 33_000, 50_000, 70_000, 90_000, 110_000])
def test_a_file_that_may_not_grow(limit_bytes: int, launcher: Launcher, tmp_path: Path) -> None:
    """The kernel shortens the write that crosses the limit and refuses the next one."""
    bench = solo(launcher, tmp_path)
    bench.params = {"blocks": 4000}
    run = bench.start(patch=["limit_file_size", limit_bytes])
    status = run.wait()
    assert status != 0, "the limit was never met"
    assert_clear(bench, run, status, f"files of at most {limit_bytes} bytes")
    assert_resumed(bench, f"files of at most {limit_bytes} bytes")
