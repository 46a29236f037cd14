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
    faults += [
        (call, "EMFILE:when={}+")
        for call in calls
        if call.name == "openat" and not call.opens_for_writing
    ]
    wrong: list[str] = []
    for no, (site, fault) in enumerate(faults[part::PARTS]):
        bench = solo(launcher, tmp_path / str(no))
        try:
            fail_and_resume(bench, who, site, fault, strace)
        except AssertionError as e:
            wrong.append(f"{site} {fault} {site.text}: {e}")
    assert not wrong, "\n\n".join(wrong)


def fail_and_resume(bench: Bench, who: str, site: Call, fault: str, strace: str) -> None:
    inject = f"inject={site.name}:error={fault.format(site.nth)}"
    traced = follow(bench, who, strace, ["-e", inject])
    assert traced.injected, f"nothing failed: {traced.log[-2000:]}"
    if traced.status == 0:
        assert bench.output.read_bytes() == bench.expected
    else:
        assert_clear(traced.run, traced.status)
    bench.launcher.assert_nobody_left()
    had, before = bench.receipts(), len(bench.executions())
    bench.run(within_s=AT_ONCE_S)
    bench.assert_right()
    assert not had & set(bench.again(before)), "executed although it had a receipt"


def assert_clear(run: Run, status: int) -> None:
    """It ended as the command line would end, with a sentence, and with a remedy if it knows."""
    said = run.said()
    assert status in (1, 4), (status, said)
    assert not [line for line in said if "traceback" in line or "stray" in line], said
    fault, closed = run.last("fault"), run.last("closed")
    sentence = fault.get("fault") or closed.get("error") or closed.get("last_failure")
    assert sentence, said
    assert status == 1 or fault["remedy"], said
